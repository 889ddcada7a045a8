"""Findings about settings that make speculation slower or disable one of its paths."""

from __future__ import annotations

from collections.abc import Iterator

from eaglediag.analysis.findings.finding import Case, Evidence, Finding


def find(case: Case) -> Iterator[Finding]:
    """All findings about settings."""
    arguments = case.candidate.server.arguments
    lora = [name for name in ("enable_lora", "lora_paths") if arguments.get(name)]
    if lora and case.other.speculative:
        yield Finding(
            code="lora",
            what="LoRA is on: it denies or splits graphs on several paths of speculation",
            evidence=tuple(Evidence(f"{name} = {arguments[name]}", "launch arguments") for name in lora),
            sure="possible",
            advice="measure once without LoRA; if the cycle shrinks, serve adapters apart or merged",
            refuted_by="the same cycle without LoRA",
        )
    grammar = [
        one for one in case.candidate.denials if "grammar" in " ".join(frame.text for frame in one.frames).lower()
    ]
    if grammar:
        yield Finding(
            code="structured_output",
            what="structured output keeps requests off the graph or the overlapped path",
            evidence=tuple(Evidence(one.frames[-1].text, f"gate {one.gate}") for one in grammar[:3]),
            sure="likely",
            advice="measure once without grammars",
            refuted_by="the same denials without grammars",
        )
    temperature = case.candidate.workload.temperature
    if temperature and case.other.speculative and case.rows and case.rows[0].candidate.kind == "cycle":
        yield Finding(
            code="sampling_in_verify",
            what=f"sampling at temperature {temperature:g} is part of verify, and lowers acceptance",
            evidence=(Evidence(f"temperature {temperature:g}", "workload"),),
            sure="possible",
            advice="measure once at temperature 0 to see what sampling costs and how much acceptance it takes",
            refuted_by="the same verify time and accept length at temperature 0",
        )

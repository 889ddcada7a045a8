"""Findings about the machine and the instruments: GPUs in another state, an agent that costs too much."""

from __future__ import annotations

from collections.abc import Iterator

from eaglediag.analysis.figures import percent
from eaglediag.analysis.findings.finding import Case, Evidence, Finding

#: An agent that costs more than this blurs what it measures.
COSTLY = 0.02


def find(case: Case) -> Iterator[Finding]:
    """All findings about state."""
    state = [one for one in case.comparability.differences if one.what.startswith("GPU") and one.grade != "harmless"]
    if state:
        yield Finding(
            code="gpu_state",
            what="the GPUs were not in the same state in both arms",
            evidence=tuple(
                Evidence(f"{one.what}: {one.baseline} against {one.candidate}", "NVML samples") for one in state
            ),
            sure="certain" if case.comparability.grade == "not_comparable" else "likely",
            advice="measure both arms in one session, alternated (probe --ab --repeat), with the GPUs to yourself",
            refuted_by="the same difference between the arms at equal clocks",
        )
    for capture in (case.baseline, case.candidate):
        ratio = capture.instrumentation.overhead.ratio
        if ratio is not None and ratio - 1 > COSTLY:
            yield Finding(
                code="agent_costly",
                what=f"{capture.arm}: the agent itself slows the server by {percent(ratio - 1)}",
                evidence=(
                    Evidence(f"active / dormant = {ratio:.3f}", capture.instrumentation.overhead.method or "agent"),
                ),
                sure="certain",
                advice="compare throughputs of dormant windows; times of short phases are too long",
                refuted_by="an interval of the ratio that includes 1",
            )

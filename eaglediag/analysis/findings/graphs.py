"""Findings about CUDA graphs: who was denied one, who never had one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from eaglediag.analysis.advice import room_for
from eaglediag.analysis.denials import Refusals, refusals
from eaglediag.analysis.figures import number, percent
from eaglediag.analysis.findings.finding import Case, Evidence, Finding, Part
from eaglediag.analysis.measured import Arm
from eaglediag.analysis.sentences import PHASE_NAMES
from eaglediag.capture.model import Capture, Phase

PARTS: dict[Phase, Part] = {"decode": "decode", "verify": "verify", "draft": "draft", "draft_extend": "draft_extend"}
#: A phase with a smaller share of graphs than this is called eager.
EAGER = 0.5


def find(case: Case) -> Iterator[Finding]:
    """All findings about graphs."""
    for arm, capture in ((case.base, case.baseline), (case.other, case.candidate)):
        yield from _denied(case, arm, capture)
        yield from _beyond_captured(arm, capture)
    yield from _never(case)
    yield from _baseline_eager(case)


def _denied(case: Case, arm: Arm, capture: Capture) -> Iterator[Finding]:
    by_phase: dict[Phase, list[Refusals]] = defaultdict(list)
    for one in refusals(capture):
        if one.denial.decides and one.denial.phase in PARTS:
            by_phase[one.denial.phase].append(one)
    main = (case.rows[0].candidate if arm is case.other else case.rows[0].baseline).graph_share if case.rows else {}
    for phase in (phase for phase in PARTS if phase in by_phase):
        denied = by_phase[phase]
        evidence = [Evidence(one.line, f"gate {one.denial.gate}") for one in denied[:8]]
        if (share := arm.graph_share.get(phase)) is not None:
            evidence.append(
                Evidence(f"{percent(share)} of {PHASE_NAMES[phase]} passes ran as a graph", "SGLang's own answer")
            )
        yield Finding(
            code=f"graph_denied_{phase}",
            what=f"{arm.name}: {PHASE_NAMES[phase]} was denied its graph",
            evidence=tuple(evidence),
            sure="certain" if all(one.denial.explained for one in denied) else "likely",
            advice=_to_do(denied),
            refuted_by=f"with a graph, {PHASE_NAMES[phase]} takes no less time: probe again with the change",
            part=PARTS[phase] if main.get(phase, 1.0) < EAGER and arm is case.other else None,
            batch_size=denied[0].denial.batch_size,
        )


def _to_do(denied: Sequence[Refusals]) -> str:
    """What would allow the most frequent refusal; of refusals by the same condition, the one that asks for most."""
    first = denied[0].advice
    if first is None:
        leaf = denied[0].denial.frames[-1:]
        where = f": read it at {leaf[0].file.rsplit('/', 1)[-1]}:{leaf[0].line}" if leaf else ""
        return f"no advice: this condition is not a known one{where}"
    alike = [one for one in denied if one.advice is not None and one.advice.code == first.code]
    most = max(alike, key=lambda one: max(one.batch_sizes, default=0)).advice
    assert most is not None
    return most.sentence


def _never(case: Case) -> Iterator[Finding]:
    denied = {denial.phase for denial in case.candidate.denials if denial.decides}
    for phase in ("draft", "draft_extend"):
        share = case.other.graph_share.get(phase)
        if share == 0 and phase not in denied and case.rows:
            spent = case.rows[0].candidate.parts.get(phase)
            captured = phase in case.candidate.server.captured
            yield Finding(
                code=f"never_graphed_{phase}",
                what=f"{PHASE_NAMES[phase]} never ran as a graph",
                evidence=(
                    Evidence("0 % of its passes", "SGLang's own answer"),
                    Evidence(f"{number(spent)} ms per cycle", "recorded steps"),
                    Evidence(
                        "a graph was captured for it" if captured else "no graph was captured for it",
                        "the server's log",
                    ),
                ),
                sure="certain",
                advice="check that the draft's attention backend has graphs (--speculative-draft-attention-backend)",
                refuted_by="a capture line for this phase in the log, or a pass with a graph",
                part=PARTS[phase],
            )


def _baseline_eager(case: Case) -> Iterator[Finding]:
    for row in case.rows:
        share = row.baseline.graph_share.get("decode")
        if not case.base.speculative and share is not None and share < EAGER:
            yield Finding(
                code="baseline_eager",
                what=f"the baseline itself decodes without graphs at batch {row.batch_size}",
                evidence=(
                    Evidence(f"{percent(share)} of decode passes ran as a graph", "SGLang's own answer"),
                    Evidence(f"{number(row.baseline.period.value)} ms a step", "recorded steps"),
                ),
                sure="certain",
                advice="give the baseline its graphs first: against a slow baseline speculation flatters itself",
                refuted_by="decode steps with a graph at this batch size",
                batch_size=row.batch_size,
            )
            return


def _beyond_captured(arm: Arm, capture: Capture) -> Iterator[Finding]:
    phase: Phase = "verify" if arm.speculative else "decode"
    graphs = capture.server.captured.get(phase) or capture.server.captured.get("decode")
    if graphs is None or not graphs.sizes:
        return
    width = graphs.tokens_per_request or 1
    largest = max(graphs.sizes) // (width if graphs.unit == "tokens" else 1)
    denied = {denial.batch_size for denial in capture.denials if denial.phase == phase and denial.decides}
    beyond = [size for size in arm.batches if size > largest and size not in denied]
    if beyond:
        yield Finding(
            code=f"beyond_captured_{'candidate' if arm.speculative else 'baseline'}",
            what=f"{arm.name}: batches beyond the largest captured graph run eagerly, from {largest + 1} requests on",
            evidence=(
                Evidence(f"graphs up to {largest} requests", "the server's log"),
                Evidence(f"measured at batch {', '.join(map(str, beyond))}", "recorded steps"),
            ),
            sure="certain",
            advice=room_for(max(beyond), largest, phase, capture.server).sentence,
            refuted_by=f"a pass with a graph at batch {min(beyond)}",
            part="verify" if arm.speculative else None,
            batch_size=min(beyond),
        )

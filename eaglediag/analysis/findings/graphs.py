"""Findings about CUDA graphs: who was denied one, who never had one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from eaglediag.analysis.figures import number, percent
from eaglediag.analysis.findings.finding import Case, Evidence, Finding, Part
from eaglediag.analysis.measured import Arm
from eaglediag.analysis.sentences import PHASE_NAMES, condition
from eaglediag.capture.model import Capture, Denial, Phase

PARTS: dict[Phase, Part] = {"decode": "decode", "verify": "verify", "draft": "draft", "draft_extend": "draft_extend"}
#: A phase with a smaller share of graphs than this is called eager.
EAGER = 0.5

#: What to try, by a word in the condition that denied.
REMEDIES = {
    "max_bs": "raise --cuda-graph-max-bs to at least {batch}, or cap the load with --max-running-requests",
    "largest captured": "raise --cuda-graph-max-bs to at least {batch}, or cap the load with --max-running-requests",
    "max_num_token": "raise the captured maximum to at least {batch} requests",
    "lora": "serve without LoRA, or with the LoRA backend that captures graphs",
    "encoder": "encoder-decoder inputs deny graphs; serve them from another server",
    "hidden_mode": "the runner captured another hidden-state mode: try a newer release, and report it with the frames",
    "mode_check": "this device captures no graphs for this phase: its eager cost is what there is",
    "is_cpu_graph": "a CPU captures no graphs for this phase: its eager cost is what there is",
    "tbo": "turn two-batch overlap off for this load",
    "dp": "DP ranks must agree on a graph: check --enable-dp-attention and that all ranks are loaded alike",
    "is not none": "no runner was made: look for --disable-cuda-graph and for a device without graphs",
    "runner": "no runner was made: look for --disable-cuda-graph and for a device without graphs",
}


def find(case: Case) -> Iterator[Finding]:
    """All findings about graphs."""
    for arm, capture in ((case.base, case.baseline), (case.other, case.candidate)):
        yield from _denied(case, arm, capture)
        yield from _beyond_captured(arm, capture)
    yield from _never(case)
    yield from _baseline_eager(case)


def _denied(case: Case, arm: Arm, capture: Capture) -> Iterator[Finding]:
    by_phase: dict[Phase, list[Denial]] = defaultdict(list)
    for denial in capture.denials:
        if denial.decides and denial.phase in PARTS:
            by_phase[denial.phase].append(denial)
    for phase, denials in by_phase.items():
        denials.sort(key=lambda denial: -sum(denial.counts.values()))
        largest = max((denial.batch_size or 0 for denial in denials), default=0)
        evidence = [
            Evidence(
                f"{sum(denial.counts.values())} times"
                + (f" at batch {denial.batch_size}" if denial.batch_size else "")
                + f": {condition(denial)}",
                f"gate {denial.gate}",
            )
            for denial in denials[:8]
        ]
        if (share := arm.graph_share.get(phase)) is not None:
            evidence.append(
                Evidence(f"{percent(share)} of {PHASE_NAMES[phase]} passes ran as a graph", "SGLang's own answer")
            )
        main = (case.rows[0].candidate if arm is case.other else case.rows[0].baseline).graph_share if case.rows else {}
        explained = all(denial.explained for denial in denials)
        yield Finding(
            code=f"graph_denied_{phase}",
            what=f"{arm.name}: {PHASE_NAMES[phase]} was denied its graph",
            evidence=tuple(evidence),
            sure="certain" if explained else "likely",
            advice=_remedy(denials[0], largest),
            refuted_by=f"with a graph, {PHASE_NAMES[phase]} takes no less time: probe again with the change",
            part=PARTS[phase] if main.get(phase, 1.0) < EAGER and arm is case.other else None,
            batch_size=denials[0].batch_size,
        )


def _remedy(denial: Denial, batch: int) -> str:
    said = " ".join([denial.reason, *(f"{frame.text} {frame.shown}" for frame in denial.frames[-1:])]).lower()
    for word, remedy in REMEDIES.items():
        if word in said:
            return remedy.format(batch=batch or "the load")
    return "read the condition where it stands and change what makes it false"


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
            advice=f"raise --cuda-graph-max-bs to at least {max(beyond)} (off the stride grid it is silently lower)",
            refuted_by=f"a pass with a graph at batch {min(beyond)}",
            part="verify" if arm.speculative else None,
            batch_size=min(beyond),
        )

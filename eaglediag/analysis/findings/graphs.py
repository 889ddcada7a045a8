"""Findings about CUDA graphs: who was denied one, who never had one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from eaglediag.analysis.advice import alone_on_gpus, room_for, switched_off
from eaglediag.analysis.denials import Refusals, refusals, times
from eaglediag.analysis.figures import listed, number, percent
from eaglediag.analysis.findings.finding import Case, Evidence, Finding, Part
from eaglediag.analysis.measured import Arm
from eaglediag.analysis.sentences import PHASE_NAMES, condition
from eaglediag.capture.model import Capture, Phase

PARTS: dict[Phase, Part] = {"decode": "decode", "verify": "verify", "draft": "draft", "draft_extend": "draft_extend"}
#: The phase that usually costs most comes first.
BY_COST: tuple[Phase, ...] = ("verify", "decode", "draft", "draft_extend")
#: A phase with a smaller share of graphs than this is called eager.
EAGER = 0.5
#: Problems that say already that no condition is on record, and how to get it there.
TOLD = frozenset({"unknown_gates", "eager_passes"})


@dataclass(frozen=True)
class _Denied:
    """Refusals of one phase in one arm that decided."""

    arm: Arm
    refusals: Refusals

    @property
    def phase(self) -> Phase:
        return self.refusals.denial.phase


def find(case: Case) -> Iterator[Finding]:
    """All findings about graphs."""
    found = list(_denied(case))
    yield from found
    for arm, capture in ((case.base, case.baseline), (case.other, case.candidate)):
        yield from _beyond_captured(arm, capture)
    never = list(_never(case))
    yield from never
    yield from _baseline_eager(case, {pair for finding in found for pair in finding.denied})
    yield from _unrecorded(case, {finding.part for finding in never})


def _denied(case: Case) -> Iterator[Finding]:
    """One finding for each condition, whatever phases, arms and batch sizes it denied."""
    alike: dict[tuple[str, ...], list[_Denied]] = defaultdict(list)
    for arm, capture in ((case.base, case.baseline), (case.other, case.candidate)):
        for found in refusals(capture):
            if found.denial.decides and found.denial.phase in PARTS:
                leaf = found.denial.frames[-1] if found.denial.frames else None
                known = found.advice.code if found.advice else f"{leaf.file}:{leaf.line}" if leaf else ""
                alike[leaf.text if leaf else found.denial.reason, known].append(_Denied(arm, found))
    shares = case.rows[0].candidate.graph_share if case.rows else {}
    for group in alike.values():
        denied = sorted(group, key=lambda one: list(PARTS).index(one.phase))
        phases: dict[str, dict[Phase, None]] = defaultdict(dict)
        for one in denied:
            phases[one.arm.name][one.phase] = None
        charged = {one.phase for one in denied if one.arm is case.other and shares.get(one.phase, 1.0) < EAGER}
        main = next((phase for phase in BY_COST if phase in charged), None)
        named = main or next(phase for phase in BY_COST if any(one.phase == phase for one in denied))
        flatters = case.base.name in phases and len(phases) > 1 and not case.alike
        yield Finding(
            code=f"graph_denied_{named}",
            what=_what(phases, denied),
            evidence=tuple(_evidence(denied)),
            sure="certain" if all(one.refusals.denial.explained for one in denied) else "likely",
            advice=_to_do([one.refusals for one in denied])
            + ("; in both arms: against an eager baseline speculation flatters itself" if flatters else ""),
            refuted_by="with graphs, these passes take no less time: probe again with the change",
            part=PARTS[main] if main else None,
            batch_size=max(denied, key=lambda one: one.refusals.total).refusals.denial.batch_size,
            denied=tuple((arm, phase) for arm, some in phases.items() for phase in some),
        )


def _what(phases: Mapping[str, Iterable[Phase]], denied: Sequence[_Denied]) -> str:
    sizes = sorted({size for one in denied for size in one.refusals.batch_sizes})
    where = f" at batch {listed(sizes)}" if sizes else ""
    named = [(arm, [PHASE_NAMES[phase] for phase in some]) for arm, some in phases.items()]
    if len(named) == 1 and len(named[0][1]) == 1:
        return f"{named[0][0]}: {named[0][1][0]} was denied its graph{where}"
    return f"denied their graphs{where}: " + "; ".join(f"{listed(some)} ({arm})" for arm, some in named)


def _evidence(denied: Sequence[_Denied]) -> Iterator[Evidence]:
    """Each way in which the condition said no, then who was denied how often."""
    shown: dict[str, Refusals] = {}
    for one in denied:
        leaf = one.refusals.denial.frames[-1] if one.refusals.denial.frames else None
        shown.setdefault(leaf.shown if leaf else condition(one.refusals.denial), one.refusals)
    for refusal in list(shown.values())[:3]:
        yield Evidence(condition(refusal.denial), f"gate {refusal.denial.gate.rpartition(':')[2]}")
    times: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in denied:
        sizes = listed(one.refusals.batch_sizes)
        where = f"batch {sizes}, {one.refusals.times}" if sizes else one.refusals.times
        times[f"{one.arm.name}, {where}", one.refusals.source].append(PHASE_NAMES[one.phase])
    for (where, source), who in list(times.items())[:4]:
        arm, _, often = where.partition(", ")
        yield Evidence(f"{arm}: {listed(who)}, {often}", source)


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


def _baseline_eager(case: Case, told: Container[tuple[str, Phase]]) -> Iterator[Finding]:
    if (case.base.name, "decode") in told:
        return
    for row in case.rows:
        share = row.baseline.graph_share.get("decode")
        if not case.alike and share is not None and share < EAGER:
            without = _without_record(case.baseline, "decode", [row.batch_size])
            why = _why_unrecorded(case.base, case.baseline, ["decode"], without)
            yield Finding(
                code="baseline_eager",
                what=f"the baseline itself decodes without graphs at batch {row.batch_size}",
                evidence=(
                    Evidence(f"{percent(share)} of decode passes ran as a graph", "SGLang's own answer"),
                    Evidence(f"{number(row.baseline.period.value)} ms a step", "recorded steps"),
                    *(why.evidence if why else ()),
                ),
                sure="certain",
                advice="give the baseline its graphs first: against a slow baseline speculation flatters itself"
                + (f"; {why.advice}" if why else ""),
                refuted_by="decode steps with a graph at this batch size",
                batch_size=row.batch_size,
            )
            return


def _unrecorded(case: Case, never: Container[Part | None]) -> Iterator[Finding]:
    """Eager passes about which no gate said anything; those of a plain baseline are in the finding about it."""
    for arm, capture, costs in (
        (case.base, case.baseline, [row.baseline for row in case.rows]),
        (case.other, case.candidate, [row.candidate for row in case.rows]),
    ):
        alike: dict[tuple[int, ...], list[Phase]] = defaultdict(list)
        for phase in BY_COST:
            of_baseline = arm is case.base and phase == "decode" and not case.alike
            if not of_baseline and not (arm is case.other and PARTS[phase] in never):
                eager = [cost.batch_size for cost in costs if cost.graph_share.get(phase, 1.0) < EAGER]
                alike[_without_record(capture, phase, eager)].append(phase)
        for sizes, phases in alike.items():
            why = _why_unrecorded(arm, capture, phases, sizes)
            if why is not None:
                charged = arm is case.other and case.rows[0].batch_size in sizes
                yield Finding(
                    code=f"graph_unexplained_{phases[0]}",
                    what=f"{arm.name}: {listed([PHASE_NAMES[phase] for phase in phases])} ran without a graph at batch "
                    f"{listed(sizes)}, {why.what}",
                    evidence=why.evidence,
                    sure="certain",
                    advice=why.advice,
                    refuted_by="a recorded denial of these passes",
                    part=PARTS[phases[0]] if charged else None,
                    batch_size=sizes[0],
                )


def _without_record(capture: Capture, phase: Phase, eager: Iterable[int]) -> tuple[int, ...]:
    """The batch sizes, of those at which the phase ran eagerly, that no denial and no captured size accounts for."""
    largest = _largest_captured(capture, phase)
    told = {denial.batch_size for denial in capture.denials if denial.phase == phase}
    return tuple(size for size in eager if not {size, None} & told and (largest is None or size <= largest))


@dataclass(frozen=True)
class _Unrecorded:
    """Why eager passes have no denial on record, what shows it, and what to do."""

    what: str
    evidence: tuple[Evidence, ...]
    advice: str


def _why_unrecorded(arm: Arm, capture: Capture, phases: Sequence[Phase], sizes: Sequence[int]) -> _Unrecorded | None:
    """None without such passes, and where the capture's problems have said it."""
    if not sizes:
        return None
    often = tuple(
        Evidence(
            f"{arm.name}: {PHASE_NAMES[phase]} without a graph, batch {listed(sizes)}, "
            f"{times(_eager_passes(capture, phase, sizes))}",
            "SGLang's own answer",
        )
        for phase in phases
    )
    off = switched_off(capture.server)
    if off is not None:
        given = Evidence(f"`{off.flag}`", "launch arguments")
        return _Unrecorded("as graphs are switched off", (given, *often), off.sentence)
    if TOLD & {problem.code for problem in capture.problems}:
        return None
    nothing = Evidence("no denial of these passes", "the capture")
    what = "and no condition that denied it is on record"
    return _Unrecorded(what, (*often, nothing), _to_record(capture, phases))


def _eager_passes(capture: Capture, phase: Phase, sizes: Container[int]) -> dict[int, int]:
    """How many passes of the phase ran without a graph at these batch sizes, by rank."""
    counts: dict[int, int] = defaultdict(int)
    for rank in (rank for window in capture.windows for rank in window.ranks):
        for one in rank.phases or [part for batch in rank.batches for part in batch.parts]:
            if one.phase == phase and one.batch_size in sizes and one.graph is False:
                counts[rank.rank] += one.count
    return counts


def _to_record(capture: Capture, phases: Sequence[Phase]) -> str:
    """How to get the condition that these phases met."""
    probe = "`eaglediag probe --launch 'the launch command'` records which condition says no"
    if capture.source.kind != "probe":
        return probe
    release = f" --release {capture.server.release}" if capture.server.release else ""
    phase = f" --phase {phases[0]}" if len(phases) == 1 else ""
    listing = f"`eaglediag gates{release}{phase}` lists all conditions that may say no"
    ranks = capture.instrumentation.ranks
    refused = {one.target: one.why for rank in ranks for one in rank.refused if one.target.startswith("gate ")}
    if refused:
        named = "; ".join(f"{target} ({why})" for target, why in list(refused.items())[:3])
        more = f" and {len(refused) - 3} more" if len(refused) > 3 else ""
        return f"not traced: {named}{more}; {listing}"
    if any(target.startswith("gate ") for rank in ranks for target in rank.patched):
        return f"none of the traced gates said no: {listing}"
    return f"no gate was traced: {probe}; {listing}"


def _largest_captured(capture: Capture, phase: Phase) -> int | None:
    """The most requests that a graph was captured for; verify's are the target model's, as decode's."""
    graphs = capture.server.captured.get(phase) or (
        capture.server.captured.get("decode") if phase == "verify" else None
    )
    return max(graphs.requests) if graphs is not None and graphs.sizes else None


def _beyond_captured(arm: Arm, capture: Capture) -> Iterator[Finding]:
    phase: Phase = "verify" if arm.speculative else "decode"
    largest = _largest_captured(capture, phase)
    if largest is None:
        return
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
            advice=room_for(max(beyond), largest, phase, capture.server, alone_on_gpus(capture)).sentence,
            refuted_by=f"a pass with a graph at batch {min(beyond)}",
            part="verify" if arm.speculative else None,
            batch_size=min(beyond),
        )

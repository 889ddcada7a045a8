"""Findings about collectives and about ranks that do not keep step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from eaglediag.analysis.figures import number
from eaglediag.analysis.findings.finding import Case, Evidence, Finding
from eaglediag.analysis.sentences import PHASE_NAMES
from eaglediag.capture.model import Capture, Collective, Phase, Window

#: So many collectives launched one by one in a pass are worth saying.
MANY_EAGER = 20
#: Ranks of one group whose phase times differ by more than this are skewed.
SKEW = 0.10


def find(case: Case) -> Iterator[Finding]:
    """All findings about collectives."""
    yield from _eager(case.candidate)
    yield from _nccl(case.candidate)
    for capture in (case.baseline, case.candidate):
        yield from _skewed(capture)


def _counted(capture: Capture, *, in_graph: bool) -> Iterator[tuple[Window, Collective]]:
    """The collectives that the lowest rank of each window saw."""
    for window in capture.windows:
        for rank in window.ranks[:1]:
            for one in rank.collectives:
                if one.in_graph == in_graph:
                    yield window, one


def _per_pass(capture: Capture, *, in_graph: bool) -> dict[Phase, dict[str, float]]:
    """Calls per pass by phase and backend, the most of any window."""
    found: dict[Phase, dict[str, float]] = defaultdict(dict)
    for _, one in _counted(capture, in_graph=in_graph):
        name = f"{one.backend} {one.operation}"
        found[one.phase][name] = max(found[one.phase].get(name, 0.0), one.calls_per_step)
    return found


def _eager(capture: Capture) -> Iterator[Finding]:
    for phase, calls in _per_pass(capture, in_graph=False).items():
        total = sum(calls.values())
        if phase in ("decode", "verify", "draft", "draft_extend") and total >= MANY_EAGER:
            listed = ", ".join(f"{count:.0f} {name}" for name, count in sorted(calls.items(), key=lambda one: -one[1]))
            eager = _counted(capture, in_graph=False)
            loads = sorted({window.concurrency for window, one in eager if one.phase == phase and window.concurrency})
            where = f" at concurrency {', '.join(map(str, loads))}" if loads else ""
            yield Finding(
                code=f"eager_collectives_{phase}",
                what=f"{PHASE_NAMES[phase]} launches {total:.0f} collectives one by one in each pass{where}",
                evidence=(Evidence(f"{listed} per pass", "calls counted by the agent"),),
                sure="certain",
                advice="with a graph they are launched at once; see what denied it",
                refuted_by="the same count inside a graph with no less time",
                part=phase,
            )


def _nccl(capture: Capture) -> Iterator[Finding]:
    arguments = capture.server.arguments
    disabled = arguments.get("disable_custom_all_reduce") is True
    if not disabled or capture.server.tp == 1:
        return
    counted = [
        Evidence(f"{count:.0f} {name} per {PHASE_NAMES[phase]} pass", "calls counted by the agent")
        for in_graph in (True, False)
        for phase, calls in _per_pass(capture, in_graph=in_graph).items()
        for name, count in calls.items()
        if "nccl" in name.lower() and phase in ("decode", "verify")
    ]
    yield Finding(
        code="nccl_instead_of_custom",
        what="all-reduces go through NCCL although a faster path for small tensors is only turned off",
        evidence=(Evidence("--disable-custom-all-reduce", "launch arguments"), *counted[:4]),
        sure="likely",
        advice="leave --disable-custom-all-reduce out where the GPUs share NVLink, in both arms",
        refuted_by="no shorter decode step without the flag",
    )


def _skewed(capture: Capture) -> Iterator[Finding]:
    group = {rank.rank: (rank.dp, rank.pp) for rank in capture.instrumentation.ranks}
    spent: dict[tuple[Phase, int, tuple[int, int]], dict[int, list[tuple[int, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for window in capture.windows:
        for rank in window.ranks:
            for one in rank.phases:
                time = one.device_ms or one.host_ms
                if time is not None and one.phase in ("decode", "verify") and rank.rank in group:
                    spent[one.phase, one.batch_size, group[rank.rank]][rank.rank].append((one.count, time.mean))
    worst: tuple[float, str, tuple[Evidence, ...]] | None = None
    for (phase, size, _), ranks in spent.items():
        means = {
            rank: sum(count * mean for count, mean in seen) / max(1, sum(count for count, _ in seen))
            for rank, seen in ranks.items()
        }
        slow, fast = max(means, key=lambda rank: means[rank]), min(means, key=lambda rank: means[rank])
        skew = means[slow] / means[fast] - 1 if means[fast] else 0.0
        if len(means) > 1 and skew > SKEW and (worst is None or skew > worst[0]):
            facts = tuple(
                Evidence(f"rank {rank}: {number(means[rank])} ms", "recorded passes") for rank in (slow, fast)
            )
            worst = (skew, f"{PHASE_NAMES[phase]} at batch {size}", facts)
    if worst is not None:
        yield Finding(
            code="ranks_skewed",
            what=f"{capture.arm}: ranks do not keep step in {worst[1]}, {100 * worst[0]:.0f} % apart",
            evidence=worst[2],
            sure="likely",
            advice="look at the slow rank's GPU (clock, company, link) and at its host's CPU",
            refuted_by="ranks that keep step in another run on the same GPUs",
        )

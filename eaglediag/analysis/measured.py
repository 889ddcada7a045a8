"""What a capture measured, pooled by batch size and by concurrency: the step from a capture's records to figures.

Ranks of one tensor- or pipeline-parallel group take every step together, so one of them speaks for the group (the
lowest-numbered); data-parallel groups take steps of their own and are pooled. Windows of an accept-length sweep are
left out. For a batch size that was also a concurrency of the workload, the windows at that concurrency are used alone:
elsewhere that batch size only occurs while load ramps up or down.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from eaglediag.analysis.statistics import Estimate, Resampled, estimate, resample
from eaglediag.capture.model import BatchStats, Capture, Phase, PhaseStats, RankWindow, Window

#: The parts of a cycle, in the order in which they are shown.
CYCLE_PARTS: tuple[Literal["draft", "verify", "draft_extend"], ...] = ("draft", "verify", "draft_extend")

ALGORITHM_NAMES = {"EAGLE3": "EAGLE-3", "NEXTN": "NextN", "STANDALONE": "the draft model", "NGRAM": "n-gram drafting"}


@dataclass(frozen=True)
class BatchCost:
    """Steps (or cycles) at one batch size. `parts` and `gap_ms` are means per step and add up to `period`, all in ms.

    `resampled` has the columns of `capture.model.Blocks`, the parts under the names of their phases.
    `gap_ms` is None when the parts are not known. `graph_share` is the share of passes that ran as a graph, by phase,
    and lacks phases for which the engine does not say.
    """

    batch_size: int
    kind: Literal["decode", "cycle"]
    steps: int
    period: Estimate
    parts: dict[Phase, float]
    gap_ms: float | None
    graph_share: dict[Phase, float]
    accept_length: Estimate | None
    histogram: tuple[int, ...]
    windows: tuple[str, ...]
    resampled: Resampled = field(repr=False)


@dataclass(frozen=True)
class LoadCost:
    """Requests at one concurrency. `throughput` is in tokens/s; `accept_length` as the requests report it."""

    concurrency: int
    windows: tuple[str, ...]
    agent: str
    throughput: float
    requests: int
    failed_requests: int
    accept_length: float | None
    resampled: Resampled = field(repr=False)


@dataclass(frozen=True)
class Arm:
    """One capture, pooled. `graph_share` covers all batch sizes and windows.

    `accept_length_set` says that the server was told an accept length, or looks like it: it is not the draft's.
    """

    name: str
    label: str
    speculative: bool
    batches: dict[int, BatchCost]
    loads: dict[int, LoadCost]
    graph_share: dict[Phase, float]
    accept_length_set: bool


def measure(capture: Capture, arm: int = 0, *, swept: bool = False) -> Arm:
    """Pool a capture. Arms that will be compared need different `arm` numbers, so that they are resampled apart.

    With `swept`, windows of an accept-length sweep are pooled too: good for what a cycle costs, not for what it yields.
    """
    windows = [window for window in capture.windows if swept or _plain(window, capture)]
    speaking = _speaking_ranks(capture)
    speculative = is_speculative(capture)
    records: dict[int, list[tuple[Window, BatchStats]]] = defaultdict(list)
    phases: list[PhaseStats] = []
    for window in windows:
        for rank in _heard(window, speaking):
            phases.extend(rank.phases)
            for batch in rank.batches:
                if batch.kind == ("cycle" if speculative else "decode") and batch.count:
                    records[batch.batch_size].append((window, batch))
    return Arm(
        name=capture.arm,
        label=label(capture),
        speculative=speculative,
        batches={size: _batch(size, _like_with_like(size, found), arm) for size, found in sorted(records.items())},
        loads=_loads(windows, arm),
        graph_share=graph_share(phases),
        accept_length_set=accept_length_told(capture) is not None
        or any(problem.code == "accept_length_pinned" for problem in capture.problems),
    )


def is_speculative(capture: Capture) -> bool:
    """Whether the arm speculates, by its settings or, for a log without them, by what it did."""
    return capture.server.speculation is not None or any(
        batch.kind == "cycle" for window in capture.windows for rank in window.ranks for batch in rank.batches
    )


def accept_length_told(capture: Capture) -> float | None:
    """The accept length that the server was told to simulate (SGLANG_SIMULATE_ACC_LEN), if it was."""
    speculation = capture.server.speculation
    return speculation.simulated_accept_length if speculation is not None else None


def label(capture: Capture) -> str:
    """What sentences call the arm."""
    if capture.server.speculation is None:
        return "speculation" if is_speculative(capture) else "the baseline"
    algorithm = capture.server.speculation.algorithm
    return ALGORITHM_NAMES.get(algorithm.upper(), algorithm)


def graph_share(passes: Iterable[PhaseStats]) -> dict[Phase, float]:
    """The share of passes that ran as a graph, by phase, over the passes for which the engine says."""
    graphs: dict[Phase, int] = defaultdict(int)
    known: dict[Phase, int] = defaultdict(int)
    for one in passes:
        if one.graph is not None and one.count:
            known[one.phase] += one.count
            graphs[one.phase] += one.count if one.graph else 0
    return {phase: graphs[phase] / count for phase, count in known.items()}


def _plain(window: Window, capture: Capture) -> bool:
    return window.simulated_accept_length in (None, accept_length_told(capture))


def _speaking_ranks(capture: Capture) -> set[int]:
    """The lowest-numbered rank of each data-parallel group; empty when the capture does not describe its ranks."""
    groups: dict[int, int] = {}
    for rank in capture.instrumentation.ranks:
        if rank.seen:
            groups[rank.dp] = min(rank.rank, groups.get(rank.dp, rank.rank))
    return set(groups.values())


def _heard(window: Window, speaking: set[int]) -> list[RankWindow]:
    heard = [rank for rank in window.ranks if rank.rank in speaking]
    return heard or sorted(window.ranks, key=lambda rank: rank.rank)[:1]


def _like_with_like(size: int, found: list[tuple[Window, BatchStats]]) -> list[tuple[Window, BatchStats]]:
    return [one for one in found if one[0].concurrency == size] or found


def _batch(size: int, found: Sequence[tuple[Window, BatchStats]], arm: int) -> BatchCost:
    columns = _columns([batch for _, batch in found])
    turns = [window.repeat for window, batch in found for _ in batch.blocks.steps or (0,)]
    resampled = resample(columns, [("period_ms", "steps"), ("tokens", "passes")], turns=turns, arm=arm)
    steps = sum(batch.count for _, batch in found)
    parts = _parts([batch for _, batch in found])
    period = estimate(lambda sums: sums["period_ms"] / sums["steps"], resampled)
    histogram: list[int] = []
    for _, batch in found:
        counts = batch.accept.histogram if batch.accept else []
        histogram += [0] * (len(counts) - len(histogram))
        for i, count in enumerate(counts):
            histogram[i] += count
    return BatchCost(
        batch_size=size,
        kind=found[0][1].kind,
        steps=steps,
        period=period,
        parts=parts,
        gap_ms=period.value - sum(parts.values()) if parts else None,
        graph_share=graph_share(part for _, batch in found for part in batch.parts),
        accept_length=estimate(lambda sums: sums["tokens"] / sums["passes"], resampled)
        if sum(columns["passes"])
        else None,
        histogram=tuple(histogram),
        windows=tuple(dict.fromkeys(window.id for window, _ in found)),
        resampled=resampled,
    )


def _columns(found: Sequence[BatchStats]) -> dict[str, list[float]]:
    """The blocks of all records end to end. A record without blocks counts as one, so it supports no interval."""
    columns: dict[str, list[float]] = {"steps": [], "period_ms": [], "passes": [], "tokens": []}
    phases = sorted({phase for batch in found for phase in batch.blocks.parts_ms})
    columns.update({phase: [] for phase in phases})
    for batch in found:
        blocks, accept = batch.blocks, batch.accept
        if blocks.steps:
            columns["steps"] += blocks.steps
            columns["period_ms"] += blocks.period_ms
            columns["passes"] += blocks.passes
            columns["tokens"] += blocks.tokens
        else:
            columns["steps"].append(batch.count)
            columns["period_ms"].append(batch.count * batch.period_ms.mean)
            columns["passes"].append(accept.passes if accept else 0)
            columns["tokens"].append(accept.tokens if accept else 0)
        for phase in phases:
            shares = blocks.parts_ms.get(phase, []) if blocks.steps else []
            columns[phase] += shares or [0.0] * (len(columns["steps"]) - len(columns[phase]))
    return columns


def _parts(found: Sequence[BatchStats]) -> dict[Phase, float]:
    """Mean ms per step of each part; empty unless every record knows its parts."""
    total: dict[Phase, float] = defaultdict(float)
    steps = 0
    for batch in found:
        if batch.blocks.parts_ms and batch.blocks.steps:
            steps += sum(batch.blocks.steps)
            for phase, share in batch.blocks.parts_ms.items():
                total[phase] += sum(share)
            continue
        if not batch.parts:
            return {}
        steps += batch.count
        for part in batch.parts:
            spent = part.host_ms if batch.period_ms.method != "cuda_event" else part.device_ms
            if spent is None:
                return {}
            total[part.phase] += part.count * spent.mean
    return {phase: spent / steps for phase, spent in total.items()} if steps else {}


def _reported_accept_length(windows: Sequence[Window]) -> float | None:
    """What a benchmark reported for whole windows, by their length in time."""
    told = [(window.accept_length, window.duration_s) for window in windows if window.accept_length is not None]
    seconds = sum(duration for _, duration in told)
    if not seconds:
        return None
    return sum(length * duration for length, duration in told) / seconds


def _loads(windows: Sequence[Window], arm: int) -> dict[int, LoadCost]:
    by_concurrency: dict[int, list[Window]] = defaultdict(list)
    for window in windows:
        if window.concurrency is not None and window.throughput:
            by_concurrency[window.concurrency].append(window)
    return {size: _load(size, found, arm) for size, found in sorted(by_concurrency.items())}


def _load(concurrency: int, found: Sequence[Window], arm: int) -> LoadCost:
    measured = [window for window in found if window.agent == "active"] or found
    answered = [(window, request) for window in measured for request in window.requests if request.error is None]
    requests = [request for _, request in answered]
    # The first token comes out of the prefill, not out of a verify pass.
    told = [(request.completion_tokens - 1, request.verify_passes) for request in requests if request.verify_passes]
    seconds = sum(window.duration_s for window in measured)
    return LoadCost(
        concurrency=concurrency,
        windows=tuple(window.id for window in measured),
        agent=measured[0].agent,
        throughput=sum((window.throughput or 0.0) * window.duration_s for window in measured) / seconds
        if seconds
        else sum(window.throughput or 0.0 for window in measured) / len(measured),
        requests=len(requests),
        failed_requests=sum(window.failed_requests for window in measured),
        accept_length=sum(tokens for tokens, _ in told) / sum(passes for _, passes in told)
        if told
        else _reported_accept_length(measured),
        resampled=resample(
            {
                "tokens": [request.completion_tokens for request in requests],
                "latency_ms": [request.latency_ms for request in requests],
            },
            [("tokens", "latency_ms")],
            turns=[window.repeat for window, _ in answered],
            arm=arm,
        ),
    )

"""Metrics pages of one server, one after the other, as stretches of time at one batch size on one rank.

Counted, not sampled: a stretch's steps are the difference of a counter, so its period is time over steps.

| | SGLang from 0.5.8 | SGLang before | vLLM |
|---|---|---|---|
| steps | cuda_graph_passes_total{mode=decode_*} | one decode line's | iteration_tokens_total_count |
| tokens | realtime_tokens_total{mode=decode} | the accept length's gauge | spec_decode_num_drafts, _accepted_tokens |
| a prefill ran | realtime_tokens_total{mode=prefill_compute} | | prompt_tokens_total |
| a request ended | num_requests_total | num_requests_total | request_success_total |

The running requests are a gauge, which SGLang sets with a decode line. So a stretch reaches from a page that shows a
new line to the next such page, and is *calm* when no request began or ended in it: then the batch size held all the
time. Stretches that are not calm hold prefills; they count only for a batch size that has no calm one, as in a log.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from eaglediag.capture.model import Phase, PhaseStats, RankWindow
from eaglediag.probes.evidence.metrics_page import MetricsSnapshot, drafting
from eaglediag.probes.evidence.server_info import IDLE_FACTOR
from eaglediag.probes.evidence.stretches import Stretch, batch_stats

_SGLANG = (
    "num_running_reqs",
    "gen_throughput",
    "spec_accept_length",
    "is_cuda_graph",
    "cuda_graph_passes_total",
    "realtime_tokens_total",
    "num_requests_total",
    "generation_tokens_total",
    "spec_verify_calls_total",
)
_VLLM = (
    "num_requests_running",
    "iteration_tokens_total_count",
    "generation_tokens_total",
    "prompt_tokens_total",
    "request_success_total",
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "spec_decode_num_accepted_tokens_per_pos_total",
)
_KEPT = frozenset([*(f"sglang:{name}" for name in _SGLANG), *(f"vllm:{name}" for name in _VLLM)])


class Poll(NamedTuple):
    """One page and when it was taken, in seconds since the epoch."""

    time: float
    page: MetricsSnapshot


class Reading(NamedTuple):
    """What one page says of one data-parallel rank. Counts are since the server started; None where there is none."""

    time: float
    page: MetricsSnapshot
    running: int
    throughput: float
    accept_length: float | None
    graph: bool | None
    steps: float | None
    graph_steps: float | None
    tokens: float | None
    prefilled: float | None
    ended: float | None

    def shows_new_line(self, before: Reading) -> bool:
        """Whether SGLang wrote a decode line since; vLLM's gauges are always of the moment."""
        if self.page.engine == "vllm":
            return True
        return (self.throughput, self.accept_length) != (before.throughput, before.accept_length)

    def calm_since(self, before: Reading) -> bool:
        """Whether no request began or ended since."""
        return self.ended == before.ended and self.prefilled == before.prefilled

    def worked_since(self, before: Reading) -> bool:
        """Whether any step was taken since, as far as the page tells."""
        if self.steps is not None and before.steps is not None:
            return self.steps > before.steps
        return self.running > 0 and self.shows_new_line(before)


@dataclass
class RankSeries:
    """One rank's stretches by batch size, and its steps by (batch size, whether they ran as a graph)."""

    calm: dict[int, list[Stretch]] = field(default_factory=lambda: defaultdict(list))
    mixed: dict[int, list[Stretch]] = field(default_factory=lambda: defaultdict(list))
    graphs: Counter[tuple[int, bool]] = field(default_factory=Counter)


@dataclass
class Measured:
    """What pages measured. `mixed` names batch sizes whose step times hold prefills."""

    ranks: list[RankWindow]
    mixed: list[int]


def trimmed(page: MetricsSnapshot) -> MetricsSnapshot:
    """The page with what is needed here alone: a thousand whole pages would not fit a laptop's memory."""
    return MetricsSnapshot(
        page.engine, page.model, {name: found for name, found in page.samples.items() if name in _KEPT}
    )


def readings(poll: Poll) -> dict[int, Reading]:
    """By data-parallel rank."""
    time, page = poll
    sglang = page.engine == "sglang"
    running = _gauge(page, "sglang:num_running_reqs" if sglang else "vllm:num_requests_running")
    throughput, length = _gauge(page, "sglang:gen_throughput"), _gauge(page, "sglang:spec_accept_length")
    graph = _gauge(page, "sglang:is_cuda_graph")
    passes = "sglang:cuda_graph_passes_total"
    steps = _count(page, passes, "decode") if sglang else _count(page, "vllm:iteration_tokens_total_count")
    graph_steps = _count(page, passes, "decode_cuda_graph") if sglang else {}
    tokens = (
        _count(page, "sglang:realtime_tokens_total", "decode")
        if sglang
        else _count(page, "vllm:generation_tokens_total")
    )
    prefilled = (
        _count(page, "sglang:realtime_tokens_total", "prefill_compute")
        if sglang
        else _count(page, "vllm:prompt_tokens_total")
    )
    ended = page.total("sglang:num_requests_total" if sglang else "vllm:request_success_total")
    return {
        rank: Reading(
            time=time,
            page=page,
            running=int(running[rank]),
            throughput=throughput.get(rank, 0.0),
            accept_length=length.get(rank) or None,
            graph=None if rank not in graph else graph[rank] > 0,
            steps=steps.get(rank),
            graph_steps=graph_steps.get(rank, 0.0 if rank in steps and sglang else None),
            tokens=tokens.get(rank),
            prefilled=prefilled.get(rank),
            ended=ended,
        )
        for rank in sorted(running)
    }


def measured(polls: Sequence[Poll], log_interval: int, speculative: bool) -> Measured:
    """Step or cycle times by batch size on every rank. `log_interval` is the steps of one decode line."""
    ranks: list[RankWindow] = []
    mixed: set[int] = set()
    phase: Phase = "verify" if speculative else "decode"
    for rank, row in _rows(polls).items():
        series = _series(row, log_interval, speculative)
        batches = []
        for size in sorted(series.calm.keys() | series.mixed.keys()):
            found = series.calm.get(size) or _without_idle(series.mixed[size])
            batches.append(batch_stats(size, found, speculative, "metrics"))
            if size not in series.calm:
                mixed.add(size)
        flags = [
            PhaseStats(phase=phase, batch_size=size, graph=graph, count=count)
            for (size, graph), count in sorted(series.graphs.items())
        ]
        for batch in batches:
            batch.parts = [one for one in flags if one.batch_size == batch.batch_size]
        if batches:
            steps = sum(batch.count for batch in batches)
            ranks.append(RankWindow(rank=rank, batches=batches, phases=flags, steps_recorded=steps))
    return Measured(ranks, sorted(mixed))


def busy(polls: Sequence[Poll]) -> list[tuple[int, int]]:
    """(first, last) positions of the pages between which the server worked without a pause of a whole poll."""
    found: list[tuple[int, int]] = []
    rows = [readings(poll) for poll in polls]
    for i in range(len(polls) - 1):
        if any(rank in rows[i] and now.worked_since(rows[i][rank]) for rank, now in rows[i + 1].items()):
            if found and found[-1][1] == i:
                found[-1] = (found[-1][0], i + 1)
            else:
                found.append((i, i + 1))
    return found


def emitted(first: MetricsSnapshot, last: MetricsSnapshot) -> int | None:
    """Tokens generated between two pages, all ranks together.

    SGLang before 0.5.8 counts a request's tokens when it ends; None when no counter is there, or it was reset.
    """
    counts = []
    for page in (first, last):
        live = _count(page, "sglang:realtime_tokens_total", "decode")
        name = "sglang:generation_tokens_total" if page.engine == "sglang" else "vllm:generation_tokens_total"
        counts.append(sum(live.values()) if live else page.total(name))
    if counts[0] is None or counts[1] is None or counts[1] < counts[0]:
        return None
    return round(counts[1] - counts[0])


def running(polls: Sequence[Poll]) -> int | None:
    """The number of requests running, where one rank alone had the same at every page but the first and last."""
    seen = {tuple(one.running for one in readings(poll).values()) for poll in polls[1:-1]}
    (only,) = seen if len(seen) == 1 else ((),)
    return only[0] or None if len(only) == 1 else None


def _rows(polls: Sequence[Poll]) -> dict[int, list[Reading]]:
    rows: dict[int, list[Reading]] = defaultdict(list)
    for poll in polls:
        for rank, reading in readings(poll).items():
            rows[rank].append(reading)
    return rows


def _series(row: Sequence[Reading], log_interval: int, speculative: bool) -> RankSeries:
    series = RankSeries()
    begin = previous = row[0]
    for reading in row[1:]:
        if not reading.shows_new_line(begin):
            if reading.steps is not None and not reading.worked_since(previous):
                begin = reading  # idle: what follows starts here
            previous = reading
            continue
        stretch = _between(begin, reading, log_interval, speculative)
        if stretch is not None:
            kind = series.calm if reading.calm_since(begin) else series.mixed
            kind[reading.running].append(stretch)
            for graph, count in _graphs(begin, reading, stretch.steps):
                series.graphs[reading.running, graph] += count
        begin = previous = reading
    return series


def _between(before: Reading, now: Reading, log_interval: int, speculative: bool) -> Stretch | None:
    """The stretch between two pages at one batch size; None when it is none, or a counter was reset."""
    size, calm = now.running, now.calm_since(before)
    if size <= 0 or before.running != size:
        return None
    passes = tokens = 0
    histogram: tuple[int, ...] = ()
    drafts = drafting(now.page, before.page) if now.page.engine == "vllm" else None
    if drafts is not None:
        if drafts.passes <= 0 or drafts.accepted < 0:
            return None
        passes, tokens, histogram = drafts.passes, drafts.tokens, tuple(drafts.histogram)
    length = now.accept_length or 1.0
    if now.steps is not None and before.steps is not None:
        steps = round(now.steps - before.steps)
        period = 1000 * (now.time - before.time) / steps if steps > 0 else 0.0
    else:
        steps = log_interval
        period = 1000 * size * length / now.throughput if now.throughput > 0 else 0.0
    if steps <= 0 or period <= 0:
        return None
    if speculative and drafts is None:
        passes = size * steps
        tokens = round(passes * length)
        # Where requests came and went, passes are only about size x steps: the gauge is nearer the truth.
        if calm and now.steps is not None and now.tokens is not None and before.tokens is not None:
            tokens = round(now.tokens - before.tokens)
    return Stretch(now.time, steps, period, passes, tokens, histogram)


def _graphs(before: Reading, now: Reading, steps: int) -> Iterator[tuple[bool, int]]:
    """(as a graph, steps), counted where the release counts, else by the gauge: one line's last step."""
    if now.graph_steps is not None and before.graph_steps is not None:
        graphs = round(now.graph_steps - before.graph_steps)
        yield from ((graph, count) for graph, count in ((True, graphs), (False, steps - graphs)) if count > 0)
    elif now.graph is not None:
        yield now.graph, 1


def _without_idle(stretches: list[Stretch]) -> list[Stretch]:
    """Stretches that are not calm may hold a pause between two requests: those far above the median do."""
    middle = statistics.median(one.period_ms for one in stretches)
    return [one for one in stretches if one.period_ms <= IDLE_FACTOR * middle]


def _rank(page: MetricsSnapshot, labels: dict[str, str]) -> int:
    number = labels.get("dp_rank" if page.engine == "sglang" else "engine", "0")
    return int(number) if number.isdigit() and len(number) < 6 else 0


def _gauge(page: MetricsSnapshot, name: str) -> dict[int, float]:
    """By data-parallel rank; of its TP and PP ranks the first."""
    found: dict[int, float] = {}
    for sample in page.samples.get(name, ()):
        found.setdefault(_rank(page, sample.labels), sample.value)
    return found


def _count(page: MetricsSnapshot, name: str, mode: str = "") -> dict[int, float]:
    """By data-parallel rank, modes that begin so added up; of its TP and PP ranks the first."""
    found: dict[int, dict[tuple[str, str], float]] = defaultdict(dict)
    for sample in page.samples.get(name, ()):
        if sample.labels.get("mode", "").startswith(mode):
            one = found[_rank(page, sample.labels)]
            scheduler = (sample.labels.get("tp_rank", ""), sample.labels.get("pp_rank", ""))
            one[scheduler] = one.get(scheduler, 0.0) + sample.value
    return {rank: one[min(one)] for rank, one in found.items()}

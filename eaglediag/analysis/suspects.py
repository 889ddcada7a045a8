"""Results that should make their reader suspicious, by name: each is likelier a fault of measurement than a fact."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np

from eaglediag.analysis.figures import listed, number, percent
from eaglediag.analysis.graph_price import EAGER
from eaglediag.analysis.measured import BatchCost
from eaglediag.analysis.pairing import BETWEEN_STARTS, Row
from eaglediag.analysis.statistics import MIN_TURNS
from eaglediag.capture.model import Capture, Problem

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Throughput and the cycle's arithmetic may differ by this much before the report calls them irreconcilable: the
#: throughput also holds the prefill and the time in which load ramps up and down.
RECONCILES = 0.10
#: A step may get this much cheaper with more requests before it is called suspect.
CHEAPER = 0.05
#: So many accepted lengths without one that differs are a signature and no workload.
MANY_PASSES = 200
#: The first block of a window may be this much slower than the others.
SLOW_START = 0.10
#: Fewer blocks than this do not show a change of pace.
MANY_BLOCKS = 8
#: A pace that changes by more than this, and of whose variation two levels leave less than that unexplained, has
#: shifted; one whose fastest and slowest tenths are further apart than the last, as a share of the middle, is unsteady.
SHIFT, UNEXPLAINED, UNSTEADY = 0.10, 0.15, 0.25


def suspects(rows: Sequence[Row], captures: Sequence[Capture]) -> list[Problem]:
    """Everything suspect in a comparison's rows and in the captures behind them."""
    found = [*_irreconcilable(rows), *_below_one(rows), *_extreme_accept_length(rows)]
    for arm in ("baseline", "candidate"):
        for row in rows:
            found += _unsteady(row, arm, captures[arm == "candidate"].arm)
    found += _few_starts(rows)
    found += _cheaper_with_batch([row.baseline for row in rows], "decode step")
    found += _cheaper_with_batch([row.candidate for row in rows], "cycle")
    for capture in captures:
        found += _slow_start(capture)
    return found


def _irreconcilable(rows: Sequence[Row]) -> Iterator[Problem]:
    for row in rows:
        if row.seen is not None and row.reconciliation is not None and abs(row.reconciliation) > RECONCILES:
            yield Problem(
                code="irreconcilable",
                message=f"batch {row.batch_size}: throughput gives a speed-up of {row.seen.value:.2f}, step and "
                f"cycle times with the accept length give {row.speedup.value:.2f}, "
                f"{100 * abs(row.reconciliation):.0f} % apart",
                advice="look at prefill, queueing and failed requests; with short requests the ramps dominate",
            )


def _below_one(rows: Sequence[Row]) -> Iterator[Problem]:
    for row in rows:
        if row.below_one:
            yield Problem(
                code="break_even_below_one",
                message=f"batch {row.batch_size}: a whole cycle seems to take less time than one plain decode step "
                f"({row.candidate.period.value:.2f} ms against {row.baseline.period.value:.2f} ms)",
                advice="the arms met the machine in different states, or the baseline is held back: measure both again",
            )


def _extreme_accept_length(rows: Sequence[Row]) -> Iterator[Problem]:
    for row in rows:
        histogram = row.candidate.histogram
        lengths = [length for length, count in enumerate(histogram, start=1) if count]
        if sum(histogram) < MANY_PASSES or len(lengths) != 1:
            continue
        if lengths[0] == 1:
            yield Problem(
                code="accept_length_one",
                message=f"batch {row.batch_size}: not one drafted token was accepted in {sum(histogram)} verify passes",
                advice="that is a bug's signature: hidden states not captured, a draft for another model, stale inputs",
            )
        elif row.break_even is not None and lengths[0] == row.break_even.max_accept_length:
            yield Problem(
                code="accept_length_maximal",
                message=f"batch {row.batch_size}: every drafted token was accepted in {sum(histogram)} verify passes",
                advice="check that the accept length is not simulated and that the output is the model's",
            )


def _cheaper_with_batch(costs: Sequence[BatchCost], what: str) -> Iterator[Problem]:
    for small, large in pairwise(costs):
        if large.period.high < small.period.low * (1 - CHEAPER):
            yield Problem(
                code="cost_falls_with_batch",
                message=f"a {what} takes {small.period.value:.2f} ms at batch {small.batch_size} and only "
                f"{large.period.value:.2f} ms at batch {large.batch_size}",
                advice="more requests cannot cost less on the same path: compare graph shares, clocks and warm-up",
            )


def _unsteady(row: Row, which: Literal["baseline", "candidate"], name: str) -> Iterator[Problem]:
    """A pace that changes within the window: its mean is then the mean of two machines."""
    cost = row.baseline if which == "baseline" else row.candidate
    steps = cost.resampled.columns["steps"]
    periods = (cost.resampled.columns["period_ms"] / steps.clip(min=1))[steps > 0]
    what = f"{name}, batch {row.batch_size}: a {'cycle' if cost.kind == 'cycle' else 'step'}"
    advice = "the machine was disturbed, or warmed up: measure again, longer"
    if any(share < EAGER for share in cost.graph_share.values()):
        advice = "eager passes wait for the CPU, where something else may have run: measure again with cores to spare"
    starts = _starts(cost)
    split = _shift(periods)
    if len(starts) > 1 and max(starts) / min(starts) - 1 > SHIFT:
        yield Problem(
            code="starts_differ",
            message=f"{what} took {listed(map(number, starts))} ms in the server's {len(starts)} starts",
            advice="look at what else ran on the machine, and at its clocks; more starts narrow the interval",
        )
    elif split is not None:
        before, after = periods[:split].mean(), periods[split:].mean()
        yield Problem(
            code="level_shift",
            message=f"{what} took {number(before)} ms in the first {split} of {len(periods)} parts of the measurement, "
            f"then {number(after)} ms",
            advice=advice,
        )
    elif len(periods) >= MANY_BLOCKS:
        ordered = np.sort(np.repeat(periods, steps[steps > 0].astype(int)))
        low, middle, high = (float(ordered[int(share * len(ordered))]) for share in (0.1, 0.5, 0.9))
        if high - low > UNSTEADY * middle:
            yield Problem(
                code="unsteady",
                message=f"{what} took {number(low)} ms or less for a tenth of the measurement and {number(high)} ms or "
                "more for another",
                advice=advice,
            )


def _few_starts(rows: Sequence[Row]) -> Iterator[Problem]:
    """A small difference, certain as far as blocks tell, between servers that were hardly started more than once."""
    for row in rows:
        change = abs(row.decisive.value - 1)
        if row.outcome in ("better", "worse") and change < BETWEEN_STARTS and row.few_starts:
            yield Problem(
                code="few_starts",
                message=f"batch {row.batch_size}: {percent(change)} is no more than two starts of the same server may "
                f"differ by, and an arm was started fewer than {MIN_TURNS} times",
                advice=f"probe both with --repeat {MIN_TURNS}: from {MIN_TURNS} starts on, intervals hold what differs "
                "between them",
            )
            return  # it says the same of every batch size


def _starts(cost: BatchCost) -> list[float]:
    """Mean period in ms of each start of the server that took steps, in their order."""
    sums = cost.resampled.by_start(cost.resampled.starts)
    return [float(ms / steps) for ms, steps in zip(sums["period_ms"], sums["steps"], strict=True) if steps]


def _shift(periods: NDArray[np.float64]) -> int | None:
    """Where the pace changes for good: the split that explains most of the variation, when it explains nearly all."""
    total = float(((periods - periods.mean()) ** 2).sum())
    if len(periods) < MANY_BLOCKS or not total:
        return None
    best = min(
        range(3, len(periods) - 2),
        key=lambda at: float(at * periods[:at].var() + (len(periods) - at) * periods[at:].var()),
    )
    within = float(best * periods[:best].var() + (len(periods) - best) * periods[best:].var())
    change = abs(periods[best:].mean() / periods[:best].mean() - 1)
    return best if change > SHIFT and within < UNEXPLAINED * total else None


def _slow_start(capture: Capture) -> Iterator[Problem]:
    for window in capture.windows:
        for stats in (batch for rank in window.ranks[:1] for batch in rank.batches):
            periods = [
                ms / steps for ms, steps in zip(stats.blocks.period_ms, stats.blocks.steps, strict=True) if steps
            ]
            if len(periods) < 6:
                continue
            rest = sorted(periods[1:])
            spread = rest[-1 - len(rest) // 10] - rest[len(rest) // 10]
            median = rest[len(rest) // 2]
            if periods[0] > median * (1 + SLOW_START) and periods[0] > rest[-1] + spread:
                yield Problem(
                    code="slow_start",
                    message=f"{capture.arm}, window {window.id}, batch {stats.batch_size}: the first second is "
                    f"{100 * (periods[0] / median - 1):.0f} % slower than the rest",
                    advice="it followed idleness: warm up longer, or leave the first window out",
                )

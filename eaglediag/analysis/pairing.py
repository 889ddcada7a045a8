"""Two arms paired by batch size and by concurrency: what a step costs, what it yields, whether it pays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from eaglediag.analysis import breakeven
from eaglediag.analysis.breakeven import BreakEven
from eaglediag.analysis.measured import Arm, BatchCost, LoadCost
from eaglediag.analysis.statistics import MIN_TURNS, Estimate, estimate
from eaglediag.capture.model import Speculation

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Sums = Mapping[str, Array]

Outcome = Literal["better", "worse", "equal", "inconclusive", "not_comparable"]

#: Speed-ups within this of 1 are called equal.
TOLERANCE = 0.02
#: A server started again may differ from itself. One on another GPU of the same kind did, by 2.3 % with intervals of
#: 0.1 % (benchmarks/results, `alone` and `overhead`): what is below twice that may be no difference between the arms.
BETWEEN_STARTS = 0.05
#: A batch size needs this many steps in both arms to get a row.
MIN_STEPS = 30


@dataclass(frozen=True)
class Row:
    """One batch size. `speedup` follows from step, cycle and accept length; `seen` is the ratio of throughputs at that
    concurrency. `break_even` is None when both arms speculate or neither does."""

    batch_size: int
    baseline: BatchCost
    candidate: BatchCost
    speedup: Estimate
    seen: Estimate | None
    break_even: BreakEven | None
    break_even_length: Estimate | None
    outcome: Outcome

    @property
    def decisive(self) -> Estimate:
        """The speed-up that the outcome rests on: by blocks of steps, or by requests when there are too few blocks."""
        return self.seen if self.speedup.interval is None and self.seen is not None else self.speedup

    @property
    def below_one(self) -> bool:
        """Whether a whole cycle seems to take less time than one plain step: likelier a fault than a fact."""
        return self.break_even_length is not None and self.break_even_length.value < 1

    @property
    def few_starts(self) -> bool:
        """Whether an arm was started too few times to show what differs between starts."""
        return min(len(cost.resampled.starts) for cost in (self.baseline, self.candidate)) < MIN_TURNS

    @property
    def reconciliation(self) -> float | None:
        """By how much the speed-up seen differs from the one implied, as a share of the latter."""
        return None if self.seen is None else self.seen.value / self.speedup.value - 1


@dataclass(frozen=True)
class Load:
    """One concurrency: tokens/s of both arms, prefill and ramps included."""

    concurrency: int
    baseline: LoadCost
    candidate: LoadCost
    speedup: Estimate
    break_even: BreakEven | None
    outcome: Outcome


def pair_loads(base: Arm, other: Arm, settings: Speculation | None) -> tuple[Load, ...]:
    """The concurrencies that both arms ran at. `settings` are the candidate's when the baseline does not speculate."""
    against_plain = other.speculative and not base.speculative
    return tuple(
        _load(base.loads[size], other.loads[size], against_plain, settings)
        for size in base.loads
        if size in other.loads
    )


def pair_rows(base: Arm, other: Arm, loads: tuple[Load, ...], settings: Speculation | None) -> tuple[Row, ...]:
    """The batch sizes at which both arms took enough steps."""
    seen = {load.concurrency: load.speedup for load in loads}
    return tuple(
        _row(base.batches[size], other.batches[size], seen.get(size), base.speculative != other.speculative, settings)
        for size in base.batches
        if size in other.batches and min(base.batches[size].steps, other.batches[size].steps) >= MIN_STEPS
    )


def outcome(speedup: Estimate, tolerance: float = TOLERANCE) -> Outcome:
    """The outcome that an interval supports. Without an interval there is no telling.

    Better and worse are beyond the tolerance as far as is known, and differ from 1 for certain.
    """
    if speedup.interval is None:
        return "inconclusive"
    low, high = speedup.interval
    if 1 - tolerance <= low and high <= 1 + tolerance:
        return "equal"
    if low > 1 and speedup.value > 1 + tolerance:
        return "better"
    return "worse" if high < 1 and speedup.value < 1 - tolerance else "inconclusive"


def _yield(sums: Sums) -> Array | float:
    """Tokens that one request gets out of one step: 1 for plain decoding, the accept length for a cycle."""
    return sums["tokens"] / sums["passes"] if sums["passes"].any() else 1.0


def _speedup(base: Sums, other: Sums) -> Array:
    step = base["period_ms"] / base["steps"] / _yield(base)
    cycle = other["period_ms"] / other["steps"] / _yield(other)
    ratio: Array = step / cycle
    return ratio


def _break_even(base: Sums, other: Sums) -> Array:
    ratio: Array = (other["period_ms"] / other["steps"]) / (base["period_ms"] / base["steps"])
    return ratio


def break_even_length(step: BatchCost, cycle: BatchCost, reached: float | None = None) -> Estimate:
    """Cycle / step. `reached` is the accept length, which decides whether that is little or much."""
    return estimate(_break_even, step.resampled, cycle.resampled, undecided=reached)


def _row(
    base: BatchCost, other: BatchCost, seen: Estimate | None, against_plain: bool, settings: Speculation | None
) -> Row:
    speedup = estimate(_speedup, base.resampled, other.resampled, undecided=1.0)
    length = judged = None
    if against_plain:
        reached = other.accept_length.value if other.accept_length else None
        length = break_even_length(base, other, reached)
        judged = breakeven.judged(
            break_even=length.value,
            accept_length=reached,
            speedup=speedup.value if other.accept_length else None,
            draft_tokens=_draft_tokens(settings),
            break_even_interval=length.interval,
            accept_length_interval=other.accept_length.interval if other.accept_length else None,
            speedup_interval=speedup.interval if other.accept_length else None,
            step_ms=base.period.value,
            cycle_ms=other.period.value,
            chain=_is_chain(settings),
        )
    known = not against_plain or other.accept_length is not None
    row = Row(
        batch_size=base.batch_size,
        baseline=base,
        candidate=other,
        speedup=speedup,
        seen=seen,
        break_even=judged,
        break_even_length=length,
        outcome="inconclusive",
    )
    return replace(row, outcome=outcome(row.decisive)) if known else row


def _load(base: LoadCost, other: LoadCost, against_plain: bool, settings: Speculation | None) -> Load:
    ratio = other.throughput / base.throughput
    # Tokens per second of latency are resampled by request; their relative spread is that of the throughput's ratio.
    spread = (
        estimate(_request_ratio, base.resampled, other.resampled, undecided=1.0)
        if base.resampled.blocks and other.resampled.blocks
        else Estimate(ratio)
    )
    interval = tuple(ratio * bound / spread.value for bound in spread.interval) if spread.interval else None
    speedup = Estimate(ratio, (interval[0], interval[1]) if interval else None, spread.blocks, spread.effective_n)
    judged = None
    if against_plain and other.accept_length is not None:
        low, high = speedup.interval or (ratio, ratio)
        judged = breakeven.judged(
            break_even=other.accept_length / ratio,
            accept_length=other.accept_length,
            speedup=ratio,
            draft_tokens=_draft_tokens(settings),
            break_even_interval=(other.accept_length / high, other.accept_length / low) if speedup.interval else None,
            speedup_interval=speedup.interval,
            chain=_is_chain(settings),
        )
    return Load(base.concurrency, base, other, speedup, judged, outcome(speedup))


def _request_ratio(base: Sums, other: Sums) -> Array:
    ratio: Array = (other["tokens"] / other["latency_ms"]) / (base["tokens"] / base["latency_ms"])
    return ratio


def _draft_tokens(settings: Speculation | None) -> int | None:
    maximum = settings.max_accept_length if settings else None
    return None if maximum is None or maximum < 2 else maximum - 1


def _is_chain(settings: Speculation | None) -> bool:
    return settings is None or settings.topk is None or settings.topk == 1

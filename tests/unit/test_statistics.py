"""Intervals keep their promise on data like the workload's: simulated, autocorrelated, few."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from eaglediag.analysis import statistics
from eaglediag.analysis.pairing import outcome
from eaglediag.analysis.statistics import MIN_BLOCKS, Estimate, Resampled, estimate, resample

PAIRS = 500
#: What the default workload yields at batch 1: a block a second.
BLOCKS = 20
#: A block's period varies by 3 %, and half of that persists into the next block.
SD, RHO = 0.03, 0.5

Array = NDArray[np.float64]


def arm(
    generator: np.random.Generator, factor: float, number: int, blocks: int, rho: float, turns: Sequence[float] = (0.0,)
) -> Resampled:
    """`turns` are how much slower each start of the server was, as a share; blocks are divided among them."""
    noise = np.empty(blocks)
    noise[0] = generator.normal()
    for i in range(1, blocks):
        noise[i] = rho * noise[i - 1] + np.sqrt(1 - rho**2) * generator.normal()
    steps = generator.poisson(80, blocks) + 1.0
    turn = np.repeat(np.arange(len(turns)), blocks // len(turns))
    period = steps * 10 * factor * (1 + SD * noise) * (1 + np.array(turns)[turn])
    columns = {"steps": list(steps), "period_ms": list(period)}
    return resample(columns, [("period_ms", "steps")], turns=turn.tolist(), arm=number, draws=1000)


def ratio(base: dict[str, Array], other: dict[str, Array]) -> Array:
    return (base["period_ms"] / base["steps"]) / (other["period_ms"] / other["steps"])


def speedups(truth: float, blocks: int = BLOCKS, rho: float = RHO) -> Iterator[Estimate]:
    for seed in range(PAIRS):
        generator = np.random.default_rng(seed)
        base = arm(generator, 1.0, 0, blocks, rho)
        other = arm(generator, 1 / truth, 1, blocks, rho)
        yield estimate(ratio, base, other, undecided=1.0)


@pytest.mark.parametrize(("blocks", "rho"), [(8, 0.3), (12, 0.3), (20, 0.0), (20, 0.5), (40, 0.5), (100, 0.5)])
def test_coverage_and_false_alarms(blocks: int, rho: float) -> None:
    found = list(speedups(1.0, blocks, rho))
    covered = sum(one.low <= 1.0 <= one.high for one in found) / PAIRS
    alarms = sum(outcome(one) in ("better", "worse") for one in found) / PAIRS
    assert covered >= 0.93
    assert alarms <= 0.05


@pytest.mark.parametrize(
    ("blocks", "rho", "power"),
    [(BLOCKS, 0.0, 0.97), (BLOCKS, 0.3, 0.7), (BLOCKS, RHO, 0.45), (2 * BLOCKS, RHO, 0.85), (4 * BLOCKS, RHO, 0.99)],
)
def test_power_for_a_shift_of_five_percent(blocks: int, rho: float, power: float) -> None:
    """How often a true 5 % is found at least, at blocks that vary by 3 %. What is not found is called inconclusive."""
    outcomes = [outcome(one) for one in speedups(0.95, blocks, rho)]
    assert outcomes.count("worse") / PAIRS >= power
    assert outcomes.count("better") == 0
    assert outcomes.count("equal") / PAIRS <= 0.01


def test_a_real_difference_is_never_called_equal_nor_its_opposite() -> None:
    assert {outcome(one) for one in speedups(1.3)} == {"better"}


def test_an_interval_ends_at_what_was_measured_but_this_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise that hardly changes within the window may put two equal arms on two levels, with no block in common."""
    bounded = list(speedups(1.0, BLOCKS, 0.95))
    monkeypatch.setattr(statistics, "_range", lambda *_: (-math.inf, math.inf))
    free = list(speedups(1.0, BLOCKS, 0.95))
    assert [outcome(one) for one in bounded] == [outcome(one) for one in free]
    assert all(one.low >= other.low and one.high <= other.high for one, other in zip(bounded, free, strict=True))


def turned(truth: float, turns: int, blocks: int, between: float, rho: float = 0.0) -> Iterator[Estimate]:
    """Arms in turns of so many blocks, the server's starts differing by `between`, a standard deviation."""
    for seed in range(PAIRS):
        generator = np.random.default_rng(seed)
        base, other = (
            arm(generator, factor, number, turns * blocks, rho, (between * generator.normal(size=turns)).tolist())
            for number, factor in enumerate((1.0, 1 / truth))
        )
        yield estimate(ratio, base, other, undecided=1.0)


@pytest.mark.parametrize(
    ("turns", "blocks", "between", "rho"),
    [
        (3, 10, 0.0, 0.0),
        (3, 10, 0.02, 0.0),
        (3, 30, 0.01, 0.0),
        (3, 30, 0.03, 0.5),
        (5, 30, 0.03, 0.3),
        (8, 20, 0.05, 0),
    ],
)
def test_coverage_over_turns_that_differ(turns: int, blocks: int, between: float, rho: float) -> None:
    found = list(turned(1.0, turns, blocks, between, rho))
    assert sum(one.low <= 1.0 <= one.high for one in found) / PAIRS >= 0.92
    assert sum(outcome(one) in ("better", "worse") for one in found) / PAIRS <= 0.07


def test_power_over_turns_that_do_not_differ() -> None:
    """What three turns cost: in one measurement of the same length, a true 5 % is nearly always found."""
    outcomes = [outcome(one) for one in turned(0.95, 3, BLOCKS, 0.0, RHO)]
    assert outcomes.count("worse") / PAIRS >= 0.75
    assert outcomes.count("better") == 0


def test_two_turns_do_not_show_what_differs_between_them() -> None:
    base, other = (arm(np.random.default_rng(1), 1.0, number, 40, 0.0, (0.0, 0.05)) for number in (0, 1))
    apart = arm(np.random.default_rng(1), 1.0, 0, 40, 0.0, (0.0, 0.05, 0.02, 0.0))
    assert estimate(ratio, base, other) == estimate(ratio, replace(base, turns=base.turns * 0), other)
    # The arms' common turns count: four against two are two.
    assert estimate(ratio, apart, other) == estimate(ratio, replace(apart, turns=apart.turns * 0), other)


def test_a_pace_that_shifts_once_has_an_interval_within_its_levels() -> None:
    periods = [320.0] * 11 + [170.0] * 8
    one = estimate(
        lambda sums: sums["period_ms"] / sums["steps"],
        resample({"steps": [10.0] * 19, "period_ms": periods}, [("period_ms", "steps")]),
    )
    assert one.interval == pytest.approx((17, 32))


def test_autocorrelation_costs_effective_blocks() -> None:
    generator = np.random.default_rng(1)
    assert arm(generator, 1, 0, 200, 0.0).effective_n > 120
    assert arm(generator, 1, 0, 200, 0.8).effective_n < 60


def test_few_blocks_give_no_interval() -> None:
    few = arm(np.random.default_rng(1), 1, 0, MIN_BLOCKS - 1, 0)
    one = estimate(lambda sums: sums["period_ms"] / sums["steps"], few)
    assert one.interval is None
    assert one.value == pytest.approx(10, rel=0.1)
    assert outcome(one) == "inconclusive"


def test_the_same_data_give_the_same_interval() -> None:
    assert next(speedups(1.1)) == next(speedups(1.1))


def test_blocks_without_variation() -> None:
    still = resample({"steps": [80.0] * 10, "period_ms": [800.0] * 10}, [("period_ms", "steps")])
    assert estimate(lambda sums: sums["period_ms"] / sums["steps"], still).interval == pytest.approx((10, 10))


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ((1.03, 1.30), "better"),
        ((0.70, 0.97), "worse"),
        ((0.99, 1.01), "equal"),
        ((0.95, 1.01), "inconclusive"),
        ((1.005, 1.025), "inconclusive"),
        ((0.90, 1.10), "inconclusive"),
        (None, "inconclusive"),
    ],
)
def test_outcomes(interval: tuple[float, float] | None, expected: str) -> None:
    middle = sum(interval) / 2 if interval else 1.2
    assert outcome(Estimate(middle, interval)) == expected

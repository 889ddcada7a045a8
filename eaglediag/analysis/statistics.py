"""Intervals for ratios of sums over autocorrelated blocks.

The unit is a block of about one second (`capture.model.Blocks`), not a step: steps follow one another too closely to
count as separate evidence. Blocks are still autocorrelated, so runs of neighbouring blocks are resampled together
(circular block bootstrap, Politis and Romano 1992; run length after Carlstein 1986 for the lag-1 autocorrelation that
was found). A percentile interval from few units is too narrow by the factor that Student's t takes care of for a mean;
its arms are stretched by the same factor (after Hesterberg 2015, "expanded percentile").

Two starts of one server may differ by more than a start's blocks do. Where arms were started in turns, the turns' own
values say so: when they lie further apart than blocks explain, their Student interval is the one to believe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Draws = Mapping[str, NDArray[np.float64]]

#: Fixed, so that the same captures always give the same report.
SEED = 20_240_229
DRAWS = 4000
CONFIDENCE = 0.95
#: Fewer blocks than this support no interval at all.
MIN_BLOCKS = 6
#: Fewer effective blocks than this are a pace that changed within the window rather than noise about one pace. A
#: stretch then reaches beyond anything that was measured, so the interval ends at the slowest and the fastest block.
MIN_UNITS = 4.0
#: Fewer turns than this do not show what differs between them.
MIN_TURNS = 3
#: Turns are believed to differ when they lie further apart than blocks alone would put them in this share of cases.
#: That is no proof, which few turns cannot give: to overlook what differs costs coverage, to believe it only width.
TURNS_ALIKE = 0.5


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval. `interval` is None when there were too few blocks to give one."""

    value: float
    interval: tuple[float, float] | None = None
    blocks: int = 0
    effective_n: float = 0.0

    @property
    def low(self) -> float:
        """The interval's lower end, or the value when there is no interval."""
        return self.interval[0] if self.interval else self.value

    @property
    def high(self) -> float:
        """The interval's upper end, or the value when there is no interval."""
        return self.interval[1] if self.interval else self.value


@dataclass(frozen=True)
class Resampled:
    """One arm's blocks: as measured (`columns`), summed (`sums`, arrays of length 1), and resampled sums (`draws`).

    `turns` says in which turn each block was measured: between two turns the server was started anew.
    """

    columns: Draws
    turns: NDArray[np.int64]
    blocks: int
    effective_n: float
    run_length: int
    sums: Draws
    draws: Draws

    @property
    def starts(self) -> list[int]:
        """The turns in which something was measured."""
        return [int(turn) for turn in np.unique(self.turns)]

    def by_start(self, starts: Sequence[int]) -> Draws:
        """The sums of each of these turns."""
        return {
            name: np.array([one[self.turns == turn].sum() for turn in starts]) for name, one in self.columns.items()
        }


def resample(
    columns: Mapping[str, Sequence[float]],
    ratios: Sequence[tuple[str, str]],
    *,
    turns: Sequence[int] = (),
    arm: int = 0,
    draws: int = DRAWS,
) -> Resampled:
    """Resample blocks. `columns` are of equal length, one entry a block, in order of time; so are `turns`, when given.

    `ratios` names the (numerator, denominator) pairs of interest: the most autocorrelated one decides the run length.
    Arms with different `arm` are resampled independently; the same `arm` gives the same draws.
    """
    names = list(columns)
    data = np.array([columns[name] for name in names], dtype=np.float64)
    n = data.shape[1]
    rho = max((_autocorrelation(data[names.index(a)], data[names.index(b)]) for a, b in ratios), default=0.0)
    run = _run_length(rho, n)
    generator = np.random.default_rng([SEED, arm])
    starts = generator.integers(0, max(n, 1), size=(draws, max(1, math.ceil(n / run))))
    # A window of `run` blocks that wraps around, summed for every start at once.
    wrapped = np.concatenate([data, data[:, : run - 1]], axis=1) if n else data
    runs = sum((wrapped[:, i : i + n] for i in range(run)), start=np.zeros((len(names), n)))
    drawn = runs[:, starts].sum(axis=2) if n else np.zeros((len(names), draws))
    return Resampled(
        columns={name: data[i] for i, name in enumerate(names)},
        turns=np.array(turns or [0] * n, dtype=np.int64),
        blocks=n,
        effective_n=n * (1 - rho) / (1 + rho),
        run_length=run,
        sums={name: data[i].sum(keepdims=True) for i, name in enumerate(names)},
        draws={name: drawn[i] for i, name in enumerate(names)},
    )


def estimate(
    statistic: Callable[..., NDArray[np.float64]], *arms: Resampled, undecided: float | None = None
) -> Estimate:
    """A function of the arms' sums with its interval. `statistic` takes one mapping of column to array for each arm.

    `undecided` is the value that says nothing (a speed-up of 1): where blocks are too few to tell, an interval that
    holds it keeps it.
    """
    value = float(statistic(*(arm.sums for arm in arms))[0])
    blocks, effective = min(arm.blocks for arm in arms), min(arm.effective_n for arm in arms)
    if blocks < MIN_BLOCKS:
        return Estimate(value, None, blocks, effective)
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = statistic(*(arm.draws for arm in arms))
    drawn = drawn[np.isfinite(drawn)]
    tail = (1 - CONFIDENCE) / 2
    bounds = np.quantile(drawn, [tail, 1 - tail])
    stretch = max(_stretch(arm) for arm in arms)
    if value > 0 and bounds[0] > 0:
        low, high = (float(value * (bound / value) ** stretch) for bound in bounds)
    else:
        low, high = (float(value + stretch * (bound - value)) for bound in bounds)
    if effective < MIN_UNITS:
        least, most = _range(statistic, arms)
        kept = [value] if undecided is None or not low <= undecided <= high else [value, undecided]
        low, high = max(low, min(least, *kept)), min(high, max(most, *kept))
    return Estimate(value, _by_turn(statistic, arms, value, (low, high)), blocks, effective)


def _by_turn(
    statistic: Callable[..., NDArray[np.float64]],
    arms: Sequence[Resampled],
    value: float,
    by_blocks: tuple[float, float],
) -> tuple[float, float]:
    """The interval by blocks, widened to the one by turns where turns differ."""
    from scipy.special import chdtri, ndtri, stdtrit

    common = sorted(set.intersection(*(set(arm.starts) for arm in arms)))
    if len(common) < MIN_TURNS:
        return by_blocks
    with np.errstate(divide="ignore", invalid="ignore"):
        values = statistic(*(arm.by_start(common) for arm in arms))
    relative = values.min() > 0 and by_blocks[0] > 0
    (low, high), centre = (np.log(by_blocks), math.log(value)) if relative else (by_blocks, value)
    error = float((np.log(values) if relative else values).std(ddof=1)) / math.sqrt(len(common))
    quantile = 1 - (1 - CONFIDENCE) / 2
    expected = (high - low) / 2 / ndtri(quantile)
    freedom = len(common) - 1
    if not error**2 > expected**2 * chdtri(freedom, TURNS_ALIKE) / freedom:
        return by_blocks
    reach = float(stdtrit(freedom, quantile)) * error
    ends = (math.exp(centre - reach), math.exp(centre + reach)) if relative else (centre - reach, centre + reach)
    return min(by_blocks[0], ends[0]), max(by_blocks[1], ends[1])


def _range(statistic: Callable[..., NDArray[np.float64]], arms: Sequence[Resampled]) -> tuple[float, float]:
    """The statistic of single blocks, lowest and highest over every choice of one block from each arm."""
    chosen = np.indices([arm.blocks for arm in arms]).reshape(len(arms), -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        single = statistic(
            *(
                {name: values[which] for name, values in arm.columns.items()}
                for arm, which in zip(arms, chosen, strict=True)
            )
        )
    single = single[np.isfinite(single)]
    return (float(single.min()), float(single.max())) if single.size else (-math.inf, math.inf)


def _autocorrelation(numerator: NDArray[np.float64], denominator: NDArray[np.float64]) -> float:
    """Lag-1 autocorrelation of a ratio's residuals, corrected for its bias in short series, within [0, 0.95]."""
    n = len(numerator)
    if n < MIN_BLOCKS or not denominator.sum():
        return 0.0
    residuals = numerator - numerator.sum() / denominator.sum() * denominator
    variance = float(residuals @ residuals)
    if variance <= 0:
        return 0.0
    rho = float(residuals[1:] @ residuals[:-1]) / variance
    # Marriott and Pope 1954: the estimate is low by about (1 + 4 rho) / n.
    rho += (1 + 4 * rho) / n
    if rho <= 0:
        return 0.0
    # It is uncertain too, and too low costs coverage where too high costs only width: half a standard error more.
    return min(0.95, rho + 0.5 * math.sqrt(max(0.0, 1 - rho * rho) / n))


def _run_length(rho: float, n: int) -> int:
    """Carlstein's run length for a first-order autoregression, at most a quarter of the series."""
    if rho <= 0 or n < MIN_BLOCKS:
        return 1
    length = math.ceil(math.pow(2 * rho / (1 - rho * rho), 2 / 3) * math.pow(n, 1 / 3))
    return max(1, min(n // 4, length))


def _stretch(arm: Resampled) -> float:
    """How much too narrow a percentile interval is: for few independent units, and for what runs cut off.

    Runs of length l keep the share (1 + 2 sum_{k<l} (1 - k/l) rho^k) (1 - rho) / (1 + rho) of the variance of a mean.
    """
    from scipy.special import ndtri, stdtrit

    units = max(arm.effective_n, MIN_UNITS)
    rho = (1 - arm.effective_n / arm.blocks) / (1 + arm.effective_n / arm.blocks)
    kept = 1 + 2 * sum((1 - k / arm.run_length) * rho**k for k in range(1, arm.run_length))
    kept *= (1 - rho) / (1 + rho)
    quantile = 1 - (1 - CONFIDENCE) / 2
    return float(stdtrit(units - 1, quantile) / ndtri(quantile) * math.sqrt(units / (units - 1) / kept))

"""The measured crossing: at which accept length a server that was given accept lengths actually broke even."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from eaglediag.analysis.comparison import Comparison
from eaglediag.analysis.measured import measure
from eaglediag.analysis.pairing import MIN_STEPS, break_even_length
from eaglediag.analysis.statistics import Estimate
from eaglediag.capture.model import Capture


@dataclass(frozen=True)
class Crossing:
    """One concurrency of a sweep: (accept length, speed-up seen) as measured, and where the speed-up crosses 1.

    `measured` is None when the sweep does not reach the crossing. `computed` is cycle / step at that batch size, the
    cycle over all windows of the sweep: what a cycle costs does not depend on how many of its tokens are accepted.
    """

    concurrency: int
    points: tuple[tuple[float, float], ...]
    measured: float | None
    computed: Estimate | None

    @property
    def apart(self) -> float | None:
        """The measured crossing against the computed break-even, as a share of the latter."""
        return None if self.measured is None or self.computed is None else self.measured / self.computed.value - 1


def crossings(candidate: Capture, comparison: Comparison) -> tuple[Crossing, ...]:
    """The crossings of a capture that holds windows with simulated accept lengths; none for any other."""
    rates: dict[int, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for window in candidate.windows:
        if window.simulated_accept_length is not None and window.throughput and window.concurrency is not None:
            rates[window.concurrency][window.simulated_accept_length].append(window.throughput)
    cycles = measure(candidate, arm=1, swept=True).batches
    steps = comparison.baseline.batches
    found = []
    for concurrency, by_length in sorted(rates.items()):
        base = comparison.baseline.loads.get(concurrency)
        if base is None or len(by_length) < 2:
            continue
        points = tuple((length, sum(seen) / len(seen) / base.throughput) for length, seen in sorted(by_length.items()))
        step, cycle = steps.get(concurrency), cycles.get(concurrency)
        computed = None
        if step is not None and cycle is not None and min(step.steps, cycle.steps) >= MIN_STEPS:
            computed = break_even_length(step, cycle)
        found.append(Crossing(concurrency, points, _crossing(points), computed))
    return tuple(found)


def _crossing(points: tuple[tuple[float, float], ...]) -> float | None:
    for (short, slow), (long, fast) in pairwise(points):
        if slow <= 1 <= fast and fast > slow:
            return short + (long - short) * (1 - slow) / (fast - slow)
    return None

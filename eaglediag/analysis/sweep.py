"""The measured crossing: at which accept length a server that was given accept lengths actually broke even."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from eaglediag.analysis.comparison import Comparison
from eaglediag.capture.model import Capture


@dataclass(frozen=True)
class Crossing:
    """One concurrency of a sweep: (accept length, speed-up seen) as measured, and where the speed-up crosses 1.

    `measured` is None when the sweep does not reach the crossing; `computed` is cycle / step at that batch size.
    """

    concurrency: int
    points: tuple[tuple[float, float], ...]
    measured: float | None
    computed: float | None

    @property
    def apart(self) -> float | None:
        """The measured crossing against the computed break-even, as a share of the latter."""
        return None if self.measured is None or self.computed is None else self.measured / self.computed - 1


def crossings(candidate: Capture, comparison: Comparison) -> tuple[Crossing, ...]:
    """The crossings of a capture that holds windows with simulated accept lengths; none for any other."""
    rates: dict[int, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for window in candidate.windows:
        if window.simulated_accept_length is not None and window.throughput and window.concurrency is not None:
            rates[window.concurrency][window.simulated_accept_length].append(window.throughput)
    computed = {row.batch_size: row.break_even.break_even_accept_length for row in comparison.rows if row.break_even}
    found = []
    for concurrency, by_length in sorted(rates.items()):
        base = comparison.baseline.loads.get(concurrency)
        if base is None or len(by_length) < 2:
            continue
        points = tuple((length, sum(seen) / len(seen) / base.throughput) for length, seen in sorted(by_length.items()))
        found.append(Crossing(concurrency, points, _crossing(points), computed.get(concurrency)))
    return tuple(found)


def _crossing(points: tuple[tuple[float, float], ...]) -> float | None:
    for (short, slow), (long, fast) in pairwise(points):
        if slow <= 1 <= fast and fast > slow:
            return short + (long - short) * (1 - slow) / (fast - slow)
    return None

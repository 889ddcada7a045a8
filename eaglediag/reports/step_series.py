"""How long steps took over time, in few enough points to draw: from the raw steps, or from a capture's own blocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from eaglediag.capture.model import Capture
from eaglediag.reports.steps_file import Parcel, Reading, over

#: Raw steps are first summed up in stretches of this many ns.
FINE_NS = 50_000_000
#: A picture has no room for more points.
MAX_POINTS = 240


@dataclass
class Bucket:
    """The steps that began in one stretch of time, all ranks and batch sizes together; times in ms.

    `steps` need not be whole once ranks that take every step together count as one.
    """

    steps: float = 0
    total_ms: float = 0.0
    low_ms: float = field(default=float("inf"))
    high_ms: float = 0.0

    def add(self, other: Bucket) -> None:
        """Put two stretches together."""
        self.steps += other.steps
        self.total_ms += other.total_ms
        self.low_ms = min(self.low_ms, other.low_ms)
        self.high_ms = max(self.high_ms, other.high_ms)

    @property
    def mean_ms(self) -> float:
        """The mean period."""
        return self.total_ms / self.steps


@dataclass(frozen=True)
class Series:
    """(start in Unix seconds, bucket) in order of time; every bucket is `width_s` wide.

    `ranges` says whether a bucket's low and high are those of single steps; blocks only know their own means.
    """

    buckets: tuple[tuple[float, Bucket], ...]
    width_s: float
    ranges: bool
    method: str


def from_steps(path: Path, reading: Reading | None = None) -> Series:
    """The series of a file of raw steps. Raises CaptureError."""
    fine: dict[int, Bucket] = defaultdict(Bucket)
    clocks = set()
    for clock, sums in over(path, _summed, reading):
        clocks.add(clock)
        for place, bucket in sums.items():
            fine[place].add(bucket)
    method = "host_clock" if clocks == {"host_clock"} else "cuda_event"
    return _coarse(fine, FINE_NS / 1e9, ranges=True, method=method)


def from_blocks(capture: Capture) -> Series:
    """The series that the capture itself holds, a point a second."""
    fine: dict[int, Bucket] = defaultdict(Bucket)
    method = ""
    for window in capture.windows:
        for batch in (batch for rank in window.ranks for batch in rank.batches):
            blocks, method = batch.blocks, batch.period_ms.method
            for t, steps, total in zip(blocks.t, blocks.steps, blocks.period_ms, strict=False):
                if steps:
                    fine[int(t)].add(Bucket(steps, total, total / steps, total / steps))
    return _coarse(fine, 1.0, ranges=False, method=method)


def counted_once(series: Series, capture: Capture) -> Series:
    """The same, a step of ranks that take every step together (tensor and pipeline parallel) being one step."""
    group = {rank.rank: rank.dp for rank in capture.instrumentation.ranks}
    once = total = 0
    for window in capture.windows:
        steps: dict[int, int] = {}
        for rank in sorted(window.ranks, key=lambda rank: -rank.rank):
            own = sum(batch.count for batch in rank.batches)
            total += own
            steps[group.get(rank.rank, 0)] = own
        once += sum(steps.values())
    share = once / total if total else 1.0
    scaled = ((t, replace(one, steps=one.steps * share, total_ms=one.total_ms * share)) for t, one in series.buckets)
    return replace(series, buckets=tuple(scaled))


def _summed(parcel: Parcel) -> tuple[str, dict[int, Bucket]]:
    section, steps = parcel.section, parcel.steps()
    steps = steps[(steps["row"] == "step") & steps["phase"].isin(["cycle", "decode"])]
    period_ms = steps["period_device_us"] / 1e3 if section.on_device else steps["period_ns"] / 1e6
    place = (steps["start_ns"] + section.epoch_ns) // FINE_NS
    sums = period_ms.groupby(place).agg(["count", "sum", "min", "max"])
    return section.clock, {int(at): Bucket(int(count), *ms) for at, count, *ms in sums.itertuples() if count}


def _coarse(fine: Mapping[int, Bucket], width_s: float, *, ranges: bool, method: str) -> Series:
    if not fine:
        return Series((), width_s, ranges, method)
    # While a server is started anew there are no steps, and such pauses need no points.
    factor = -(-len(fine) // MAX_POINTS)
    while len({place // factor for place in fine}) > MAX_POINTS:
        factor += max(1, factor // 8)
    coarse: dict[int, Bucket] = defaultdict(Bucket)
    for place, bucket in fine.items():
        coarse[place // factor].add(bucket)
    width = width_s * factor
    return Series(tuple((place * width, coarse[place]) for place in sorted(coarse)), width, ranges, method)

"""The GPUs' clocks, power and clock event reasons over time: what was sampled, and how it is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from operator import or_

from eaglediag.capture.model import GpuSeries
from eaglediag.reports.html.drawing import Canvas, Scale
from eaglediag.reports.html.time_axis import TimeAxis

#: NVML's clock event reasons that slow a GPU down, by bit; idle, application clocks and display do not.
REASONS = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}
MOST_POINTS = 240
#: Labels closer than this touch.
LINE = 13.0


@dataclass(frozen=True)
class Sample:
    """The GPUs at one time on the axis, together; `reasons` has the bits of all of them."""

    at: float
    mhz: tuple[float, ...]
    watts: tuple[float, ...]
    reasons: int


def samples(gpus: Sequence[GpuSeries], axis: TimeAxis) -> Iterator[Sample]:
    """The samples within the measurement, put together in as many stretches as can be drawn."""
    width = max(axis.end / MOST_POINTS, 1e-3)
    rows = []
    for gpu in gpus:
        columns = (gpu.sm_mhz, gpu.power_w, gpu.reasons)
        filled = (column or [None] * len(gpu.t) for column in columns)
        rows += [(axis(t), *row) for t, *row in zip(gpu.t, *filled, strict=False) if axis.holds(t)]
    rows.sort(key=lambda row: row[0])
    for _, members in groupby(rows, key=lambda row: row[0] // width):
        found = list(members)
        yield Sample(
            at=found[0][0],
            mhz=tuple(mhz for _, mhz, _, _ in found if mhz is not None),
            watts=tuple(watts for _, _, watts, _ in found if watts is not None),
            reasons=reduce(or_, (int(reasons or 0) for *_, reasons in found)),
        )


def slowing(found: Iterable[Sample]) -> str:
    """The reasons that slowed them down, in words."""
    seen = reduce(or_, (one.reasons for one in found), 0)
    return ", ".join(name for bit, name in REASONS.items() if seen & bit)


def in_words(found: Sequence[Sample]) -> str:
    """Clocks, power and reasons; "" when nothing was sampled."""
    mhz = [value for one in found for value in one.mhz]
    watts = [value for one in found for value in one.watts]
    slowed = slowing(found)
    parts = (span(mhz, "MHz"), span(watts, "W a GPU"), f"slowed by {slowed}" if slowed else "")
    return ", ".join(part for part in parts if part)


def span(values: Sequence[float], unit: str) -> str:
    """`1410 to 1980 MHz`, or `1980 MHz`; "" without values."""
    if not values:
        return ""
    ends = dict.fromkeys((f"{min(values):.0f}", f"{max(values):.0f}"))
    return f"{' to '.join(ends)} {unit}"


def panel(canvas: Canvas, found: Sequence[Sample], x: Scale, top: float, bottom: float, i: int, title: str) -> None:
    """Clocks (line 1) or power (line 2), labelled where they are lowest and highest."""
    picked = ((one.at, one.mhz if i == 1 else one.watts) for one in found)
    seen = [(x(at), values) for at, values in picked if values]
    low, high = min(min(values) for _, values in seen), max(max(values) for _, values in seen)
    room = max(0.08 * (high - low), 0.02 * high, 1.0)
    y = Scale(max(0.0, low - room), high + room, bottom, top)
    canvas.text(0, top - 10, title, "label")
    ends = {f"{value:.4g}": value for value in (low, high)}
    # Labels that would touch are moved apart.
    shift = max(0.0, LINE - (y(low) - y(high))) / 2 if len(ends) > 1 else 0.0
    for (label, value), moved in zip(ends.items(), (shift, -shift), strict=False):
        canvas.line((x.start, y(value)), (x.end, y(value)), "grid")
        canvas.text(x.start - 6, y(value) + 4 + moved, label, "tick", "end")
    canvas.area(
        [(at, y(max(values))) for at, values in seen], [(at, y(min(values))) for at, values in seen], f"band key{i}"
    )
    canvas.path([(at, y(sum(values) / len(values))) for at, values in seen], f"line line{i} key{i}")


def strip(canvas: Canvas, found: Sequence[Sample], bit: int, x: Scale, y: float) -> None:
    """Where one reason held: neighbouring samples become one bar."""
    for held, members in groupby(enumerate(found), key=lambda one: bool(one[1].reasons & bit)):
        run = [i for i, _ in members]
        if held:
            after = found[min(run[-1] + 1, len(found) - 1)].at
            start = found[run[0]].at
            canvas.rect(x(start), y, x(after) - x(start), 7, "reason", f"{REASONS[bit]}: {start:.1f} to {after:.1f} s")

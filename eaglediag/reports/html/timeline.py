"""Steps over time with the GPUs' clocks, power and clock event reasons under them on the same axis."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

from markupsafe import Markup

from eaglediag.analysis.figures import number
from eaglediag.capture.model import GpuSeries, Window
from eaglediag.reports.html.drawing import Canvas, Scale
from eaglediag.reports.html.figure import METHODS, Figure, Side
from eaglediag.reports.step_series import Bucket, Series
from eaglediag.reports.tables import Table

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
#: What is drawn of a pause between two starts of the server, as a share of the time measured.
PAUSE = 0.04
#: A table has room for so many lines.
MOST_LINES = 120


def figure(side: Side, number_: int) -> Figure | None:
    """The figure of one arm, or None when it recorded no steps over time."""
    if not side.series.buckets:
        return None
    capture = side.capture
    axis = _Axis(side.series, capture.windows)
    series = replace(side.series, buckets=tuple((axis(t), bucket) for t, bucket in side.series.buckets))
    starts = [axis.start(t) for t, _ in side.series.buckets]
    gpus = [gpu.series for host in capture.hosts for gpu in host.gpus if gpu.series.t]
    samples = list(_samples(gpus, axis))
    said = _said(series, samples, len(gpus))

    def draw(name: str, width: float) -> Markup:
        return _picture(name, width, capture.windows, series, starts, samples, axis, said)

    return Figure(
        name=f"timeline{number_}",
        title=f"{capture.arm}: steps over time" + (", and the GPUs" if samples else ""),
        says=f"{said}.",
        draw=draw,
        table=_table(series, samples),
        measured=(
            f"Mean period of the steps that began in each {series.width_s:g} s, all ranks and batch sizes together: "
            f"{METHODS.get(series.method, 'not known')}"
            + (", from the raw steps; the band is from the fastest to the slowest. " if series.ranges else ". ")
            + ("Clocks, power and reasons: NVML samples." if samples else "The GPUs' state was not sampled.")
        ),
        findings=("gpu_state", "agent_costly", "ranks_skewed"),
        keys=(
            ("line line0 key0", "mean period"),
            *((("swatch band key0", "fastest to slowest step"),) if series.ranges else ()),
            *((("line line1 key1", "SM clock, mean of the GPUs"), ("line line2 key2", "power")) if samples else ()),
        ),
    )


class _Axis:
    """Seconds from the first window. Of the pauses in which the server was started anew, next to nothing is drawn."""

    def __init__(self, series: Series, windows: Sequence[Window]) -> None:
        measured = [window for window in windows if window.ranks]
        begins: dict[int, float] = {}
        for window in measured:
            begins[window.repeat] = min(window.started, begins.get(window.repeat, math.inf))
        self.begins = sorted(begins.values()) or [math.inf]
        # A bucket may begin before the window whose steps it holds.
        self._slack = series.width_s
        for t, _ in series.buckets:
            start = self.start(t)
            self.begins[start] = min(self.begins[start], t)
        ends = list(self.begins)
        for begin, length in (
            *((window.started, window.duration_s) for window in measured),
            *((t, series.width_s) for t, _ in series.buckets),
        ):
            start = self.start(begin)
            ends[start] = max(ends[start], begin + length)
        self.lengths = [end - begin for begin, end in zip(self.begins, ends, strict=True)]
        self.pause = PAUSE * sum(self.lengths)
        self.shown = [sum(self.lengths[:i]) + i * self.pause for i in range(len(self.lengths))]
        self.end = self.shown[-1] + self.lengths[-1]

    def __call__(self, t: float) -> float:
        start = self.start(t)
        return self.shown[start] + min(t - self.begins[start], self.lengths[start] + self.pause)

    def holds(self, t: float) -> bool:
        """Whether it lies between the first and the last thing measured of a start."""
        start = self.start(t)
        return 0 <= t - self.begins[start] <= self.lengths[start]

    def start(self, t: float) -> int:
        """Which start of the server it was, the first being 0."""
        return max(0, bisect_right(self.begins, t + self._slack) - 1)


class _Sample:
    """The GPUs at one time, together; `rows` hold (MHz, W, reasons) of one sample each."""

    def __init__(self, at: float, rows: Sequence[Sequence[Any]]) -> None:
        self.at = at
        self.mhz = [mhz for mhz, _, _ in rows if mhz is not None]
        self.watts = [watts for _, watts, _ in rows if watts is not None]
        self.reasons = 0
        for _, _, reasons in rows:
            self.reasons |= reasons or 0

    @property
    def named(self) -> str:
        """The reasons that slow down, in words."""
        return ", ".join(name for bit, name in REASONS.items() if self.reasons & bit)


def _samples(gpus: Sequence[GpuSeries], axis: _Axis) -> Iterator[_Sample]:
    """The samples within the measurement, put together in as many stretches as can be drawn."""
    width = max(axis.end / MOST_POINTS, 1e-3)
    rows = []
    for gpu in gpus:
        columns = (gpu.sm_mhz, gpu.power_w, gpu.reasons)
        filled = (column or [None] * len(gpu.t) for column in columns)
        rows += [(axis(t), row) for t, *row in zip(gpu.t, *filled, strict=False) if axis.holds(t)]
    rows.sort(key=lambda row: row[0])
    for _, members in groupby(rows, key=lambda row: row[0] // width):
        found = list(members)
        yield _Sample(found[0][0], [row for _, row in found])


def _said(series: Series, samples: Sequence[_Sample], gpus: int) -> str:
    buckets = [bucket for _, bucket in series.buckets]
    steps = sum(bucket.steps for bucket in buckets)
    low, high = min(bucket.mean_ms for bucket in buckets), max(bucket.mean_ms for bucket in buckets)
    said = f"{steps} steps, {number(low)} to {number(high)} ms on average in a stretch"
    if not samples:
        return said
    clocks = [mhz for sample in samples for mhz in sample.mhz]
    slowed = sorted({name for sample in samples for name in sample.named.split(", ") if name})
    said += f"; {gpus} GPUs" if gpus > 1 else "; the GPU"
    said += f" at {min(clocks):.0f} to {max(clocks):.0f} MHz" if clocks else " without clock samples"
    return said + (f", slowed by {', '.join(slowed)}" if slowed else ", never slowed")


def _table(series: Series, samples: Sequence[_Sample]) -> Table:
    rows = []
    every = -(-len(series.buckets) // MOST_LINES)
    for i in range(0, len(series.buckets), every):
        whole = Bucket()
        for _, bucket in series.buckets[i : i + every]:
            whole.add(bucket)
        at = series.buckets[i][0]
        last = series.buckets[min(i + every, len(series.buckets)) - 1][0] + series.width_s
        seen = [sample for sample in samples if at <= sample.at < last]
        mhz = [value for sample in seen for value in sample.mhz]
        watts = [value for sample in seen for value in sample.watts]
        named = sorted({name for sample in seen for name in sample.named.split(", ") if name})
        rows.append(
            (
                f"{at:.2f}",
                str(whole.steps),
                number(whole.mean_ms),
                f"{number(whole.low_ms)} to {number(whole.high_ms)}" if series.ranges else "–",
                f"{min(mhz):.0f} to {max(mhz):.0f}" if mhz else "–",
                f"{sum(watts) / len(watts):.0f}" if watts else "–",
                ", ".join(named) or "–",
            )
        )
    headers = ("time, s", "steps", "mean, ms", "range, ms", "SM clock, MHz", "power a GPU, W", "slowed by")
    return Table("over time", headers, tuple(rows))


def _picture(
    name: str,
    width: float,
    windows: Sequence[Window],
    series: Series,
    starts: Sequence[int],
    samples: Sequence[_Sample],
    axis: _Axis,
    said: str,
) -> Markup:
    reasons = [bit for bit in REASONS if any(sample.reasons & bit for sample in samples)]
    left, right, top, bottom = 48.0, width - 12, 40.0, 210.0
    clocks = samples and any(sample.mhz for sample in samples)
    power = samples and any(sample.watts for sample in samples)
    height = bottom + 44 + (100 if clocks else 0) + (100 if power else 0) + (24 * len(reasons) + 12 if reasons else 0)
    x = Scale(0.0, axis.end, left, right)
    canvas = Canvas(name, width, height)
    floor = height - 44
    for i, window in enumerate(windows):
        if not window.ranks or not axis.holds(window.started):
            continue
        start = x(axis(window.started))
        stop = x(axis(window.started) + window.duration_s)
        tip = f"window {window.id}, concurrency {window.concurrency}"
        canvas.rect(start, top, stop - start, floor - top, f"window{i % 2}", tip)
        if stop - start > 24:
            canvas.text((start + stop) / 2, top - 6, f"c{window.concurrency}", "note", "middle")
    for number_, shown in enumerate(axis.shown if len(axis.shown) > 1 else (), start=1):
        canvas.line((x(shown), top), (x(shown), floor), "grid", f"start {number_} of the server")
        canvas.text(x(shown) + 3, top + 10, f"start {number_}", "note")
    _steps(canvas, series, starts, x, top, bottom)
    at = bottom
    for there, i, title, pick in ((clocks, 1, "SM clock, MHz", "mhz"), (power, 2, "power a GPU, W", "watts")):
        if there:
            _samples_panel(canvas, samples, x, at + 40, at + 92, i, title, pick)
            at += 100
    for bit in reasons:
        canvas.text(left, at + 20, REASONS[bit], "note")
        canvas.line((left, at + 26), (right, at + 26), "grid")
        _strip(canvas, samples, bit, x, at + 22)
        at += 24
    pauses = ", without the pauses between starts" if len(axis.shown) > 1 else ""
    canvas.x_axis(x, floor, f"seconds from the first window{pauses}")
    return canvas.svg("Steps over time", said)


def _steps(canvas: Canvas, series: Series, starts: Sequence[int], x: Scale, top: float, bottom: float) -> None:
    highest = max(bucket.mean_ms for _, bucket in series.buckets)
    tallest = max(bucket.high_ms for _, bucket in series.buckets)
    y = Scale(0.0, min(tallest, 2.5 * highest) * 1.05, bottom, top)
    canvas.y_axis(y, x.start, x.end, "ms a step" + (f" (up to {number(tallest)})" if tallest > y.high else ""))
    for run in _runs(series, starts):
        middle = [(x(t + series.width_s / 2), bucket) for t, bucket in run]
        if series.ranges:
            upper = [(at, y(bucket.high_ms)) for at, bucket in middle]
            lower = [(at, y(bucket.low_ms)) for at, bucket in middle]
            canvas.area(upper, lower, "band key0")
        canvas.path([(at, y(bucket.mean_ms)) for at, bucket in middle], "line line0 key0")
        if len(middle) == 1:
            canvas.mark(middle[0][0], y(middle[0][1].mean_ms), 0, "key0 small", "")
    for t, bucket in series.buckets:
        start = x(t)
        tip = f"{t:.1f} s: {bucket.steps} steps, mean {number(bucket.mean_ms)} ms"
        if series.ranges:
            tip += f", {number(bucket.low_ms)} to {number(bucket.high_ms)}"
        canvas.rect(start, top, x(t + series.width_s) - start, bottom - top, "hover", tip)


def _runs(series: Series, starts: Sequence[int]) -> list[list[tuple[float, Bucket]]]:
    """The buckets, broken where nothing was recorded and where the server was started anew."""
    runs = [[series.buckets[0]]]
    for (before, first), (now, second) in pairwise(zip(series.buckets, starts, strict=True)):
        if second != first or now[0] - before[0] > 2.5 * series.width_s:
            runs.append([])
        runs[-1].append(now)
    return runs


def _samples_panel(
    canvas: Canvas, samples: Sequence[_Sample], x: Scale, top: float, bottom: float, i: int, title: str, pick: str
) -> None:
    seen = [(x(sample.at), values) for sample in samples if (values := getattr(sample, pick))]
    low, high = min(min(values) for _, values in seen), max(max(values) for _, values in seen)
    room = max(0.08 * (high - low), 0.02 * high, 1.0)
    y = Scale(max(0.0, low - room), high + room, bottom, top)
    canvas.y_axis(y, x.start, x.end, title, 2)
    canvas.area(
        [(at, y(max(values))) for at, values in seen], [(at, y(min(values))) for at, values in seen], f"band key{i}"
    )
    canvas.path([(at, y(sum(values) / len(values))) for at, values in seen], f"line line{i} key{i}")


def _strip(canvas: Canvas, samples: Sequence[_Sample], bit: int, x: Scale, y: float) -> None:
    """Where one reason held: neighbouring samples become one bar."""
    for held, members in groupby(enumerate(samples), key=lambda one: bool(one[1].reasons & bit)):
        run = [i for i, _ in members]
        if held:
            after = samples[min(run[-1] + 1, len(samples) - 1)].at
            start = samples[run[0]].at
            tip = f"{REASONS[bit]}: {start:.1f} to {after:.1f} s"
            canvas.rect(x(start), y, x(after) - x(start), 7, "reason", tip)

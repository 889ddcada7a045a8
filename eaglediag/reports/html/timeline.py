"""Steps over time with the GPUs' clocks, power and clock event reasons under them on the same axis."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from markupsafe import Markup

from eaglediag.analysis.figures import number
from eaglediag.capture.model import Window
from eaglediag.reports.html import gpus
from eaglediag.reports.html.drawing import Canvas, Scale, sample, swatch
from eaglediag.reports.html.figure import METHODS, Figure, Side
from eaglediag.reports.html.time_axis import TimeAxis, stretches
from eaglediag.reports.step_series import Bucket, Series, counted_once
from eaglediag.reports.tables import Table

#: A table has room for so many lines.
MOST_LINES = 120
#: The room that a window's label needs.
LABEL = 24.0


@dataclass(frozen=True)
class Drawn:
    """What is drawn of one arm. The buckets of `series` are on the axis; `starts` says of which start each is."""

    windows: Sequence[Window]
    axis: TimeAxis
    series: Series
    starts: Sequence[int]
    samples: Sequence[gpus.Sample]

    def seen(self, at: float, end: float) -> Sequence[gpus.Sample]:
        """The samples from `at` to `end` on the axis; without any, the last one before."""
        times = [one.at for one in self.samples]
        first, last = bisect_left(times, at), bisect_left(times, end)
        return self.samples[first if first < last else max(0, last - 1) : last]


def figure(side: Side, number_: int) -> Figure | None:
    """The figure of one arm, or None when it recorded no steps over time."""
    if not side.series.buckets:
        return None
    capture = side.capture
    axis = TimeAxis(side.series, capture.windows)
    series = counted_once(side.series, capture)
    devices = [gpu.series for host in capture.hosts for gpu in host.gpus if gpu.series.t]
    drawn = Drawn(
        windows=capture.windows,
        axis=axis,
        series=replace(series, buckets=tuple((axis(t), bucket) for t, bucket in series.buckets)),
        starts=[axis.start(t) for t, _ in series.buckets],
        samples=list(gpus.samples(devices, axis)),
    )
    said = _said(drawn, len(devices))

    def draw(name: str, width: float) -> Markup:
        return _picture(name, width, drawn, said)

    sampled = bool(drawn.samples)
    return Figure(
        name=f"timeline{number_}",
        title=f"{capture.arm}: steps over time" + (", and the GPUs" if sampled else ""),
        says=f"{said}.",
        draw=draw,
        table=_table(drawn),
        measured=(
            f"Mean period of the steps that began in each {series.width_s:g} s, all ranks and batch sizes together, a "
            f"step that ranks take together being one: {METHODS.get(series.method, 'not known')}"
            + (", from the raw steps; the band is from the fastest to the slowest. " if series.ranges else ". ")
            + ("Clocks, power and reasons: NVML samples." if sampled else "The GPUs' state was not sampled.")
        ),
        findings=("gpu_state", "agent_costly", "ranks_skewed"),
        keys=(
            (sample(0), "mean period"),
            *(((swatch("band key0"), "fastest to slowest step"),) if series.ranges else ()),
            *(((sample(1), "SM clock, mean of the GPUs"), (sample(2), "power")) if sampled else ()),
        ),
    )


def _said(drawn: Drawn, devices: int) -> str:
    buckets = [bucket for _, bucket in drawn.series.buckets]
    steps = sum(bucket.steps for bucket in buckets)
    low, high = min(bucket.mean_ms for bucket in buckets), max(bucket.mean_ms for bucket in buckets)
    said = f"{steps:.0f} steps, {number(low)} to {number(high)} ms on average in a stretch"
    if not drawn.samples:
        return said
    clocks = [mhz for one in drawn.samples for mhz in one.mhz]
    slowed = gpus.slowing(drawn.samples)
    said += f"; {devices} GPUs" if devices > 1 else "; the GPU"
    said += f" at {gpus.span(clocks, 'MHz')}" if clocks else " without clock samples"
    return said + (f", slowed by {slowed}" if slowed else ", never slowed")


def _table(drawn: Drawn) -> Table:
    rows = []
    series = drawn.series
    every = -(-len(series.buckets) // MOST_LINES)
    for i in range(0, len(series.buckets), every):
        whole = Bucket()
        for _, bucket in series.buckets[i : i + every]:
            whole.add(bucket)
        at = series.buckets[i][0]
        last = series.buckets[min(i + every, len(series.buckets)) - 1][0] + series.width_s
        seen = drawn.seen(at, last)
        mhz = [value for one in seen for value in one.mhz]
        watts = [value for one in seen for value in one.watts]
        rows.append(
            (
                f"{at:.2f}",
                f"{whole.steps:.0f}",
                number(whole.mean_ms),
                f"{number(whole.low_ms)} to {number(whole.high_ms)}" if series.ranges else "–",
                f"{min(mhz):.0f} to {max(mhz):.0f}" if mhz else "–",
                f"{sum(watts) / len(watts):.0f}" if watts else "–",
                gpus.slowing(seen) or "–",
            )
        )
    headers = ("time, s", "steps", "mean, ms", "range, ms", "SM clock, MHz", "power a GPU, W", "slowed by")
    return Table("over time", headers, tuple(rows))


def _picture(name: str, width: float, drawn: Drawn, said: str) -> Markup:
    samples = drawn.samples
    reasons = [bit for bit in gpus.REASONS if any(one.reasons & bit for one in samples)]
    left, right, top, bottom = 48.0, width - 12, 48.0, 218.0
    panels = [
        (i, title)
        for i, title, there in (
            (1, "SM clock, MHz", any(one.mhz for one in samples)),
            (2, "power a GPU, W", any(one.watts for one in samples)),
        )
        if there
    ]
    height = bottom + 44 + 100 * len(panels) + (24 * len(reasons) + 12 if reasons else 0)
    x = Scale(0.0, drawn.axis.end, left, right)
    canvas = Canvas(name, width, height)
    floor = height - 44
    _windows(canvas, drawn, x, top, floor)
    _starts(canvas, drawn, x, top, bottom, floor)
    _steps(canvas, drawn, x, top, bottom)
    at = bottom
    for i, title in panels:
        gpus.panel(canvas, samples, x, at + 40, at + 92, i, title)
        at += 100
    _hovers(canvas, drawn, x, top, floor)
    for bit in reasons:
        canvas.text(left, at + 18, gpus.REASONS[bit], "note")
        canvas.line((left, at + 26), (right, at + 26), "grid")
        gpus.strip(canvas, samples, bit, x, at + 22)
        at += 24
    title = "seconds from the first window" if width > 500 else "seconds"
    pauses = ", pauses between starts left out" if len(drawn.axis.shown) > 1 else ""
    canvas.x_axis(x, floor, title + pauses)
    return canvas.svg("Steps over time", said)


def _windows(canvas: Canvas, drawn: Drawn, x: Scale, top: float, floor: float) -> None:
    """When which load ran."""
    axis = drawn.axis
    labels: dict[float, str] = {}
    for i, window in enumerate(drawn.windows):
        load = "" if window.concurrency is None else f"c{window.concurrency}"
        for begin, end in stretches(window) if window.ranks else ():
            if not axis.holds(begin):
                continue
            start, stop = x(axis(begin)), x(axis(begin) + end - begin)
            tip = f"window {window.id}" + (f", concurrency {window.concurrency}" if load else "")
            canvas.rect(start, top, stop - start, floor - top, f"window{i % 2}", tip)
            if stop - start > LABEL and load:
                labels[(start + stop) / 2] = load
    last = -LABEL
    for at, load in sorted(labels.items()):
        if at - last > LABEL:
            canvas.text(at, top - 6, load, "note", "middle")
            last = at


def _starts(canvas: Canvas, drawn: Drawn, x: Scale, top: float, bottom: float, floor: float) -> None:
    """Where the server was started anew; its name stands where steps that take no time would be."""
    shown = drawn.axis.shown
    for i, at in enumerate(shown if len(shown) > 1 else (), start=1):
        canvas.line((x(at), top), (x(at), floor), "grid", f"start {i} of the server")
        canvas.text(x(at) + 3, bottom - 6, f"start {i}", "note")


def _steps(canvas: Canvas, drawn: Drawn, x: Scale, top: float, bottom: float) -> None:
    series = drawn.series
    highest = max(bucket.mean_ms for _, bucket in series.buckets)
    tallest = max(bucket.high_ms for _, bucket in series.buckets)
    y = Scale(0.0, min(tallest, 2.5 * highest) * 1.05, bottom, top)
    title = "ms a step" + (f" (up to {number(tallest)})" if tallest > y.high else "")
    # The windows' concurrencies stand between the title and the panel.
    canvas.y_axis(y, x.start, x.end, title, above=24)
    for run in _runs(drawn):
        middle = [(x(t + series.width_s / 2), bucket) for t, bucket in run]
        if series.ranges:
            upper = [(at, y(bucket.high_ms)) for at, bucket in middle]
            lower = [(at, y(bucket.low_ms)) for at, bucket in middle]
            canvas.area(upper, lower, "band key0")
        canvas.path([(at, y(bucket.mean_ms)) for at, bucket in middle], "line line0 key0")
        if len(middle) == 1:
            canvas.mark(middle[0][0], y(middle[0][1].mean_ms), 0, "key0", "", 0.7)


def _hovers(canvas: Canvas, drawn: Drawn, x: Scale, top: float, floor: float) -> None:
    """What was measured in each stretch, all panels together, where the pointer rests."""
    series = drawn.series
    for t, bucket in series.buckets:
        start = x(t)
        tip = f"{t:.1f} s: {bucket.steps:.0f} steps, mean {number(bucket.mean_ms)} ms"
        if series.ranges:
            tip += f", {number(bucket.low_ms)} to {number(bucket.high_ms)}"
        state = gpus.in_words(drawn.seen(t, t + series.width_s))
        canvas.rect(
            start, top, x(t + series.width_s) - start, floor - top, "hover", tip + (f"; {state}" if state else "")
        )


def _runs(drawn: Drawn) -> list[list[tuple[float, Bucket]]]:
    """The buckets, broken where nothing was recorded and where the server was started anew."""
    buckets = drawn.series.buckets
    runs = [[buckets[0]]]
    for (before, first), (now, second) in pairwise(zip(buckets, drawn.starts, strict=True)):
        if second != first or now[0] - before[0] > 2.5 * drawn.series.width_s:
            runs.append([])
        runs[-1].append(now)
    return runs

"""Speed-up against accept length: where speculation begins to pay, and where this run stands."""

from __future__ import annotations

from markupsafe import Markup

from eaglediag.analysis.figures import estimate, interval
from eaglediag.analysis.pairing import Row
from eaglediag.reports.html.drawing import Canvas, Scale, rule, sample
from eaglediag.reports.html.estimates import explained, reach, titled
from eaglediag.reports.html.figure import Figure, Material, method_of
from eaglediag.reports.tables import break_evens

#: More lines than this cannot be told apart.
MOST = 4


def figure(material: Material) -> Figure | None:
    """The figure, or None when there is no break-even to draw."""
    judged = [row for row in material.rows if row.break_even is not None and row.break_even_length is not None]
    if not judged or material.comparison is None:
        return None
    shown = judged if len(judged) <= MOST else [judged[round(i * (len(judged) - 1) / (MOST - 1))] for i in range(MOST)]
    said = ". ".join(_said(row) for row in shown)

    def draw(name: str, width: float) -> Markup:
        return _picture(name, width, shown, said)

    return Figure(
        name="speedup",
        title="Speed-up against accept length",
        says=f"A line is what a cycle of its cost yields at any accept length; it crosses 1 at break-even. {said}.",
        draw=draw,
        table=break_evens(material.comparison),
        measured=f"Cycle and step: {method_of(material.candidate.capture)}. {_intervals(shown)}"
        "Accept length: recorded verify passes, bonus token counted.",
        findings=("cannot_win", "below_break_even", "first_to_blame"),
        keys=(
            *((sample(i, marked=True), f"batch {row.batch_size}") for i, row in enumerate(shown)),
            (rule("even"), "as fast as plain decoding"),
        ),
    )


def _said(row: Row) -> str:
    said = f"At batch {row.batch_size} break-even is {interval(row.break_even_length)} tokens"
    if row.candidate.accept_length is None:
        return f"{said}; how many are reached is not known"
    said += f" and {interval(row.candidate.accept_length)} are reached: speed-up {interval(row.speedup)}"
    return said + (f"; its requests saw {interval(row.seen)}" if row.decisive is row.seen else "")


def _intervals(rows: list[Row]) -> str:
    """What the bars and the band are, if there are any."""
    by_blocks = [value for row in rows for value in (row.break_even_length, row.speedup, row.candidate.accept_length)]
    by_requests = [row.seen for row in rows if row.decisive is row.seen]
    return explained(
        [value for value in by_blocks if value],
        "The band and the bars are 95 % intervals, resampled by blocks of about a second. ",
    ) + explained(
        [value for value in by_requests if value],
        "Too few blocks for an interval: such a speed-up is the one its requests saw, resampled by request. ",
    )


def _picture(name: str, width: float, rows: list[Row], said: str) -> Markup:
    height, left, top, bottom = 320.0, 44.0, 34.0, 272.0
    most = max((row.break_even.max_accept_length or 0 for row in rows if row.break_even), default=0)
    needed = max(row.break_even_length.high for row in rows if row.break_even_length)
    reached = max((row.candidate.accept_length.high for row in rows if row.candidate.accept_length), default=1.0)
    high = max(most + 0.5, min(needed * 1.08, 3 * max(most, reached, 2.0)), reached * 1.1, 2.0)
    stands = [row.decisive for row in rows if row.candidate.accept_length]
    tallest = max(1.25, 1.12 * reach(stands) if stands else 0.0)
    x, y = Scale(1.0, high, left, width - 16), Scale(0.0, tallest, bottom, top)
    canvas = Canvas(name, width, height)
    if most and most < high:
        canvas.rect(x(most), top, x(high) - x(most), bottom - top, "beyond", f"more than {most} tokens cannot come out")
        canvas.text(x(high) - 4, bottom - 20, f"beyond {most}: impossible", "note", "end")
    canvas.y_axis(y, left, width - 16, titled("speed-up, ×", y, stands))
    canvas.x_axis(x, bottom, "accept length, tokens per verify pass")
    canvas.line((left, y(1)), (width - 16, y(1)), "even", "break-even: as fast as without speculation")
    for i, row in enumerate(rows):
        _line(canvas, i, row, x, y, tallest)
    _labels(canvas, rows, x, y)
    return canvas.svg("Speed-up against accept length", said)


def _line(canvas: Canvas, i: int, row: Row, x: Scale, y: Scale, tallest: float) -> None:
    assert row.break_even_length is not None
    even = row.break_even_length

    def ray(length: float) -> list[tuple[float, float]]:
        end = min(x.high, tallest * length)
        return [(x(1.0), y(1.0 / length)), (x(end), y(end / length))]

    if even.interval and i == 0:
        grid = [x.low + (x.high - x.low) * step / 24 for step in range(25)]
        upper = [(x(t), y(t / max(even.low, 1e-9))) for t in grid]
        lower = [(x(t), y(t / even.high)) for t in grid]
        canvas.area(upper, lower, f"band key{i}", f"batch {row.batch_size}: 95 % interval")
    canvas.path(ray(even.value), f"line line{i} key{i}")
    if x.low <= even.value <= x.high:
        canvas.line((x(even.value), y(1)), (x(even.value), y.start), f"drop key{i}")
        canvas.mark(
            x(even.value), y(1), i, "crossing", f"batch {row.batch_size}: break-even at {interval(even)} tokens"
        )
        if i == 0:
            # Where the axis reaches far, break-even lies too low for a label under it.
            foot = y.start - 6 if y(1) < y.start - 24 else y(1) - 10
            canvas.beside(x(even.value), foot, f"τ* {estimate(even)}", "note", 4)
    accepted = row.candidate.accept_length
    if accepted is None:
        return
    at = (x(accepted.value), y(row.decisive.value))
    if row.decisive.interval:
        canvas.line((at[0], y(row.decisive.low)), (at[0], y(row.decisive.high)), f"whisker key{i}")
    if accepted.interval:
        canvas.line((x(accepted.low), at[1]), (x(accepted.high), at[1]), f"whisker key{i}")
    canvas.mark(*at, i, f"key{i}", _said(row))


def _labels(canvas: Canvas, rows: list[Row], x: Scale, y: Scale) -> None:
    """Each run's speed-up beside its point, from the lowest up, far enough apart to be read."""
    below = y.start
    for row in sorted(rows, key=lambda row: row.decisive.value):
        if row.candidate.accept_length is None:
            continue
        below = min(y(row.decisive.value) + 14, below - 15)
        words = f"batch {row.batch_size}: ×{estimate(row.decisive)}"
        canvas.beside(x(row.candidate.accept_length.value), below, words, "value", 10)

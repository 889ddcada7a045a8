"""Acceptance by position in the chain, and how the accept lengths are distributed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from markupsafe import Markup

from eaglediag.analysis.figures import interval, number, percent
from eaglediag.analysis.findings.acceptance import by_position
from eaglediag.analysis.measured import BatchCost
from eaglediag.reports.html.drawing import CHARACTER, Canvas, Scale
from eaglediag.reports.html.figure import METHODS, Figure, Material
from eaglediag.reports.tables import Table

#: The agent marks what it recorded by how it took times, which accept lengths have no part in.
ON_HOST = ("host_clock", "cuda_event")
#: More bars than this no screen shows.
MOST = 64


@dataclass(frozen=True)
class Bar:
    """One bar of a panel: what it stands for, its share of 1, and the passes behind it."""

    place: int
    share: float
    passes: int


def figure(material: Material) -> Figure | None:
    """The figure of the candidate's smallest batch size with recorded accept lengths, or None when there are none."""
    costs = [row.candidate for row in material.rows] or list(material.candidate.arm.batches.values())
    told = [cost for cost in costs if sum(cost.histogram)]
    if not told:
        return None
    main = told[0]
    speculation = material.candidate.capture.server.speculation
    most = (speculation.max_accept_length if speculation else None) or 0
    positions, lengths = panels(main, most)
    said = (
        f"At batch {main.batch_size}, {sum(main.histogram)} verify passes emitted {interval(main.accept_length)} "
        "tokens each; a draft is accepted, when those before it were, "
        + ", ".join(f"{percent(bar.share)} of the time at position {bar.place}" for bar in positions[:6])
    )
    if len(lengths) > MOST:
        said += f". The picture ends at {MOST}; of {len(lengths)} accept lengths the table has all"

    def draw(name: str, width: float) -> Markup:
        return _picture(name, width, positions, lengths, said)

    return Figure(
        name="acceptance",
        title="Acceptance by position, and the distribution of accept lengths",
        says=f"{said}.",
        draw=draw,
        table=_table(told, most),
        measured=f"{_recorded(material)}, one accept length for each request of each verify pass; the bonus "
        "token is counted in the accept length and is no position of the chain.",
        findings=("acceptance", "lossy_acceptance", "simulated_acceptance"),
    )


def panels(cost: BatchCost, most: int) -> tuple[list[Bar], list[Bar]]:
    """(acceptance by position, accept lengths), up to `most` tokens a pass even where they never occurred."""
    histogram = [*cost.histogram, *[0] * max(0, most - len(cost.histogram))]
    passes = sum(histogram)
    reached = [sum(histogram[i:]) for i in range(len(histogram))]
    positions = [Bar(i, rate, reached[i - 1]) for i, rate in enumerate(by_position(histogram), start=1)]
    return positions, [Bar(i, count / passes, count) for i, count in enumerate(histogram, start=1)]


def _recorded(material: Material) -> str:
    """Where the accept lengths are from, in words."""
    for window in material.candidate.capture.windows:
        for rank in window.ranks:
            for batch in rank.batches:
                if batch.accept is not None:
                    return "what verify returned" if batch.accept.method in ON_HOST else METHODS[batch.accept.method]
    return METHODS["derived"]


def _table(costs: list[BatchCost], most: int) -> Table:
    rows = []
    for cost in costs:
        positions, lengths = panels(cost, most)
        rates = {bar.place: bar.share for bar in positions}
        for bar in lengths:
            rows.append(
                (
                    str(cost.batch_size),
                    str(bar.place),
                    str(bar.passes),
                    percent(bar.share),
                    percent(rates[bar.place]) if bar.place in rates else "–",
                )
            )
    return Table(
        "acceptance",
        ("batch", "accept length n, tokens", "passes that emitted n", "share", "draft n accepted when reached"),
        tuple(rows),
    )


def _picture(name: str, width: float, positions: list[Bar], lengths: list[Bar], said: str) -> Markup:
    stacked = width < 500
    panel = width if stacked else width / 2 - 10
    height = 500.0 if stacked else 250.0
    canvas = Canvas(name, width, height)
    _panel(canvas, 0.0, 0.0, panel, positions, "accepted when reached, %", "position in the chain", "draft")
    left, top = (0.0, 250.0) if stacked else (panel + 20, 0.0)
    _panel(canvas, left, top, panel, lengths, "share of verify passes, %", "accept length, tokens", "verify")
    return canvas.svg("Acceptance", said)


def _panel(canvas: Canvas, left: float, top: float, width: float, bars: list[Bar], y: str, x: str, look: str) -> None:
    scale = Scale(0.0, 100.0, top + 206, top + 34)
    inner = left + 36
    for value in (0, 25, 50, 75, 100):
        canvas.line((inner, scale(value)), (left + width - 4, scale(value)), "grid")
        canvas.text(inner - 6, scale(value) + 4, str(value), "tick", "end")
    canvas.text(left, top + 16, y, "label")
    shown = bars[:MOST]
    room = (left + width - 4 - inner) / max(1, len(shown))
    shares = [number(100 * bar.share, 0.5) for bar in shown]
    widest = max(map(len, shares), default=0)
    every = math.ceil((CHARACTER * len(str(len(shown))) + 4) / room)
    for i, (bar, share) in enumerate(zip(shown, shares, strict=True)):
        at = inner + room * (i + 0.16)
        tip = f"{x.split(',')[0]} {bar.place}: {percent(bar.share)} ({bar.passes} passes)"
        canvas.rect(at, scale(100 * bar.share), room * 0.68, scale(0) - scale(100 * bar.share), f"{look} bar", tip)
        middle = at + room * 0.34
        if room > CHARACTER * widest:
            canvas.text(middle, scale(100 * bar.share) - 4, share, "value", "middle")
        if bar.place % every == 0:
            canvas.text(middle, scale(0) + 15, str(bar.place), "tick", "middle")
    cut = f" (the first {MOST} of {len(bars)})" if len(bars) > MOST else ""
    canvas.text((inner + left + width) / 2, top + 238, f"{x}{cut}", "label", "middle")

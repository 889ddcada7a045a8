"""Cost and break-even by batch size: where speculation stops paying, and how far the captured graphs reach."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from markupsafe import Markup

from eaglediag.analysis.figures import interval, number
from eaglediag.analysis.measured import Arm, BatchCost
from eaglediag.analysis.pairing import MIN_STEPS, Row
from eaglediag.analysis.statistics import Estimate
from eaglediag.capture.model import Capture
from eaglediag.reports.html.drawing import Canvas, Point, Scale, plain, short
from eaglediag.reports.html.figure import Figure, Material, method_of
from eaglediag.reports.tables import Table


def figure(material: Material) -> Figure | None:
    """The figure, or None when no batch size was measured."""
    arms = [_steady(side.arm) for side in material.sides]
    sizes = sorted({size for arm in arms for size in arm.batches})
    if not sizes:
        return None
    largest = {side.arm.name: size for side in material.sides if (size := captured(side.capture))}
    crossings = crossovers(material.rows)
    facts = [f"the largest captured graph of {name} is for {size} requests" for name, size in largest.items()]
    facts += [f"break-even is crossed between batch {a} and {b}" for a, b, _ in crossings]
    if len(sizes) == 1:
        facts.append("one batch size alone shows no trend")
    elif not crossings and _judged(material.rows):
        facts.append("break-even is not crossed between the batch sizes measured")
    said = "; ".join(facts) or f"{len(sizes)} batch sizes were measured"

    def draw(name: str, width: float) -> Markup:
        return _picture(name, width, arms, material.rows, largest, crossings, said)

    return Figure(
        name="batches",
        title="Cost and break-even by batch size",
        says=f"{said[0].upper()}{said[1:]}.",
        draw=draw,
        table=_table(arms, material.rows, sizes),
        measured=f"Mean periods: {method_of(material.candidate.capture)}. Bars are 95 % intervals. "
        f"Lines only join what was measured, batch sizes with at least {MIN_STEPS} steps; nothing is said outside.",
        findings=("beyond_captured", "fixed_cost", "baseline_eager", "cannot_win", "acceptance_falls_with_batch"),
        keys=(
            *((f"line line{i} key{i}", f"{arm.name}, ms a {_what(arm)}") for i, arm in enumerate(arms)),
            *(
                (("line line2 key2", "break-even, tokens"), ("line line3 key3", "reached, tokens"))
                if _judged(material.rows)
                else ()
            ),
        ),
    )


def _steady(arm: Arm) -> Arm:
    """The arm without batch sizes that only occurred in passing, unless there are no others."""
    steady = {size: cost for size, cost in arm.batches.items() if cost.steps >= MIN_STEPS}
    return replace(arm, batches=steady or arm.batches)


def captured(capture: Capture) -> int | None:
    """The most requests for which a decode or verify graph was captured, or None when that is not known."""
    graphs = capture.server.captured.get("verify") or capture.server.captured.get("decode")
    if graphs is None or not graphs.sizes:
        return None
    return max(graphs.sizes) // (graphs.tokens_per_request or 1 if graphs.unit == "tokens" else 1)


def crossovers(rows: Sequence[Row]) -> list[tuple[int, int, float]]:
    """(batch, next batch, where between them) for each change from paying to not paying, or back."""
    found = []
    for one, other in pairwise(rows):
        a, b = math.log(one.speedup.value), math.log(other.speedup.value)
        if a * b < 0:
            share = a / (a - b)
            place = one.batch_size * (other.batch_size / one.batch_size) ** share
            found.append((one.batch_size, other.batch_size, place))
    return found


def _judged(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.break_even_length is not None]


def _what(arm: Arm) -> str:
    return "cycle" if arm.speculative else "step"


def _table(arms: Sequence[Arm], rows: Sequence[Row], sizes: Sequence[int]) -> Table:
    by_size = {row.batch_size: row for row in rows}

    def cell(cost: BatchCost | None) -> str:
        return "–" if cost is None else interval(cost.period)

    lines = []
    for size in sizes:
        row = by_size.get(size)
        lines.append(
            (
                str(size),
                *(cell(arm.batches.get(size)) for arm in arms),
                *(str(arm.batches[size].steps) if size in arm.batches else "–" for arm in arms),
                interval(row.break_even_length) if row else "–",
                interval(arms[-1].batches[size].accept_length) if size in arms[-1].batches else "–",
                interval(row.speedup) if row else "–",
            )
        )
    return Table(
        "by batch size",
        (
            "batch",
            *(f"{arm.name}, ms a {_what(arm)}" for arm in arms),
            *(f"{arm.name}, steps" for arm in arms),
            "break-even, tokens",
            "reached, tokens",
            "speed-up, ×",
        ),
        tuple(lines),
    )


def _picture(
    name: str,
    width: float,
    arms: Sequence[Arm],
    rows: Sequence[Row],
    largest: dict[str, int],
    crossings: Sequence[tuple[int, int, float]],
    said: str,
) -> Markup:
    judged = _judged(rows)
    sizes = sorted({size for arm in arms for size in arm.batches} | set(largest.values()))
    left, right, top = 44.0, width - 18, 34.0
    middle = top + 190
    height = middle + 44 if not judged else middle + 250
    x = Scale(max(0.8, sizes[0] * 0.85), sizes[-1] * 1.18, left, right, log=True)
    values = _apart(sizes, x)
    canvas = Canvas(name, width, height)
    highest = max(cost.period.value for arm in arms for cost in arm.batches.values())
    cost_scale = Scale(0.0, 1.12 * highest, middle, top)
    canvas.y_axis(cost_scale, left, right, "ms")
    for offset, (whose, size) in enumerate(largest.items()):
        bottom = height - 44 if judged else middle
        canvas.line((x(size), top), (x(size), bottom), "limit", f"{whose}: largest captured graph, {size} requests")
        canvas.text(x(size) - 5, top + 12 + 14 * offset, f"{short(whose)}: captured ≤ {size}", "note", "end")
    for i, arm in enumerate(arms):
        points = [(cost.batch_size, cost.period) for cost in arm.batches.values()]
        _series(canvas, x, cost_scale, points, i, f"{arm.name}, ms a {_what(arm)}")
    if not judged:
        canvas.x_axis(x, middle, "batch size, requests", values)
        return canvas.svg("Cost by batch size", said)
    canvas.x_axis(x, middle, "", values)
    start = middle + 44
    tallest = max(
        [row.break_even_length.value for row in judged if row.break_even_length]
        + [row.candidate.accept_length.value for row in judged if row.candidate.accept_length]
    )
    tokens = Scale(0.0, 1.2 * tallest, height - 44, start + 16)
    canvas.y_axis(tokens, left, right, "tokens per verify pass")
    for a, b, place in crossings:
        canvas.rect(
            x(a), tokens.end, x(b) - x(a), tokens.start - tokens.end, "beyond", f"crossed between batch {a} and {b}"
        )
        canvas.line((x(place), tokens.end), (x(place), tokens.start), "even", "where the two lines would cross")
        canvas.text(x(place) + 5, tokens.end + 12, "crossover", "note")
    _series(
        canvas,
        x,
        tokens,
        [(row.batch_size, row.break_even_length) for row in judged if row.break_even_length],
        2,
        "break-even",
    )
    reached = [(row.batch_size, row.candidate.accept_length) for row in judged if row.candidate.accept_length]
    _series(canvas, x, tokens, reached, 3, "reached")
    canvas.x_axis(x, height - 44, "batch size, requests", values)
    return canvas.svg("Cost and break-even by batch size", said)


def _series(canvas: Canvas, x: Scale, y: Scale, points: Sequence[tuple[int, Estimate]], i: int, what: str) -> None:
    drawn: list[Point] = [(x(size), y(value.value)) for size, value in points]
    canvas.path(drawn, f"line line{i} key{i}")
    for (_, value), (at, _) in zip(points, drawn, strict=True):
        if value.interval:
            canvas.line((at, y(value.low)), (at, y(value.high)), f"whisker key{i}")
    for (size, value), place in zip(points, drawn, strict=True):
        canvas.mark(*place, i, f"key{i}", f"batch {size}, {what}: {interval(value)}")
    if drawn:
        # The lower line of each panel has its first value under it.
        canvas.text(drawn[0][0] + 8, drawn[0][1] + (-7 if i % 2 else 17), number(points[0][1].value), "value")


def _apart(sizes: Sequence[int], x: Scale) -> list[float]:
    """The batch sizes whose labels do not touch."""
    kept: list[float] = []
    for size in sizes:
        if not kept or x(size) - x(kept[-1]) > 9 + 7 * len(plain(size)):
            kept.append(float(size))
    return kept

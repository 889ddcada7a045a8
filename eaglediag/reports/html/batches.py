"""Cost and break-even by batch size: where speculation stops paying, and how far the captured graphs reach."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from markupsafe import Markup

from eaglediag.analysis.figures import estimate, interval, listed
from eaglediag.analysis.measured import Arm, BatchCost
from eaglediag.analysis.pairing import MIN_STEPS, Outcome, Row
from eaglediag.analysis.statistics import Estimate
from eaglediag.capture.model import Capture
from eaglediag.reports.html.drawing import CHARACTER, Canvas, Point, Scale, plain, sample, short
from eaglediag.reports.html.estimates import explained, reach, titled
from eaglediag.reports.html.figure import Figure, Material, method_of
from eaglediag.reports.tables import OUTCOMES, Table

Points = list[tuple[int, Estimate]]


def figure(material: Material) -> Figure | None:
    """The figure, or None when no batch size was measured."""
    arms = [_steady(side.arm) for side in material.sides]
    sizes = sorted({size for arm in arms for size in arm.batches})
    if not sizes:
        return None
    largest = {side.arm.name: size for side in material.sides if (size := captured(side.capture))}
    crossings = crossovers(material.rows)
    facts = [f"the largest captured graph of {name} is for {size} requests" for name, size in largest.items()]
    if len(sizes) == 1:
        facts.append("one batch size alone shows no trend")
    else:
        facts += _crossed(material, crossings)
    said = "; ".join(facts) or f"{len(sizes)} batch sizes were measured"

    def draw(name: str, width: float) -> Markup:
        return _picture(name, width, arms, material.rows, largest, crossings, said)

    return Figure(
        name="batches",
        title="Cost and break-even by batch size",
        says=f"{said[0].upper()}{said[1:]}.",
        draw=draw,
        table=_table(arms, material.rows, sizes),
        measured=f"Mean periods: {method_of(material.candidate.capture)}. "
        + explained([value for one in _drawn(arms, material.rows) for _, value in one], "Bars are 95 % intervals. ")
        + f"Lines only join what was measured, batch sizes with at least {MIN_STEPS} steps; nothing is said outside.",
        findings=("beyond_captured", "fixed_cost", "baseline_eager", "cannot_win", "acceptance_falls_with_batch"),
        keys=(
            *((sample(i, marked=True), f"{arm.name}, ms a {_what(arm)}") for i, arm in enumerate(arms)),
            *(
                ((sample(2, marked=True), "break-even, tokens"), (sample(3, marked=True), "reached, tokens"))
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
    return max(graphs.requests) if graphs is not None and graphs.sizes else None


def crossovers(rows: Sequence[Row]) -> list[tuple[int, int, float]]:
    """(batch, next batch, where between them) for each crossing of the lines of break-even and of what is reached.

    The lines are straight in tokens over the logarithm of the batch size.
    """
    found = []
    for one, other in pairwise(_judged(rows)):
        a, b = _lacking(one), _lacking(other)
        if (a > 0) != (b > 0):
            place = one.batch_size * (other.batch_size / one.batch_size) ** (a / (a - b))
            found.append((one.batch_size, other.batch_size, place))
    return found


def _judged(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.break_even_length is not None and row.candidate.accept_length is not None]


def _lacking(row: Row) -> float:
    """Tokens between what is reached and break-even."""
    assert row.break_even_length is not None
    assert row.candidate.accept_length is not None
    return row.break_even_length.value - row.candidate.accept_length.value


def _crossed(material: Material, crossings: Sequence[tuple[int, int, float]]) -> Iterator[str]:
    """Whether and where break-even is crossed, as firmly as the outcomes allow."""
    judged = _judged(material.rows)
    if material.comparison is None or len(judged) < 2:
        return
    forbidden = material.comparison.outcome == "not_comparable"
    outcomes = {row.batch_size: "not_comparable" if forbidden else row.outcome for row in judged}
    lines = "the lines of break-even and of what is reached"
    if not crossings:
        doubts = _doubts(outcomes)
        said = f"{lines} do not cross" if doubts else "break-even is not crossed"
        yield f"{said} between the batch sizes measured{doubts}"
    for a, b, _ in crossings:
        doubts = _doubts({size: outcomes[size] for size in (a, b)})
        yield f"{f'{lines} cross' if doubts else 'break-even is crossed'} between batch {a} and {b}{doubts}"


def _doubts(outcomes: Mapping[int, Outcome]) -> str:
    """The batch sizes at which it is not certain on which side of break-even they are."""
    alike: dict[Outcome, list[int]] = defaultdict(list)
    for size, outcome in outcomes.items():
        if outcome not in ("better", "worse"):
            alike[outcome].append(size)
    named = [
        f"batch {listed(sizes)} {'is' if len(sizes) == 1 else 'are'} {OUTCOMES[one]}" for one, sizes in alike.items()
    ]
    return f", but {listed(named)}" if named else ""


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


def _drawn(arms: Sequence[Arm], rows: Sequence[Row]) -> list[Points]:
    """The points of each line: of the arms' costs, then of break-even and of what is reached, if they are known."""
    judged = _judged(rows)
    costs = [[(cost.batch_size, cost.period) for cost in arm.batches.values()] for arm in arms]
    needed = [(row.batch_size, row.break_even_length) for row in judged if row.break_even_length]
    reached = [(row.batch_size, row.candidate.accept_length) for row in judged if row.candidate.accept_length]
    return [*costs, needed, reached] if judged else costs


def _picture(
    name: str,
    width: float,
    arms: Sequence[Arm],
    rows: Sequence[Row],
    largest: Mapping[str, int],
    crossings: Sequence[tuple[int, int, float]],
    said: str,
) -> Markup:
    drawn = _drawn(arms, rows)
    costs, tokens = drawn[: len(arms)], drawn[len(arms) :]
    sizes = sorted({size for points in drawn for size, _ in points} | set(largest.values()))
    x = Scale(max(0.8, sizes[0] * 0.85), sizes[-1] * 1.18, 44.0, width - 18, log=True)
    values = _apart(sizes, x)
    top, middle = 34.0, 224.0
    canvas = Canvas(name, width, middle + (250 if tokens else 44))
    cost = Scale(0.0, 1.12 * reach(value for points in costs for _, value in points), middle, top)
    _limits(canvas, x, cost, largest, named=True)
    _panel(canvas, x, cost, "ms", costs, [f"{arm.name}, ms a {_what(arm)}" for arm in arms], 0)
    canvas.x_axis(x, middle, "" if tokens else "batch size, requests", values)
    if not tokens:
        return canvas.svg("Cost by batch size", said)
    floor = canvas.height - 44
    yields = Scale(0.0, 1.2 * reach(value for points in tokens for _, value in points), floor, middle + 60)
    _limits(canvas, x, yields, largest, named=False)
    for a, b, place in crossings:
        canvas.rect(
            x(a), yields.end, x(b) - x(a), floor - yields.end, "beyond", f"the lines cross between batch {a} and {b}"
        )
        canvas.line((x(place), yields.end), (x(place), floor), "even", "where the two lines cross")
        canvas.beside(x(place), yields.end + 12, "crossover", "note")
    _panel(canvas, x, yields, "tokens per verify pass", tokens, ["break-even", "reached"], 2)
    canvas.x_axis(x, floor, "batch size, requests", values)
    return canvas.svg("Cost and break-even by batch size", said)


def _limits(canvas: Canvas, x: Scale, y: Scale, largest: Mapping[str, int], *, named: bool) -> None:
    """Where the captured graphs end."""
    for i, (whose, size) in enumerate(largest.items()):
        at = x(size)
        canvas.line((at, y.end), (at, y.start), "limit", f"{whose}: largest captured graph, {size} requests")
        if named:
            limit = f": captured ≤ {size}"
            room = max(at, canvas.width - at) - 8 - CHARACTER * len(limit)
            canvas.beside(at, y.end + 12 + 14 * i, short(whose, room) + limit, "note")


def _panel(
    canvas: Canvas, x: Scale, y: Scale, title: str, lines: Sequence[Points], names: Sequence[str], first: int
) -> None:
    """One or two lines, numbered from `first`, over the batch size."""
    left, right = x.start, x.end
    canvas.y_axis(y, left, right, titled(title, y, [value for points in lines for _, value in points]))
    for i, (points, what) in enumerate(zip(lines, names, strict=True), start=first):
        at: list[Point] = [(x(size), y(value.value)) for size, value in points]
        canvas.path(at, f"line line{i} key{i}")
        for (_, value), (place, _) in zip(points, at, strict=True):
            if value.interval:
                canvas.line((place, y(value.low)), (place, y(value.high)), f"whisker key{i}")
        for (size, value), (place, height) in zip(points, at, strict=True):
            canvas.mark(place, height, i, f"key{i}", f"batch {size}, {what}: {interval(value)}")
    # Of two lines, the one that begins lower has its first value under it.
    begins = sorted((points[0] for points in lines), key=lambda point: -point[1].value)
    for i, (size, value) in enumerate(begins):
        below = i == len(begins) - 1
        # Under it may be too little room above the axis' own numbers.
        if not below or y(value.value) + 12 <= y.start:
            canvas.text(x(size) + 8, y(value.value) + (15 if below else -7), estimate(value), "value")


def _apart(sizes: Sequence[int], x: Scale) -> list[float]:
    """The batch sizes whose labels do not touch."""
    kept: list[float] = []
    for size in sizes:
        if not kept or x(size) - x(kept[-1]) > 9 + CHARACTER * len(plain(size)):
            kept.append(float(size))
    return kept

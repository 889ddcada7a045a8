"""Collectives of one pass of each phase, by backend: launched one by one, or inside a graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup

from eaglediag.analysis.sentences import PHASE_NAMES
from eaglediag.capture.model import Capture, Collective, Phase, Window
from eaglediag.reports.html.drawing import Canvas, Scale, short, swatch
from eaglediag.reports.html.figure import Figure, Material
from eaglediag.reports.tables import Table

#: So many backends have a colour each; all others share one more.
MOST = 5


@dataclass(frozen=True)
class Calls:
    """Calls of one kind in one pass of a phase, on the lowest rank, in one window at that concurrency."""

    arm: str
    phase: Phase
    in_graph: bool
    concurrency: int | None
    backend: str
    operation: str
    per_pass: float
    kilobytes: float | None
    passes: int

    @property
    def row(self) -> tuple[str, Phase, bool]:
        """What is added up: calls of one phase, all launched or all in its graph."""
        return self.arm, self.phase, self.in_graph

    @property
    def where(self) -> str:
        """The concurrency of the window, if it had one."""
        return "" if self.concurrency is None else f" (c{self.concurrency})"


def figure(material: Material) -> Figure | None:
    """The figure, or None when no collectives were counted."""
    found = [one for side in material.sides for one in calls(side.capture)]
    if not found:
        return None
    said = ". ".join(_said(list(some)) for _, some in groupby(found, key=lambda one: one.arm))

    def draw(name: str, width: float) -> Markup:
        return _picture(name, width, found, said)

    return Figure(
        name="collectives",
        title="Collectives in one pass of each phase",
        says=f"{said}.",
        draw=draw,
        table=_table(found),
        measured="Calls counted by the agent on the lowest rank: when launched from Python, as they are made; inside a "
        "graph, as they were recorded while it was captured, once for each replay. Each is from the window in "
        "which a pass made most; c1: at concurrency 1.",
        findings=("eager_collectives", "nccl_instead_of_custom", "ranks_skewed"),
        keys=(
            *((swatch(look), ", ".join(names)) for look, names in _looks(found).items()),
            (swatch("graph"), "solid: inside a graph"),
            (swatch("eager"), "hatched, dashed: launched one by one"),
        ),
    )


def calls(capture: Capture) -> list[Calls]:
    """The collectives of a capture by phase, launched and in graphs, each from the window with most in a pass."""
    rows: dict[tuple[str, Phase, bool], list[Calls]] = {}
    for window in capture.windows:
        by_size: dict[tuple[Phase, bool, int | None], list[Calls]] = defaultdict(list)
        for rank in sorted(window.ranks, key=lambda rank: rank.rank)[:1]:
            for one in rank.collectives:
                if one.calls_per_step:
                    by_size[one.phase, one.in_graph, one.batch_size].append(_calls(capture, window, one))
        for made in by_size.values():
            if _weight(made) > _weight(rows.get(made[0].row, ())):
                rows[made[0].row] = made
    order = list(PHASE_NAMES)
    return sorted(
        (one for made in rows.values() for one in made),
        key=lambda one: (order.index(one.phase), one.in_graph, -one.per_pass),
    )


def _calls(capture: Capture, window: Window, one: Collective) -> Calls:
    return Calls(
        arm=capture.arm,
        phase=one.phase,
        in_graph=one.in_graph,
        concurrency=window.concurrency,
        backend=one.backend,
        operation=one.operation,
        per_pass=one.calls_per_step,
        kilobytes=None if one.bytes_per_step is None else one.bytes_per_step / 1000,
        passes=one.steps,
    )


def _weight(made: Sequence[Calls]) -> tuple[float, int]:
    """Most in a pass comes first; of equals, what was counted most often."""
    return _per_pass(made), sum(one.passes for one in made)


def _per_pass(made: Iterable[Calls]) -> float:
    return sum(one.per_pass for one in made)


def _said(found: Sequence[Calls]) -> str:
    """One arm's calls by phase; launched and in-graph calls are not of the same pass, and phases not of one kind."""
    phases: dict[Phase, list[str]] = defaultdict(list)
    for (_, phase, in_graph), members in groupby(found, key=lambda one: one.row):
        row = list(members)
        how = "inside its graph" if in_graph else "launched"
        phases[phase].append(f"{_per_pass(row):.0f} {how}{row[0].where}")
    told = (f"{PHASE_NAMES[phase]} {', '.join(ways)}" for phase, ways in phases.items())
    return f"Calls in one pass of {found[0].arm}: {'; '.join(told)}"


def _table(found: Sequence[Calls]) -> Table:
    return Table(
        "collectives",
        ("arm and phase", "backend", "operation", "how", "concurrency", "calls a pass", "kB a pass", "passes"),
        tuple(
            (
                f"{one.arm}: {PHASE_NAMES[one.phase]}",
                one.backend,
                one.operation,
                "inside a graph" if one.in_graph else "launched one by one",
                "–" if one.concurrency is None else str(one.concurrency),
                f"{one.per_pass:.1f}",
                "–" if one.kilobytes is None else f"{one.kilobytes:.1f}",
                str(one.passes),
            )
            for one in found
        ),
    )


def _looks(found: Sequence[Calls]) -> dict[str, list[str]]:
    """The backends by the colour they are drawn in."""
    looks: dict[str, list[str]] = defaultdict(list)
    for i, backend in enumerate(dict.fromkeys(one.backend for one in found)):
        looks[f"key{min(i, MOST)}"].append(backend)
    return looks


def _picture(name: str, width: float, found: Sequence[Calls], said: str) -> Markup:
    narrow = width < 500
    looks = {backend: look for look, names in _looks(found).items() for backend in names}
    left, line = (8.0, 36.0) if narrow else (210.0, 26.0)
    rows = [list(row) for _, row in groupby(found, key=lambda one: one.row)]
    arms = list(dict.fromkeys(one.arm for one in found))
    x = Scale(0.0, 1.05 * max(_per_pass(row) for row in rows), left, width - 52)
    canvas = Canvas(name, width, 22 * len(arms) + line * len(rows) + 56)
    y = 0.0
    for i, row in enumerate(rows):
        if not i or row[0].arm != rows[i - 1][0].arm:
            canvas.text(0, y + 16, short(row[0].arm), "label")
            y += 22
        _row(canvas, row, x, y, looks, narrow=narrow)
        y += line
    canvas.x_axis(x, canvas.height - 44, "calls in one pass")
    return canvas.svg("Collectives", said)


def _row(canvas: Canvas, row: Sequence[Calls], x: Scale, y: float, looks: Mapping[str, str], *, narrow: bool) -> None:
    one = row[0]
    words = f"{PHASE_NAMES[one.phase]}, {'in graph' if one.in_graph else 'launched'}"
    words += one.where
    if narrow:
        canvas.text(x.start, y + 9, words, "value")
    else:
        canvas.text(x.start - 8, y + 15, words, "tick", "end")
    at = 0.0
    for one in row:
        tip = f"{one.arm}: {words}: {one.per_pass:.1f} {one.backend} {one.operation} a pass"
        body = y + (14 if narrow else 3)
        canvas.bar(x(at), body, x(at + one.per_pass) - x(at), 15, looks[one.backend], tip, eager=not one.in_graph)
        at += one.per_pass
    canvas.text(x(at) + 5, y + (26 if narrow else 15), f"{at:.0f}", "value")

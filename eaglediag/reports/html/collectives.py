"""Collectives of one pass of each phase, by backend: launched one by one, or inside a graph."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from eaglediag.analysis.sentences import PHASE_NAMES
from eaglediag.capture.model import Capture, Phase
from eaglediag.reports.html.drawing import Canvas, Scale, short
from eaglediag.reports.html.figure import Figure, Material
from eaglediag.reports.tables import Table


@dataclass(frozen=True)
class Calls:
    """Calls of one kind in one pass of a phase, on the lowest rank."""

    arm: str
    phase: Phase
    backend: str
    operation: str
    in_graph: bool
    per_pass: float
    kilobytes: float | None
    passes: int


def figure(material: Material) -> Figure | None:
    """The figure, or None when no collectives were counted."""
    found = [one for side in material.sides for one in calls(side.capture)]
    if not found:
        return None
    launched = sum(one.per_pass for one in found if not one.in_graph)
    replayed = sum(one.per_pass for one in found if one.in_graph)
    said = (
        f"{launched:.0f} collectives are launched one by one and {replayed:.0f} run inside graphs, adding up one pass "
        "of each phase"
    )

    def draw(name: str, width: float) -> Markup:
        return _picture(name, width, found, said)

    backends = list(dict.fromkeys(one.backend for one in found))
    return Figure(
        name="collectives",
        title="Collectives in one pass of each phase",
        says=f"{said}.",
        draw=draw,
        table=Table(
            "collectives",
            ("arm and phase", "backend", "operation", "how", "calls a pass", "kB a pass", "passes"),
            tuple(
                (
                    f"{one.arm}: {PHASE_NAMES[one.phase]}",
                    one.backend,
                    one.operation,
                    "inside a graph" if one.in_graph else "launched one by one",
                    f"{one.per_pass:.1f}",
                    "–" if one.kilobytes is None else f"{one.kilobytes:.1f}",
                    str(one.passes),
                )
                for one in found
            ),
        ),
        measured="Calls counted by the agent on the lowest rank: when launched from Python, as they are made; inside a "
        "graph, as they were recorded while it was captured, once for each replay.",
        findings=("eager_collectives", "nccl_instead_of_custom", "ranks_skewed"),
        keys=(
            *((f"swatch key{i % 4}", name) for i, name in enumerate(backends)),
            ("swatch graph", "solid: inside a graph"),
            ("swatch eager", "hatched, dashed: launched one by one"),
        ),
    )


def calls(capture: Capture) -> list[Calls]:
    """The collectives of a capture, one entry a kind: that of the window in which most were made in a pass."""
    found: dict[tuple[Phase, str, str, bool], Calls] = {}
    for window in capture.windows:
        for rank in sorted(window.ranks, key=lambda rank: rank.rank)[:1]:
            for one in rank.collectives:
                key = (one.phase, one.backend, one.operation, one.in_graph)
                if one.calls_per_step and (key not in found or found[key].per_pass < one.calls_per_step):
                    size = None if one.bytes_per_step is None else one.bytes_per_step / 1000
                    found[key] = Calls(capture.arm, *key, one.calls_per_step, size, one.steps)
    order = list(PHASE_NAMES)
    return sorted(found.values(), key=lambda one: (order.index(one.phase), one.in_graph, -one.per_pass))


def _picture(name: str, width: float, found: list[Calls], said: str) -> Markup:
    narrow = width < 500
    backends = list(dict.fromkeys(one.backend for one in found))
    left, line = (8.0, 36.0) if narrow else (210.0, 26.0)
    right = 52.0
    rows = list(dict.fromkeys((one.arm, one.phase, one.in_graph) for one in found))
    totals = {row: sum(one.per_pass for one in found if (one.arm, one.phase, one.in_graph) == row) for row in rows}
    height = 16 + line * len(rows) + 46
    x = Scale(0.0, 1.05 * max(totals.values()), left, width - right)
    canvas = Canvas(name, width, height)
    for i, row in enumerate(rows):
        arm, phase, in_graph = row
        y = 10 + line * i
        words = f"{short(arm)}: {PHASE_NAMES[phase]}, {'in graph' if in_graph else 'launched'}"
        if narrow:
            canvas.text(left, y + 10, words, "value")
        else:
            canvas.text(left - 8, y + 15, words, "tick", "end")
        at = 0.0
        for one in found:
            if (one.arm, one.phase, one.in_graph) != row:
                continue
            tip = f"{words}: {one.per_pass:.1f} {one.backend} {one.operation} a pass"
            canvas.bar(
                x(at),
                y + (14 if narrow else 3),
                x(at + one.per_pass) - x(at),
                15,
                f"key{backends.index(one.backend) % 4}",
                tip,
                eager=not in_graph,
            )
            at += one.per_pass
        canvas.text(x(at) + 5, y + (26 if narrow else 15), f"{at:.0f}", "value")
    canvas.x_axis(x, height - 44, "calls in one pass")
    return canvas.svg("Collectives", said)

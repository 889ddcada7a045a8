"""The cycle as a waterfall against one plain step: where the time goes, and what ran as a graph."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from eaglediag.analysis.figures import number, percent
from eaglediag.analysis.measured import BatchCost
from eaglediag.analysis.sentences import PHASE_NAMES
from eaglediag.capture.model import Phase
from eaglediag.reports.html.drawing import Canvas, Scale
from eaglediag.reports.html.figure import Figure, Material, Side, method_of, parts_method_of, spread
from eaglediag.reports.tables import Table

ORDER: tuple[Phase, ...] = ("decode", "draft", "verify", "draft_extend", "extend", "idle")
#: Batch sizes drawn; the table has all.
MOST = 3


@dataclass(frozen=True)
class Span:
    """One part of a step: from `start` for `ms`; `share` of its passes ran as a graph, None: nobody says."""

    step: str
    name: str
    look: str
    start: float
    ms: float
    share: float | None

    @property
    def eager(self) -> bool | None:
        """Whether most passes ran eagerly. The gap is neither, and is drawn plain."""
        return None if self.share is None else self.share <= 0.5

    @property
    def how(self) -> str:
        """Graph or eager, in words."""
        if self.look == "gap":
            return ""
        if self.share is None:
            return "not known"
        return {0.0: "eager", 1.0: "graph"}.get(self.share, f"{percent(self.share)} graph")


def figure(material: Material) -> Figure | None:
    """The figure, or None when no parts were measured."""
    side = material.candidate
    costs = [cost for cost in side.arm.batches.values() if cost.parts]
    if material.rows:
        costs = [row.candidate for row in material.rows if row.candidate.parts]
    if not costs:
        return None
    panels = [(cost, _spans(material, side, cost)) for cost in spread(costs, MOST)]
    every = [(cost, span) for cost in costs for span in _spans(material, side, cost)]
    said = ". ".join(_said(cost, spans) for cost, spans in panels)

    def draw(name: str, width: float) -> Markup:
        return _picture(name, width, panels, said)

    what = "cycle" if side.arm.speculative else "step"
    return Figure(
        name="cycle",
        title=f"One {what}, part by part" + (", against one step of the baseline" if material.baseline else ""),
        says=f"{said}.",
        draw=draw,
        table=Table(
            "parts",
            ("batch", "step", "part", "begins, ms", "takes, ms", "ran as"),
            tuple(
                (str(cost.batch_size), span.step, span.name, f"{span.start:.3f}", f"{span.ms:.3f}", span.how or "–")
                for cost, span in every
            ),
        ),
        measured=f"Means per {what}. Parts: {parts_method_of(side.capture)}; the period: {method_of(side.capture)}. "
        "Parts and gap add up to the mean period from the start of one to the start of the next; inside the gap are "
        "scheduling, sampling and the handling of results.",
        findings=("graph_denied", "never_graphed", "fixed_cost", "launch_bound", "compute_bound", "baseline_eager"),
        keys=(
            *(
                (f"swatch {phase}", PHASE_NAMES[phase])
                for phase in ORDER
                if any(span.look == phase for _, spans in panels for span in spans)
            ),
            ("swatch gap", "gap"),
            ("swatch graph", "solid: ran as a graph"),
            ("swatch eager", "hatched, dashed: eager"),
        ),
    )


def _spans(material: Material, side: Side, cost: BatchCost) -> list[Span]:
    spans = []
    if material.baseline is not None and cost.batch_size in material.baseline.arm.batches:
        base = material.baseline
        spans += _parts(base.arm.batches[cost.batch_size], base.arm.name, base.arm.speculative)
    return spans + _parts(cost, side.arm.name, side.arm.speculative)


def _parts(cost: BatchCost, arm: str, speculative: bool) -> list[Span]:
    step = f"{arm}: {'cycle' if speculative else 'step'}"
    start, spans = 0.0, []
    for phase in ORDER:
        if phase in cost.parts:
            share = cost.graph_share.get(phase)
            spans.append(Span(step, PHASE_NAMES[phase], phase, start, cost.parts[phase], share))
            start += cost.parts[phase]
    if cost.gap_ms is not None:
        spans.append(Span(step, "gap", "gap", start, cost.gap_ms, None))
    return spans


def _said(cost: BatchCost, spans: list[Span]) -> str:
    own = [span for span in spans if span.step == spans[-1].step]
    parts = ", ".join(f"{span.name} {number(span.ms)}{f' ({span.how})' if span.how else ''}" for span in own)
    arm, _, what = own[0].step.rpartition(": ")
    return f"At batch {cost.batch_size} a {what} of {arm} takes {number(cost.period.value)} ms: {parts}"


def _picture(name: str, width: float, panels: list[tuple[BatchCost, list[Span]]], said: str) -> Markup:
    narrow = width < 500
    left, line = (8.0, 32.0) if narrow else (128.0, 24.0)
    right = 8.0 if narrow else 100.0
    heights = [34 + line * len(spans) + 46 for _, spans in panels]
    canvas = Canvas(name, width, sum(heights))
    top = 0.0
    for (cost, spans), height in zip(panels, heights, strict=True):
        longest = max(span.start + max(span.ms, 0.0) for span in spans)
        x = Scale(0.0, longest * 1.02, left, width - right)
        canvas.text(0, top + 16, f"batch {cost.batch_size}", "heading")
        bottom = top + 30 + line * len(spans)
        for value in (0.0, longest):
            canvas.line((x(value), top + 24), (x(value), bottom), "grid")
        before = ""
        for i, span in enumerate(spans):
            y = top + 28 + line * i
            if before and span.step != before:
                canvas.line((0, y - 2), (width, y - 2), "grid")
            before = span.step
            tip = f"{span.step}, {span.name}: {number(span.ms)} ms {span.how}"
            body = y + (14 if narrow else 3)
            gap = span.look == "gap"
            canvas.bar(
                x(span.start),
                body,
                x(span.start + max(span.ms, 0.0)) - x(span.start),
                13,
                span.look,
                tip,
                eager=False if gap else span.eager,
            )
            words = f"{number(span.ms)} ms {span.how}".rstrip()
            if narrow:
                canvas.text(left, y + 10, f"{span.step.rpartition(': ')[2]}, {span.name}: {words}", "value")
            else:
                canvas.text(left - 8, y + 14, f"{span.step.rpartition(': ')[2]}: {span.name}", "tick", "end")
                canvas.text(x(span.start + max(span.ms, 0.0)) + 5, y + 14, words, "value")
        canvas.x_axis(x, bottom, "ms from the start of the step")
        top += height
    return canvas.svg("The cycle as a waterfall", said)

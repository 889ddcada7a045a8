"""The cycle as a waterfall against one plain step: where the time goes, and what ran as a graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from eaglediag.analysis.figures import number, percent
from eaglediag.analysis.measured import Arm, BatchCost
from eaglediag.analysis.sentences import PHASE_NAMES
from eaglediag.capture.model import Phase
from eaglediag.reports.html.drawing import CHARACTER, Canvas, Scale, short, swatch
from eaglediag.reports.html.figure import Figure, Material, method_of, parts_method_of, spread
from eaglediag.reports.tables import Table

ORDER: tuple[Phase, ...] = ("decode", "draft", "verify", "draft_extend", "extend", "idle")
#: Batch sizes drawn; the table has all.
MOST = 3


@dataclass(frozen=True)
class Span:
    """One part of a step: from `start` for `ms`; `share` of its passes ran as a graph, None: nobody says.

    Parts that reach into the next step have a negative gap, their overlap: it ends where they do.
    """

    name: str
    look: str
    start: float
    ms: float
    share: float | None

    @property
    def ends(self) -> tuple[float, float]:
        """Where it begins and ends, in ms from the start of the step."""
        return min(self.start, self.start + self.ms), max(self.start, self.start + self.ms)

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


@dataclass(frozen=True)
class Half:
    """One arm's step, or cycle, at one batch size."""

    arm: str
    what: str
    cost: BatchCost
    spans: tuple[Span, ...]


def figure(material: Material) -> Figure | None:
    """The figure, or None when no parts were measured."""
    side = material.candidate
    costs = [cost for cost in side.arm.batches.values() if cost.parts]
    if material.rows:
        costs = [row.candidate for row in material.rows if row.candidate.parts]
    if not costs:
        return None
    panels = [_halves(material, cost) for cost in spread(costs, MOST)]
    said = ". ".join(_said(halves[-1]) for halves in panels)
    overlaps = any(span.name == "overlap" for halves in panels for half in halves for span in half.spans)

    def draw(name: str, width: float) -> Markup:
        return _picture(name, width, panels, said)

    what = _what(side.arm)
    return Figure(
        name="cycle",
        title=f"One {what}, part by part{_against(material)}",
        says=f"{said}.",
        draw=draw,
        table=_table([half for cost in costs for half in _halves(material, cost)]),
        measured=f"Means per {what}. Parts: {parts_method_of(side.capture)}; the period: {method_of(side.capture)}. "
        "Parts and gap add up to the mean period from the start of one to the start of the next; inside the gap are "
        "scheduling, sampling and the handling of results."
        + (" An overlap is by how much the parts reach into the next one, and counts as a negative gap." * overlaps),
        findings=(
            *("graph_denied", "graph_unexplained", "never_graphed", "baseline_eager", "structured_output", "lora"),
            *("fixed_cost", "launch_bound", "compute_bound", "host_late", "sampling_in_verify", "first_to_blame"),
        ),
        keys=(
            *(
                (swatch(phase), PHASE_NAMES[phase])
                for phase in ORDER
                if any(span.look == phase for halves in panels for half in halves for span in half.spans)
            ),
            (swatch("gap"), "gap, or overlap" if overlaps else "gap"),
            (swatch("graph"), "solid: ran as a graph"),
            (swatch("eager"), "hatched, dashed: eager"),
        ),
    )


def _what(arm: Arm) -> str:
    return "cycle" if arm.speculative else "step"


def _against(material: Material) -> str:
    if material.baseline is None:
        return ""
    arm = material.baseline.arm
    return f", against one {_what(arm)} of {short(arm.name) if arm.speculative else 'the baseline'}"


def _halves(material: Material, cost: BatchCost) -> list[Half]:
    """The baseline's step, if it was measured at that batch size, then the candidate's."""
    sides = [(side.arm, side.arm.batches.get(cost.batch_size)) for side in material.sides[:-1]]
    sides.append((material.candidate.arm, cost))
    return [Half(arm.name, _what(arm), one, _parts(one)) for arm, one in sides if one is not None]


def _parts(cost: BatchCost) -> tuple[Span, ...]:
    start, spans = 0.0, []
    for phase in ORDER:
        if phase in cost.parts:
            spans.append(Span(PHASE_NAMES[phase], phase, start, cost.parts[phase], cost.graph_share.get(phase)))
            start += cost.parts[phase]
    if cost.gap_ms is not None:
        spans.append(Span("gap" if cost.gap_ms >= 0 else "overlap", "gap", start, cost.gap_ms, None))
    return tuple(spans)


def _said(half: Half) -> str:
    parts = ", ".join(f"{span.name} {number(span.ms)}{f' ({span.how})' if span.how else ''}" for span in half.spans)
    period = number(half.cost.period.value)
    return f"At batch {half.cost.batch_size} a {half.what} of {half.arm} takes {period} ms: {parts}"


def _table(halves: Sequence[Half]) -> Table:
    return Table(
        "parts",
        ("batch", "step", "part", "begins, ms", "takes, ms", "ran as"),
        tuple(
            (
                str(half.cost.batch_size),
                f"{half.arm}: {half.what}",
                span.name,
                f"{span.start:.3f}",
                f"{span.ms:.3f}",
                span.how or "–",
            )
            for half in halves
            for span in half.spans
        ),
    )


def _picture(name: str, width: float, panels: Sequence[Sequence[Half]], said: str) -> Markup:
    narrow = width < 500
    left, line = (8.0, 32.0) if narrow else (96.0, 24.0)
    longest_words = max(len(_takes(span)) for halves in panels for half in halves for span in half.spans)
    right = 8.0 if narrow else 12.0 + CHARACTER * longest_words
    heights = [sum(22 + line * len(half.spans) for half in halves) + 74 for halves in panels]
    canvas = Canvas(name, width, sum(heights))
    top = 0.0
    for halves, height in zip(panels, heights, strict=True):
        longest = max(span.ends[1] for half in halves for span in half.spans)
        x = Scale(0.0, longest * 1.02, left, width - right)
        canvas.text(0, top + 16, f"batch {halves[-1].cost.batch_size}", "heading")
        bottom = top + height - 46
        for value in (0.0, longest):
            canvas.line((x(value), top + 24), (x(value), bottom), "grid")
        y = top + 24
        for i, half in enumerate(halves):
            if i:
                canvas.line((0, y), (width, y), "grid")
            canvas.text(0, y + 16, f"{short(half.arm)}: one {half.what}", "label")
            _half(canvas, half, x, y + 22, line, narrow=narrow)
            y += 22 + line * len(half.spans)
        canvas.x_axis(x, bottom, "ms from the start of the step")
        top += height
    return canvas.svg("The cycle as a waterfall", said)


def _takes(span: Span) -> str:
    return f"{number(span.ms)} ms {span.how}".rstrip()


def _half(canvas: Canvas, half: Half, x: Scale, top: float, line: float, *, narrow: bool) -> None:
    for i, span in enumerate(half.spans):
        y = top + line * i
        words = _takes(span)
        start, end = (x(place) for place in span.ends)
        canvas.bar(
            start,
            y + (14 if narrow else 3),
            end - start,
            13,
            span.look,
            f"{half.arm}, {span.name}: {words}",
            eager=False if span.look == "gap" else span.eager,
        )
        if narrow:
            canvas.text(x.start, y + 9, f"{span.name}: {words}", "value")
        else:
            canvas.text(x.start - 8, y + 14, span.name, "tick", "end")
            canvas.text(end + 5, y + 14, words, "value")

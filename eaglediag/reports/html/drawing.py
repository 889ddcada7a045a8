"""SVG drawn by hand: scales, axes and shapes. Colours are classes, so that the page's style sheet decides them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from eaglediag.reports.untrusted import printable

Point = tuple[float, float]
#: Longer names are cut in a picture; its table has them whole.
LONGEST = 34
#: How wide a character of a label is at most, on average.
CHARACTER = 7.2
#: Circle, square, triangle, diamond.
SHAPES = (
    "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0Z",
    "M-4.5 -4.5H4.5V4.5H-4.5Z",
    "M0 -5.5L5.5 4.5H-5.5Z",
    "M0 -6L6 0L0 6L-6 0Z",
)


@dataclass(frozen=True)
class Scale:
    """Maps [low, high] to [start, end] in the picture's units, by logarithm if `log`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Where a value is drawn; values outside are drawn at the edge."""
        value = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low) if self.high > self.low else 0.5
        else:
            share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return self.start + share * (self.end - self.start)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """At most about `count` round numbers within [low, high]."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(one * magnitude for one in (1, 2, 5, 10) if one * magnitude >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def plain(value: float) -> str:
    """A tick's label."""
    return f"{value:g}" if abs(value) < 1e6 else f"{value:.3g}"


def short(words: str, room: float = LONGEST * CHARACTER) -> str:
    """A name that fits a picture, or `room` in it."""
    longest = max(1, min(LONGEST, int(room / CHARACTER)))
    return words if len(words) <= longest else words[: longest - 1] + "…"


def swatch(look: str) -> Markup:
    """A piece of a legend: an area as it is drawn."""
    return Markup('<span class="swatch {}" aria-hidden="true"></span>').format(look)


def rule(look: str) -> Markup:
    """A piece of a legend: a straight line that is no data."""
    return Markup(
        '<svg class="sample" width="36" height="14" aria-hidden="true"><path d="M0 7H36" class="{}"/></svg>'
    ).format(look)


def sample(i: int, *, marked: bool = False) -> Markup:
    """A piece of a legend: line `i` as it is drawn, with its mark."""
    mark = Markup('<path d="{}" transform="translate(18 7)" class="key{} mark"/>').format(SHAPES[i % 4], i)
    return Markup(
        '<svg class="sample" width="36" height="14" aria-hidden="true">'
        '<path d="M0 7H36" class="line line{0} key{0}"/>{1}</svg>'
    ).format(i, mark if marked else "")


class Canvas:
    """A picture under construction. `name` must be unique in the page; every text may come from a capture."""

    def __init__(self, name: str, width: float, height: float) -> None:
        self.name, self.width, self.height = name, width, height
        self._parts: list[Markup] = []
        # Text is drawn last: no line strikes it out.
        self._texts: list[Markup] = []

    def _add(self, template: str, *values: object) -> None:
        self._parts.append(_filled(template, *values))

    def rect(self, x: float, y: float, width: float, height: float, look: str, tip: str = "") -> None:
        """A rectangle; `tip` shows when the pointer rests on it."""
        self._add(
            '<rect x="{}" y="{}" width="{}" height="{}" class="{}">{}</rect>',
            float(x),
            float(y),
            float(max(width, 0.8)),
            float(max(height, 0.8)),
            look,
            _tip(tip),
        )

    def bar(self, x: float, y: float, width: float, height: float, look: str, tip: str, *, eager: bool | None) -> None:
        """A span of time: solid when it ran as a graph, hatched and dashed when eager, outlined when nobody knows."""
        self.rect(x, y, width, height, f"{look} bar" + (" unknown" if eager is None else ""), tip)
        if eager:
            self._add(
                '<rect x="{}" y="{}" width="{}" height="{}" class="eager" fill="url(#{})">{}</rect>',
                float(x),
                float(y),
                float(max(width, 0.8)),
                float(height),
                f"{self.name}-hatch",
                _tip(tip),
            )

    def line(self, a: Point, b: Point, look: str, tip: str = "") -> None:
        """A straight line."""
        values = (float(a[0]), float(a[1]), float(b[0]), float(b[1]))
        self._add('<line x1="{}" y1="{}" x2="{}" y2="{}" class="{}">{}</line>', *values, look, _tip(tip))

    def path(self, points: Sequence[Point], look: str) -> None:
        """A line through points."""
        if points:
            self._add('<path d="M{}" class="{}"/>', "L".join(f"{x:.1f} {y:.1f}" for x, y in points), look)

    def area(self, upper: Sequence[Point], lower: Sequence[Point], look: str, tip: str = "") -> None:
        """The area between two lines with the same abscissae."""
        outline = [*upper, *reversed(lower)]
        if outline:
            text = "L".join(f"{x:.1f} {y:.1f}" for x, y in outline)
            self._add('<path d="M{}Z" class="{}">{}</path>', text, look, _tip(tip))

    def mark(self, x: float, y: float, kind: int, look: str, tip: str, scale: float = 1.0) -> None:
        """A data point in one of SHAPES."""
        self._add(
            '<path d="{}" transform="translate({} {}){}" class="{} mark">{}</path>',
            SHAPES[kind % 4],
            float(x),
            float(y),
            "" if scale == 1.0 else f" scale({scale:g})",
            look,
            _tip(tip),
        )

    def text(self, x: float, y: float, words: str, look: str = "", anchor: str = "start") -> None:
        """A line of text, above all shapes."""
        template = '<text x="{}" y="{}" class="{}" text-anchor="{}">{}</text>'
        self._texts.append(_filled(template, float(x), float(y), look, anchor, words))

    def beside(self, x: float, y: float, words: str, look: str, apart: float = 5.0) -> None:
        """A line of text to that side of x where there is more room."""
        before = x > self.width / 2
        self.text(x - apart if before else x + apart, y, words, look, "end" if before else "start")

    def x_axis(self, scale: Scale, y: float, title: str, values: Sequence[float] | None = None) -> None:
        """An axis along the bottom, its title under it."""
        self.line((scale.start, y), (scale.end, y), "axis")
        for value in ticks(scale.low, scale.high, 6) if values is None else values:
            self.line((scale(value), y), (scale(value), y + 4), "axis")
            self.text(scale(value), y + 16, plain(value), "tick", "middle")
        self.text((scale.start + scale.end) / 2, y + 32, title, "label", "middle")

    def y_axis(self, scale: Scale, left: float, right: float, title: str, above: float = 10.0) -> None:
        """An axis along the left with grid lines, its title so far above it."""
        for value in ticks(scale.low, scale.high):
            self.line((left, scale(value)), (right, scale(value)), "grid")
            self.text(left - 6, scale(value) + 4, plain(value), "tick", "end")
        self.text(0, scale.end - above, title, "label")

    def svg(self, title: str, description: str) -> Markup:
        """The whole picture as one element, with a title and a description for those who do not see it."""
        head = Markup(
            '<svg role="img" aria-labelledby="{0}-t {0}-d" viewBox="0 0 {1:g} {2:g}" width="{1:g}" height="{2:g}">'
            '<title id="{0}-t">{3}</title><desc id="{0}-d">{4}</desc>'
            '<defs><pattern id="{0}-hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
            'patternTransform="rotate(45)"><rect width="2.2" height="6" class="hatch"/></pattern></defs>'
        ).format(self.name, self.width, self.height, printable(title), printable(description))
        return head + Markup("").join([*self._parts, *self._texts]) + Markup("</svg>")


def _filled(template: str, *values: object) -> Markup:
    return Markup(template).format(
        *(round(value, 2) if isinstance(value, float) else _clean(value) for value in values)
    )


def _clean(value: object) -> object:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _tip(words: str) -> Markup:
    return Markup("<title>{}</title>").format(escape(printable(words))) if words else Markup("")

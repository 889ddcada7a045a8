"""HTML reports and their figures, straight from captures."""

from __future__ import annotations

import io
from dataclasses import dataclass
from xml.etree import ElementTree

from eaglediag.analysis.comparison import compare
from eaglediag.analysis.measured import measure
from eaglediag.capture.model import Capture
from eaglediag.reports import html, step_series
from eaglediag.reports.html import acceptance, batches, collectives, cycle, speedup, timeline
from eaglediag.reports.html.figure import Figure, Material, Side


def material(*captures: Capture) -> Material:
    result = compare(*captures) if len(captures) == 2 else None
    arms = [result.baseline, result.candidate] if result else [measure(captures[0])]
    sides = [Side(one, arm, step_series.from_blocks(one)) for one, arm in zip(captures, arms, strict=True)]
    return Material(sides[-1], sides[0] if result else None, result)


def rendered(*captures: Capture) -> str:
    out = io.StringIO()
    html.render(material(*captures), out)
    return out.getvalue()


def figures(*captures: Capture) -> dict[str, Figure]:
    """The figures of a page, the candidate's timeline alone, by name."""
    whole = material(*captures)
    kinds = (speedup, cycle, batches, acceptance, collectives)
    made = [*(kind.figure(whole) for kind in kinds), timeline.figure(whole.candidate, 0)]
    return {one.name: one for one in made if one is not None}


@dataclass(frozen=True)
class Shape:
    """An element of a picture: its tag, its attributes, and its tip or text."""

    tag: str
    attributes: dict[str, str]
    words: str

    def __getitem__(self, name: str) -> float:
        return float(self.attributes[name])

    @property
    def looks(self) -> set[str]:
        """Its classes."""
        return set(self.attributes.get("class", "").split())


def shapes(picture: str) -> list[Shape]:
    """What stands in a picture, in the order in which it is drawn."""
    return [
        Shape(one.tag, dict(one.attrib), "".join(one.itertext()))
        for one in ElementTree.fromstring(picture)
        if one.tag not in ("title", "desc", "defs")
    ]

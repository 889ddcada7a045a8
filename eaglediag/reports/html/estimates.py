"""Estimates on an axis: how far it reaches for their intervals, and what it says when it does not reach."""

from __future__ import annotations

from collections.abc import Iterable

from eaglediag.analysis.figures import number
from eaglediag.analysis.statistics import Estimate
from eaglediag.reports.html.drawing import Scale

#: An interval may take so many times the room of the values; beyond, it would flatten them.
MOST = 2.0


def reach(found: Iterable[Estimate]) -> float:
    """The highest value that the axis must show: the intervals' ends, unless they lie far above all values."""
    every = list(found)
    return min(max(one.high for one in every), MOST * max(one.value for one in every))


def titled(words: str, axis: Scale, found: Iterable[Estimate]) -> str:
    """The axis' title, which says how far intervals go that the axis cuts off."""
    highest = max((one.high for one in found), default=axis.high)
    return words if highest <= axis.high else f"{words} (intervals up to {number(highest)})"


def explained(found: Iterable[Estimate], words: str) -> str:
    """The words about intervals, if one is drawn."""
    return words if any(one.interval for one in found) else ""

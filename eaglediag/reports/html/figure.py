"""What a figure is, and what figures are drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from eaglediag.analysis.measured import Arm, BatchCost
from eaglediag.analysis.pairing import Row
from eaglediag.capture.model import Capture
from eaglediag.reports.tables import Table

if TYPE_CHECKING:
    from markupsafe import Markup

    from eaglediag.analysis.comparison import Comparison
    from eaglediag.reports.step_series import Series

#: The two widths every picture is drawn at, in CSS pixels: for a page and for a phone.
WIDE, NARROW = 720.0, 330.0

METHODS = {
    "cuda_event": "CUDA events on each rank's stream, read when ready",
    "host_clock": "the host's clock around each call",
    "profiler": "torch's profiler",
    "log_line": "figures in the server's log",
    "metrics": "the server's metrics page",
    "server_info": "the server's own info page",
    "benchmark": "a benchmark's result file",
    "server_report": "the server's own report",
    "derived": "derived from other figures",
}


class Draw(Protocol):
    """Draws the picture `width` wide under a name that is unique in the page."""

    def __call__(self, name: str, width: float) -> Markup: ...


@dataclass(frozen=True)
class Figure:
    """A picture with everything that must come with it: the same as a table, how it was measured, its findings.

    `findings` are beginnings of findings' codes. `keys` are the (sample, words) of its legend.
    """

    name: str
    title: str
    says: str
    draw: Draw
    table: Table
    measured: str
    findings: tuple[str, ...] = ()
    keys: tuple[tuple[Markup, str], ...] = ()

    @property
    def wide(self) -> Markup:
        """The picture for a page."""
        return self.draw(f"{self.name}-wide", WIDE)

    @property
    def narrow(self) -> Markup:
        """The picture for a phone."""
        return self.draw(f"{self.name}-narrow", NARROW)


@dataclass(frozen=True)
class Side:
    """One arm: its capture, pooled, and how its steps went over time."""

    capture: Capture
    arm: Arm
    series: Series


@dataclass(frozen=True)
class Material:
    """What the figures are drawn from. Without a baseline there is one side and no comparison."""

    candidate: Side
    baseline: Side | None = None
    comparison: Comparison | None = None

    @property
    def sides(self) -> list[Side]:
        """The arms, baseline first."""
        return [self.candidate] if self.baseline is None else [self.baseline, self.candidate]

    @property
    def rows(self) -> Sequence[Row]:
        """The batch sizes at which both arms were measured."""
        return () if self.comparison is None else self.comparison.rows


def method_of(capture: Capture) -> str:
    """How the capture's periods were measured, in words."""
    for window in capture.windows:
        for rank in window.ranks:
            for batch in rank.batches:
                return METHODS[batch.period_ms.method]
    return "nothing: no steps were recorded"


def parts_method_of(capture: Capture) -> str:
    """How the parts of its steps were measured, in words."""
    for window in capture.windows:
        for batch in (batch for rank in window.ranks for batch in rank.batches):
            for part in batch.parts:
                on_device = batch.period_ms.method == "cuda_event" or part.host_ms is None
                return METHODS["cuda_event" if on_device else "host_clock"]
    return "not known"


def spread(costs: Sequence[BatchCost], most: int) -> list[BatchCost]:
    """At most `most` of the batch sizes, the smallest and the largest among them."""
    if len(costs) <= most:
        return list(costs)
    return [costs[round(i * (len(costs) - 1) / (most - 1))] for i in range(most)]

"""Denied graphs as a table: where, which condition, with which values, and the source lines around it."""

from __future__ import annotations

from dataclasses import dataclass

from eaglediag.analysis.sentences import PHASE_NAMES
from eaglediag.capture.model import Denial, Frame
from eaglediag.reports.html.figure import Material

#: Beyond these the rarest are only counted.
MOST = 60


@dataclass(frozen=True)
class Refused:
    """One line of the table. `finding` is the beginning of the codes of findings about it."""

    arm: str
    phase: str
    batch: str
    times: str
    gate: str
    frames: tuple[Frame, ...]
    why: str
    finding: str

    @property
    def leaf(self) -> Frame | None:
        """The expression that said no in the end."""
        return self.frames[-1] if self.frames else None


def refused(material: Material) -> tuple[list[Refused], int]:
    """(the most frequent denials, how many kinds are left out)."""
    every = [(side.capture.arm, denial) for side in material.sides for denial in side.capture.denials]
    every.sort(key=lambda one: (not one[1].decides, -sum(one[1].counts.values())))
    return [_refused(arm, denial) for arm, denial in every[:MOST]], max(0, len(every) - MOST)


def place(frame: Frame) -> str:
    """`decode_cuda_graph_runner.py:412`; the folders before the package say nothing."""
    _, _, inside = frame.file.rpartition("site-packages/")
    return f"{inside}:{frame.line}"


def _refused(arm: str, denial: Denial) -> Refused:
    counts = sorted(denial.counts.values())
    times = f"{sum(counts)}" + (f" on {len(counts)} ranks" if len(counts) > 1 else "")
    why = "" if denial.decides else "eager already, by another gate"
    return Refused(
        arm=arm,
        phase=PHASE_NAMES[denial.phase],
        batch="–" if denial.batch_size is None else str(denial.batch_size),
        times=times,
        gate=denial.gate,
        frames=tuple(denial.frames),
        why=denial.reason or why,
        finding=f"graph_denied_{denial.phase}",
    )

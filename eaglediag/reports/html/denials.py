"""Denied graphs as a table: where, which condition, with which values, and the source lines around it."""

from __future__ import annotations

from dataclasses import dataclass

from eaglediag.analysis.denials import Refusals, refusals
from eaglediag.analysis.findings import Finding
from eaglediag.analysis.sentences import PHASE_NAMES, condition
from eaglediag.capture.model import Frame
from eaglediag.reports.html.figure import Material

#: Beyond these the rarest are only counted.
MOST = 60


@dataclass(frozen=True)
class Refused:
    """One line of the table. `advice` may be empty."""

    arm: str
    refusals: Refusals

    @property
    def phase(self) -> str:
        """The phase's name."""
        return PHASE_NAMES[self.refusals.denial.phase]

    @property
    def batches(self) -> str:
        """The batch sizes."""
        return ", ".join(map(str, self.refusals.batch_sizes)) or "–"

    @property
    def frames(self) -> list[Frame]:
        """From the gate's answer to the expression that said no in the end."""
        return self.refusals.denial.frames

    @property
    def leaf(self) -> Frame | None:
        """The expression that said no in the end."""
        return self.frames[-1] if self.frames else None

    @property
    def note(self) -> str:
        """What else there is to say."""
        denial = self.refusals.denial
        return denial.reason or ("" if denial.decides else "eager already, by another gate")

    @property
    def advice(self) -> str:
        """What would have allowed it."""
        return self.refusals.advice.sentence if self.refusals.advice else ""

    def is_in(self, finding: Finding) -> bool:
        """Whether a finding speaks of it: of its phase in its arm, and of its condition, which the evidence quotes."""
        denial = self.refusals.denial
        if not denial.decides or (self.arm, denial.phase) not in finding.denied:
            return False
        facts = [one.fact for one in finding.evidence]
        if self.leaf is None:
            return condition(denial) in facts
        # A known condition is one finding wherever it stands; one that is not known is a finding for each place.
        known = self.refusals.advice is not None
        place_ = f"({self.leaf.file.rsplit('/', 1)[-1]}:{self.leaf.line}"
        return any(fact.startswith(f"`{self.leaf.text}`") and (known or place_ in fact) for fact in facts)


def refused(material: Material) -> tuple[list[Refused], int]:
    """(the most frequent denials, how many kinds are left out)."""
    every = [Refused(side.capture.arm, one) for side in material.sides for one in refusals(side.capture)]
    every.sort(key=lambda one: (not one.refusals.denial.decides, -one.refusals.total))
    return every[:MOST], max(0, len(every) - MOST)


def place(frame: Frame) -> str:
    """`sglang/srt/...runner.py:412`; the folders before the package say nothing."""
    _, _, inside = frame.file.rpartition("site-packages/")
    return f"{inside}:{frame.line}"

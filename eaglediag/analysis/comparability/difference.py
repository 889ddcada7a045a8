"""One difference between two arms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Grade = Literal["harmless", "confounding", "not_comparable"]
#: From least to gravest.
GRADES: tuple[Grade, ...] = ("harmless", "confounding", "not_comparable")


@dataclass(frozen=True)
class Difference:
    """What differs, its value in each arm, and how much it weakens a verdict: `why` says the reason for the grade."""

    what: str
    baseline: str
    candidate: str
    grade: Grade
    why: str

    def __str__(self) -> str:
        return f"{self.what}: {self.baseline} against {self.candidate} ({self.why})"

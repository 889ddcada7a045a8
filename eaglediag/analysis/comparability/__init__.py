"""Whether two captures may be compared: every difference between the arms other than speculation, named and graded."""

from __future__ import annotations

from dataclasses import dataclass

from eaglediag.analysis.comparability.difference import GRADES, Difference, Grade
from eaglediag.analysis.comparability.gpus import gpu_differences
from eaglediag.analysis.comparability.settings import known_of_one, setting_differences
from eaglediag.analysis.measured import is_speculative
from eaglediag.capture.model import Capture

__all__ = ["Comparability", "Difference", "Grade", "comparability"]


@dataclass(frozen=True)
class Comparability:
    """All differences, gravest first, and what could not be compared because a capture does not say."""

    differences: tuple[Difference, ...]
    unknown: tuple[str, ...]

    @property
    def grade(self) -> Grade:
        """The gravest grade; harmless when there is no difference."""
        return self.differences[0].grade if self.differences else "harmless"

    def graded(self, grade: Grade) -> tuple[Difference, ...]:
        """The differences of one grade."""
        return tuple(one for one in self.differences if one.grade == grade)


def comparability(baseline: Capture, candidate: Capture) -> Comparability:
    """Compare everything that could explain a difference and is not speculation."""
    found = setting_differences(baseline, candidate, is_speculative(baseline) != is_speculative(candidate))
    state, unknown = gpu_differences(baseline, candidate)
    ordered = sorted([*found, *state], key=lambda one: GRADES.index(one.grade), reverse=True)
    return Comparability(tuple(ordered), (*unknown, *known_of_one(baseline, candidate)))

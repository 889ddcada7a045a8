"""The gates of an SGLang installation, read from its source: what they ask, what that depends on, what changed."""

from eaglediag.analysis.gates.difference import Difference, difference
from eaglediag.analysis.gates.installation import Condition, Gate, Installation
from eaglediag.analysis.gates.on_paper import Answer, Asked, answers, parse_question

__all__ = [
    "Answer",
    "Asked",
    "Condition",
    "Difference",
    "Gate",
    "Installation",
    "answers",
    "difference",
    "parse_question",
]

"""How often a function asks its operands for their truth, traced and untraced: `python -m tests.asked_truth`.

Prints a line for each difference. Standard library only, so that every Python the payload supports can run it.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

from tests.traced import load, trace

OPERANDS = 5
SOURCES = (
    "if p(0) and p(1):\n  return False\n return p(3)",
    "if not (p(0) and p(1)):\n  return False\n return p(3)",
    "if p(0) or p(1):\n  return False\n return True",
    "if (p(0) or p(1)) and p(2):\n  return False\n return True",
    "if not ((p(0) or p(1)) and not p(2)):\n  return False\n return True",
    "if p(0) if p(1) and p(2) else p(3) or p(4):\n  return False\n return True",
    "if not (p(0) if p(1) else not (p(2) or p(3))):\n  return False\n return True",
    "if p(0) < p(1) < p(2):\n  return False\n return True",
    "if not p(0) < p(1) < p(2) or p(3):\n  return False\n return True",
    "if (v := p(0) or p(1)) and p(2):\n  return False\n return True",
    "v = 0\n while v < 2 and (p(0) or p(1)):\n  v += 1\n return False",
    "return (p(0) or p(1)) and p(2)",
    "return not (p(0) or p(1))",
    "return not not p(0)",
    "return (not p(0)) and p(1)",
    "return not (p(0) and p(1)) or p(2)",
    "return (p(0) if p(1) and p(2) else p(3)) and p(4)",
    "return (p(0) or p(1) if p(2) else p(3) and p(4)) and p(0)",
    "return p(0) if p(1) or p(2) else p(3)",
    "return p(0) if not (p(1) or p(2)) else p(3)",
    "return any([p(0) or p(1), p(2)])",
    "return any((p(0) or p(1)) and p(2) for i in (1, 2))",
    "return bool((p(0) or p(1)) and p(2))",
    "return (p(0) and p(1)) or (p(2) and p(3))",
    "return ((p(0) and p(1)) or p(2)) and p(3)",
    "return (p(0) < p(1) < p(2)) and p(3)",
    "return p(0) < p(1) < p(2)",
    "return (p(0) and p(1) or p(2)) == p(3)",
    "v = (p(0) or p(1)) and p(2)\n return v",
    "v = p(4)\n v &= (p(0) or p(1)) and p(2)\n return v",
    "v = p(0)\n w = v or p(1)\n return w and p(2)",
)


class Operand:
    """Writes down when it is asked for its truth or compared; a comparison gives it back."""

    def __init__(self, log: list[str], number: int, true: bool) -> None:
        self.log, self.number, self.true = log, number, true

    def __bool__(self) -> bool:
        self.log.append(f"bool {self.number}")
        return self.true

    def __lt__(self, other: object) -> Operand:
        self.log.append(f"compare {self.number}")
        return self

    def __eq__(self, other: object) -> Operand:  # type: ignore[override]
        return self < other

    __hash__ = None  # type: ignore[assignment]

    def __iand__(self, other: object) -> object:
        return other


def differences() -> Iterator[str]:
    """Every source with every combination of true and false operands, traced against untraced."""
    log: list[str] = []
    operands: list[Operand] = []

    def p(number: int) -> Operand:
        log.append(f"p {number}")
        return operands[number]

    def told(function: FunctionType) -> tuple[int, list[str]]:
        log.clear()
        return id(function()), list(log)

    with tempfile.TemporaryDirectory() as folder:
        for source in SOURCES:
            plain, traced = (load(Path(folder), f"def can_run():\n {source}\n", p=p)["can_run"] for _ in range(2))
            trace(traced)
            for truths in itertools.product((True, False), repeat=OPERANDS):
                operands[:] = [Operand(log, number, true) for number, true in enumerate(truths)]
                before, after = told(plain), told(traced)
                if before != after:
                    yield f"{source!r} with {truths}: {after[1]}, not {before[1]}"


if __name__ == "__main__":
    for difference in differences():
        print(difference)

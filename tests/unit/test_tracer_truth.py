"""A traced function asks its operands for their truth exactly as often as before: a tensor that is asked waits."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.pythons import interpreters


@pytest.mark.parametrize("python", interpreters(), ids=lambda python: Path(python).parents[1].name)
def test_operands_are_asked_as_often_as_before(python: str) -> None:
    ran = subprocess.run(
        [python, "-m", "tests.asked_truth"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stderr == ""
    assert ran.stdout == ""

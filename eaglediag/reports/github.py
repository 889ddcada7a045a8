"""`check` as annotations of a GitHub Actions job (workflow commands on standard output)."""

from __future__ import annotations

from typing import TextIO

from eaglediag.analysis.policy import Check
from eaglediag.reports.untrusted import printable


def render(result: Check, out: TextIO) -> None:
    """Write an error for every failed gate, an error or warning for every inconclusive one, a notice when all pass."""
    for gate in result.gates:
        if gate.status == "pass":
            continue
        warns = gate.status == "inconclusive" and result.on_inconclusive == "warn"
        message = f"{gate.name}: measured {gate.measured}, asked {gate.asked}. {gate.detail}".strip()
        title = _property(f"eaglediag: {gate.status}")
        out.write(f"::{'warning' if warns else 'error'} title={title}::{_data(message)}\n")
    if all(gate.status == "pass" for gate in result.gates):
        out.write(f"::notice title=eaglediag::{_data(result.headline)}\n")


def _data(text: str) -> str:
    """A command's message, on one line, so that no text can start a command of its own."""
    return printable(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")

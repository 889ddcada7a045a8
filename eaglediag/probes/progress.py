"""What a probe is doing, said as it happens."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives what goes on. `fraction` is done/all of the stage where that is known, 0 to 1."""

    def __call__(self, stage: str, detail: str = "", fraction: float | None = None) -> None: ...


def silent(stage: str, detail: str = "", fraction: float | None = None) -> None:
    """Progress to nobody."""

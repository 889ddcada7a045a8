"""Times on the device: pairs of CUDA events from a pool, read when they are ready, never waited for."""

from __future__ import annotations

import sys
from typing import Any


class CudaClock:
    """Marks on the current stream. `available()` is False where the process has no CUDA context."""

    def __init__(self) -> None:
        self._pool: list[Any] = []

    @staticmethod
    def available() -> bool:
        """Whether this process works on a CUDA device; asks nothing that would create a context."""
        torch: Any = sys.modules.get("torch")
        return torch is not None and bool(torch.version.cuda) and bool(torch.cuda.is_initialized())

    def mark(self) -> Any:
        """Record an event on the stream the caller works on."""
        event = self._pool.pop() if self._pool else sys.modules["torch"].cuda.Event(enable_timing=True)
        event.record()
        return event

    def release(self, event: Any) -> None:
        """Give an event back to the pool."""
        self._pool.append(event)


class NoClock:
    """Where there is no device: no marks, no times."""

    @staticmethod
    def available() -> bool:
        """Never."""
        return False

    def mark(self) -> None:
        """Nothing to mark."""

    def release(self, event: Any) -> None:
        """Nothing to give back."""

"""Times on the device: pairs of CUDA events from a pool, read when they are ready, never waited for."""

from __future__ import annotations

import sys
from typing import Any


class CudaClock:
    """Marks on the current stream. `available()` is False where the process has no CUDA context.

    Left to find the stream itself, `Event.record` makes a new object of it: 5 us, and 30 us among work that keeps the
    caches busy (H200, torch 2.11). So the objects are kept by what the runtime calls the stream.
    """

    def __init__(self) -> None:
        self._pool: list[Any] = []
        self._streams: dict[Any, Any] = {}
        self._current: Any = None
        self._device: Any = None

    @staticmethod
    def available() -> bool:
        """Whether this process works on a CUDA device; asks nothing that would create a context."""
        torch: Any = sys.modules.get("torch")
        return torch is not None and bool(torch.version.cuda) and bool(torch.cuda.is_initialized())

    def mark(self) -> Any:
        """Record an event on the stream the caller works on."""
        event = self._pool.pop() if self._pool else sys.modules["torch"].cuda.Event(enable_timing=True)
        event.record(self._stream())
        return event

    def _stream(self) -> Any:
        if self._current is None:
            self._learn()
        key = self._current(self._device)
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = sys.modules["torch"].cuda.current_stream()
        return stream

    def _learn(self) -> None:
        """On the caller's thread, because each thread has its own current device."""
        torch: Any = sys.modules["torch"]
        self._device = torch.cuda.current_device()
        # torch's own, but not public: without it, the slow way.
        self._current = getattr(torch._C, "_cuda_getCurrentStream", lambda device: torch.cuda.current_stream())

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

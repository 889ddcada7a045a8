"""What the agent itself costs a call, measured where it runs, on a function that does nothing."""

from __future__ import annotations

import time
from typing import Any

from .clock import CudaClock
from .hooks import PhaseOf
from .recorder import Recorder
from .wrap import innermost, wrap

CALLS = 2000


def cost_of_a_span(cuda: bool) -> float:
    """Seconds that one hooked call adds: its row, its two clock readings and, with CUDA, its two events."""
    recorder = Recorder()
    if cuda:
        recorder.clock = CudaClock()
    recorder.active = True

    def nothing(worker: Any, batch: Any) -> None:
        pass

    patch = wrap(innermost(nothing), PhaseOf(recorder, lambda hook, why: None, "verify"))
    step = recorder.open("step", "cycle", 1)
    plain = _time(nothing)
    patch.on()
    hooked = _time(nothing)
    patch.off()
    recorder.close(step)
    recorder.drain(5.0)
    return max(0.0, hooked - plain)


def _time(function: Any) -> float:
    begin = time.perf_counter()
    for _ in range(CALLS):
        function(None, None)
    return (time.perf_counter() - begin) / CALLS

"""What the agent itself costs a call, measured where it runs, on a function that does nothing."""

from __future__ import annotations

import time
from typing import Any

from .clock import CudaClock
from .hooks import PhaseOf
from .recorder import Recorder
from .wrap import innermost, wrap

CALLS = 200
ROUNDS = 10


def cost_of_a_span(cuda: bool) -> float:
    """Seconds that one hooked call adds: its row, its two clock readings and, with CUDA, its two events.

    Processor time of this thread: the scheduler's own thread never rests, and waiting for it is not the hook's cost.
    """
    recorder = Recorder()
    if cuda:
        recorder.clock = CudaClock()
    recorder.active = True

    def nothing(worker: Any, batch: Any) -> None:
        pass

    patch = wrap(innermost(nothing), PhaseOf(recorder, lambda hook, why: None, "verify"))
    step = recorder.open("step", "cycle", 1)
    plain = min(_time(nothing) for _ in range(ROUNDS))
    patch.on()
    rounds = []
    for _ in range(ROUNDS + 1):
        rounds.append(_time(nothing))
        recorder.drain(1.0)  # gives the events back to the pool, as steps do
    patch.off()
    recorder.close(step)
    recorder.drain(1.0)
    del rounds[0]  # it made the events that the others reuse
    return max(0.0, sum(rounds) / len(rounds) - plain)


def _time(function: Any) -> float:
    begin = time.thread_time_ns()
    for _ in range(CALLS):
        function(None, None)
    return (time.thread_time_ns() - begin) / 1e9 / CALLS

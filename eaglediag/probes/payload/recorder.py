"""What one rank records: a row for each step, each phase in it, and each set of accept lengths.

The hooks call this from the scheduler's hot path: no synchronisation, no tensor work, bounded memory, and nothing
raises. Rows leave through `drain`, on the agent's thread.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from typing import Any

from .clock import CudaClock, NoClock

#: The columns of a row, in order; `accept` is a list of accept lengths with the bonus token, one a request.
COLUMNS = (
    "row",
    "step",
    "phase",
    "batch",
    "tokens",
    "graph",
    "start_ns",
    "host_ns",
    "device_us",
    "period_ns",
    "period_device_us",
    "accept",
)
ROW, STEP, PHASE, BATCH, TOKENS, GRAPH, START, HOST, DEVICE, PERIOD, PERIOD_DEVICE, ACCEPT = range(len(COLUMNS))

#: About 100 bytes a row: some 60 MB at the most, an hour of steps at 10 ms.
MAX_ROWS = 600_000


class Span:
    """A step or a phase that is going on."""

    __slots__ = ("begin", "end", "graph", "note", "outer", "row")

    def __init__(self, row: list[Any], outer: Span | None) -> None:
        self.row = row
        self.outer = outer
        self.graph: bool | None = None
        self.begin: Any = None
        self.end: Any = None
        self.note: Any = None


def annotation(row: list[Any]) -> Any:
    """A range that the torch profiler records: `eaglediag[verify bs=12 step=7]`. Entered here."""
    torch: Any = sys.modules["torch"]
    note = torch.profiler.record_function(f"eaglediag[{row[PHASE]} bs={row[BATCH]} step={row[STEP]}]")
    note.__enter__()
    return note


class Recorder:
    """Collects rows while `active`. One a process; the scheduler's threads write, the agent's thread drains."""

    def __init__(self) -> None:
        self.active = False
        self.annotate = False
        self.dropped = 0
        #: How long this window's hooks took, in the places where they ran.
        self.spent_ns = 0
        self.clock: CudaClock | NoClock = NoClock()
        self._rows: list[list[Any]] = []
        self._pending: deque[tuple[list[Any], Any, Any]] = deque()
        self._steps = 0
        self._last: Span | None = None
        self._before: tuple[list[Any], Any] | None = None
        self._results: dict[int, int] = {}
        self._accepted_step = -1
        self._threads = threading.local()

    # -- from the hooks ------------------------------------------------------------------------------------------

    def current(self) -> Span | None:
        """The innermost span of this thread, or None."""
        return getattr(self._threads, "span", None)

    def context(self) -> tuple[str | None, int | None]:
        """(phase, batch size) of what this thread is doing: what a denial is counted under."""
        span = self.current()
        if span is None:
            return None, None
        phase = span.row[PHASE]
        return ("verify" if phase == "cycle" else phase), span.row[BATCH]

    def open(self, kind: str, phase: str, batch: int | None) -> Span:
        """Begin a step ("step") or a phase of one ("phase")."""
        outer = self.current()
        if kind == "step":
            self._steps += 1
        row: list[Any] = [kind, self._steps, phase, batch, None, None, 0, None, None, None, None, None]
        span = Span(row, outer)
        self._threads.span = span
        if self.annotate:
            span.note = annotation(row)
        span.begin = self.clock.mark()
        now = row[START] = time.perf_counter_ns()
        if kind == "step":
            last = self._last
            # A period is only meaningful between two steps of a kind: between others the scheduler may have been idle.
            if last is not None and last.row[PHASE] == phase and last.row[BATCH] == batch:
                last.row[PERIOD] = now - last.row[START]
        return span

    def close(self, span: Span) -> None:
        """End a span and keep its row."""
        row = span.row
        row[HOST] = time.perf_counter_ns() - row[START]
        span.end = self.clock.mark()
        if span.note is not None:
            span.note.__exit__(None, None, None)
        row[GRAPH] = span.graph
        self._threads.span = span.outer
        if span.outer is not None and span.graph is not None and span.outer.graph is None:
            span.outer.graph = span.graph
        if not self.active:
            return
        if row[ROW] == "step":
            self._last = span
        if len(self._rows) >= MAX_ROWS:
            self.dropped += 1
            return
        self._rows.append(row)
        if span.begin is not None:
            self._pending.append((row, span.begin, span.end))
            if row[ROW] == "step":
                self._resolve(16)

    def discard(self, span: Span) -> None:
        """Forget a span whose call raised."""
        if span.note is not None:
            span.note.__exit__(None, None, None)
        self._threads.span = span.outer

    def remember(self, result: Any, step: int) -> None:
        """Note which step a result object came from, unless its accept lengths are known already."""
        if step == self._accepted_step:
            return
        self._results[id(result)] = step
        if len(self._results) > 64:
            del self._results[next(iter(self._results))]

    def step_of(self, result: Any) -> int | None:
        """The step that a result object came from; known once."""
        return self._results.pop(id(result), None)

    def accepted(self, step: int, batch: int, lengths: list[int]) -> None:
        """Keep the accept lengths (bonus token included) of a step's verify."""
        self._accepted_step = step
        if self.active and len(self._rows) < MAX_ROWS:
            self._rows.append(
                ["accept", step, "verify", batch, None, None, time.perf_counter_ns(), None, None, None, None, lengths]
            )

    # -- from the agent's thread ---------------------------------------------------------------------------------

    def start(self, annotate: bool = False) -> None:
        """Begin a fresh window; with `annotate`, each span is a named range in a torch profile as well."""
        self.annotate = annotate
        self.clock = CudaClock() if CudaClock.available() else NoClock()
        self._rows, self._pending, self._last, self._before, self.dropped = [], deque(), None, None, 0
        self._results.clear()
        self.spent_ns = 0
        self.active = True

    def stop(self) -> None:
        """End the window; a step that is going on is not kept."""
        self.active = False

    def drain(self, patience_s: float = 2.0) -> list[list[Any]]:
        """The window's rows, device times filled in as far as the device got within `patience_s`."""
        deadline = time.monotonic() + patience_s
        while self._pending and time.monotonic() < deadline:
            self._resolve(len(self._pending))
            if self._pending:
                time.sleep(0.01)
        rows, self._rows = self._rows, []
        self._pending.clear()
        return rows

    def _resolve(self, limit: int) -> None:
        pending = self._pending
        while pending and limit:
            row, begin, end = pending[0]
            if not end.query():
                return
            pending.popleft()
            limit -= 1
            row[DEVICE] = round(begin.elapsed_time(end) * 1000, 1)
            if row[ROW] == "step":
                self._between(row, begin)
                self.clock.release(end)
            else:
                self.clock.release(begin)
                self.clock.release(end)

    def _between(self, row: list[Any], begin: Any) -> None:
        """The device's own period of the step before this one, start to start."""
        before = self._before
        if before is not None:
            earlier, mark = before
            if earlier[PERIOD] is not None and earlier[STEP] == row[STEP] - 1:
                earlier[PERIOD_DEVICE] = round(mark.elapsed_time(begin) * 1000, 1)
            self.clock.release(mark)
        self._before = (row, begin)

"""The hooks behind the probe points: what each role reads from SGLang's own arguments and results.

Sources of the names read here: SGLang 0.5.2 to 0.5.23. Nothing but shapes, plain numbers and enum values is read,
so nothing here makes the host wait for the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .recorder import BATCH, PHASE, STEP, TOKENS, Recorder, Span
from .wrap import Hook

#: A hook that fails this often is taken out.
MAX_ERRORS = 20

#: ForwardMode's names, by release, and the phase each is when no worker method says more.
MODES = {
    "DECODE": "decode",
    "TARGET_VERIFY": "verify",
    "DRAFT_EXTEND": "draft_extend",
    "DRAFT_EXTEND_V2": "draft_extend",
    "IDLE": "idle",
}


class Guarded(Hook):
    """A hook whose own failures never reach SGLang: they are counted, and after MAX_ERRORS it removes itself."""

    def __init__(self, recorder: Recorder, failed: Callable[[Hook, str], None]) -> None:
        self.recorder = recorder
        self.failed = failed
        self.errors = 0

    def enter(self, arguments: tuple[Any, ...]) -> Any:
        began = time.perf_counter_ns()
        try:
            return self.before(arguments)
        except Exception as error:
            self._count(error)
            return None
        finally:
            self.recorder.spent_ns += time.perf_counter_ns() - began

    def leave(self, token: Any, result: Any) -> None:
        if token is None:
            return
        began = time.perf_counter_ns()
        try:
            self.after(token, result)
        except Exception as error:
            self._count(error)
        finally:
            self.recorder.spent_ns += time.perf_counter_ns() - began

    def abandon(self, token: Any) -> None:
        if isinstance(token, Span):
            self.recorder.discard(token)

    def _count(self, error: Exception) -> None:
        self.errors += 1
        if self.errors in (1, MAX_ERRORS):
            why = f"{type(error).__name__}: {error}"
            self.failed(self, why if self.errors == 1 else f"removed after {MAX_ERRORS} errors, the last: {why}")

    def before(self, arguments: tuple[Any, ...]) -> Any:
        """Called with the arguments; what it returns comes back in `after`. None: nothing to do afterwards."""
        raise NotImplementedError

    def after(self, token: Any, result: Any) -> None:
        """Called with the result."""
        raise NotImplementedError


class Step(Guarded):
    """A worker's forward_batch_generation: the outermost one is the scheduler's step, plain or speculative."""

    def __init__(self, recorder: Recorder, failed: Callable[[Hook, str], None], kind: str) -> None:
        super().__init__(recorder, failed)
        self.kind = kind

    def before(self, arguments: tuple[Any, ...]) -> Span | None:
        batch = next((value for value in arguments[1:3] if hasattr(value, "forward_mode")), None)
        if batch is None:
            return None
        mode = batch.forward_mode.name
        if self.recorder.current() is None:
            phase = self.kind if mode == "DECODE" else MODES.get(mode, "extend")
            return self.recorder.open("step", phase, _batch_size(batch))
        # Inside a step, the target worker's own call is a phase only when no worker method already says which.
        if self.recorder.current().row[PHASE] in ("cycle", "extend", "idle"):  # type: ignore[union-attr]
            return self.recorder.open("phase", MODES.get(mode, "extend"), _batch_size(batch))
        return None

    def after(self, token: Span, result: Any) -> None:
        recorder = self.recorder
        recorder.close(token)
        if token.row[0] == "step":
            recorder.remember(result, token.row[STEP])


class PhaseOf(Guarded):
    """A worker's draft, verify or draft-extend method. A subclass's super() call is the same phase, counted once."""

    def __init__(self, recorder: Recorder, failed: Callable[[Hook, str], None], phase: str) -> None:
        super().__init__(recorder, failed)
        self.phase = phase

    def before(self, arguments: tuple[Any, ...]) -> Span | None:
        current = self.recorder.current()
        if current is None or current.row[PHASE] == self.phase:
            return None
        return self.recorder.open("phase", self.phase, current.row[BATCH])

    def after(self, token: Span, result: Any) -> None:
        recorder = self.recorder
        if token.graph is None:
            token.graph = False  # neither a replay nor a forward that says it used a graph
        recorder.close(token)
        if self.phase == "verify":
            # The v1 workers settle the lengths themselves, on the CPU; with v2 the scheduler does.
            for part in result if isinstance(result, tuple) else ():
                lengths = accept_lengths(part)
                if lengths is not None:
                    recorder.accepted(token.row[STEP], len(lengths), lengths)
                    return


class Forward(Guarded):
    """ModelRunner.forward: says how many tokens went through the model, and whether as a graph."""

    def before(self, arguments: tuple[Any, ...]) -> Any:
        return arguments[1] if self.recorder.current() is not None else None

    def after(self, token: Any, result: Any) -> None:
        span = self.recorder.current()
        if span is None:
            return
        tokens = token.input_ids
        if tokens is not None and span.row[TOKENS] is None:
            span.row[TOKENS] = int(tokens.shape[0])
        # Before 0.5.9 the result was a tuple (output, can_run_graph).
        graph = result[1] if isinstance(result, tuple) else getattr(result, "can_run_graph", None)
        if graph is not None and span.graph is not True:
            span.graph = bool(graph)


class Replay(Guarded):
    """A draft or draft-extend graph runner replays: the phase that is going on ran as a graph."""

    def before(self, arguments: tuple[Any, ...]) -> None:
        span = self.recorder.current()
        if span is not None:
            span.graph = True

    def after(self, token: Any, result: Any) -> None:
        raise AssertionError("before returns None")


class Accept(Guarded):
    """The scheduler handles a decode result: by then the accept lengths are on the CPU.

    With overlap scheduling a request that has ended is still in the batch once more; what that pass accepts is never
    emitted, and SGLang does not count it either.
    """

    def before(self, arguments: tuple[Any, ...]) -> Any:
        batch, outcome = arguments[1:3]
        step = self.recorder.step_of(outcome)
        if step is None:
            return None
        return step, outcome, [not (request.finished() or request.is_retracted) for request in batch.reqs]

    def after(self, token: Any, result: Any) -> None:
        step, outcome, live = token
        lengths = accept_lengths(outcome)
        if lengths is not None and len(lengths) == len(live):
            lengths = [length for length, emitted in zip(lengths, live, strict=True) if emitted]
        if lengths:
            self.recorder.accepted(step, len(lengths), lengths)


def accept_lengths(result: Any) -> list[int] | None:
    """Accept lengths with the bonus token, one a request, from a result whose numbers are already on the CPU.

    0.5.12 and later: `num_correct_drafts_per_req_cpu`; 0.5.2 to 0.5.10: `accept_length_per_req_cpu`; both leave the
    bonus token out. 0.5.4 to 0.5.6, overlap scheduler: only the tensor `accept_lens`, which has it.
    """
    for name in ("num_correct_drafts_per_req_cpu", "accept_length_per_req_cpu"):
        drafts = getattr(result, name, None)
        if isinstance(drafts, list):
            return [int(count) + 1 for count in drafts]
    lengths = getattr(result, "accept_lens", None)
    if lengths is not None and getattr(lengths, "is_cpu", False):
        return [int(count) for count in lengths.tolist()]
    return None


def _batch_size(batch: Any) -> int:
    requests = getattr(batch, "reqs", None)
    return len(requests) if requests is not None else int(batch.seq_lens.shape[0])

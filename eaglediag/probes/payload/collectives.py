"""Counting collective calls where they are launched: by phase, batch size, backend and operation, with bytes.

Each is counted once, at the outermost function that is a backend's own (what that calls in turn is the same
collective). Eager calls are counted as they happen, under what the recorder says is going on. Calls inside a graph are
counted while the stream captures - the forward also runs twice before that, to warm up, and those runs are no part of
the graph - and happen again in every replay; the multiplying is done where the replays are known.

Sources of the names: SGLang 0.5.2 to 0.5.23 (probe_points.py), torch.distributed of 2.5 to 2.13, FlashInfer 0.3 to 0.6.
Not seen: MoE dispatch through DeepEP or Mooncake, which are no collectives of these libraries.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

from .hooks import MAX_ERRORS, MODES
from .imports import when_imported
from .probe_points import ProbePoint
from .recorder import BATCH, PHASE, Recorder
from .wrap import Hook, Patch, Refused, innermost, wrap

TORCH = "torch.distributed.distributed_c10d"
#: torch's functions, and which parameter holds what this rank contributes (-1: nothing).
TORCH_CALLS = {
    **dict.fromkeys(("all_reduce", "all_reduce_coalesced", "broadcast", "reduce", "gather", "scatter"), 0),
    **dict.fromkeys(("send", "recv", "isend", "irecv"), 0),
    **dict.fromkeys(("all_gather", "all_gather_into_tensor", "all_gather_single", "all_gather_coalesced"), 1),
    **dict.fromkeys(("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single"), 1),
    **dict.fromkeys(("all_to_all", "all_to_all_single"), 1),
    **dict.fromkeys(("batch_isend_irecv", "barrier"), -1),
}
FLASHINFER_CALLS = (
    ("flashinfer.comm.allreduce", "allreduce_fusion"),
    ("flashinfer.comm.trtllm_ar", "trtllm_allreduce_fusion"),
)
#: In a method's name, the operation it is; the first that matches counts.
OPERATIONS = (
    *("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "batch_isend_irecv", "send", "recv"),
    *("gather", "scatter", "reduce", "barrier"),
)
#: GroupCoordinator's own methods: a call that no known backend took up is counted under this name.
OTHER = "other"

Counts = dict[tuple[str, str], list[int]]


class _Here(threading.local):
    """What this thread is in the middle of."""

    inside = False
    seen = 0


class Collectives:
    """The counts of one process, and the hooks that make them. Not listening, SGLang runs its own code."""

    def __init__(
        self,
        recorder: Recorder,
        patched: Callable[[str], None],
        refused: Callable[[str, str], None],
        capturing: Callable[[], bool] | None = None,
    ) -> None:
        self.recorder = recorder
        self.here = _Here()
        self.eager: dict[tuple[str, int | None, str, str], list[int]] = {}
        #: (phase, size) -> runner -> counts: a draft model of several layers has a graph for each, replayed in turn.
        self.captured: dict[tuple[str, int], dict[int, Counts]] = {}
        self.listening = False
        self.complete = True
        self._capturing = capturing or (lambda: bool(sys.modules["torch"].cuda.is_current_stream_capturing()))
        self._graph: Counts | None = None
        self._patches: list[Patch] = []
        self._tell_patched = patched
        self._tell_refused = refused

    # -- hooks ---------------------------------------------------------------------------------------------------

    def install(self, points: list[ProbePoint]) -> None:
        """Hook the release's own functions now or once they are imported, and torch's and FlashInfer's."""
        for point in points:
            if point.role in ("collective", "capture"):
                when_imported(point.module, partial(self._patch_point, point))
        when_imported(TORCH, self._patch_torch)
        for module, name in FLASHINFER_CALLS:
            when_imported(module, partial(self._patch_flashinfer, name))

    def on(self) -> None:
        """Listen."""
        self.listening = True
        for patch in self._patches:
            patch.on()

    def off(self) -> None:
        """Stop listening."""
        self.listening = False
        for patch in self._patches:
            patch.off()

    def _patch_point(self, point: ProbePoint, module: ModuleType) -> None:
        owner, _, name = point.qualname.rpartition(".")
        if point.role == "capture":
            hook: Hook = CaptureOf(self, point.phase)
        elif point.backend == OTHER:
            hook = Coordinator(self, operation_of(name), data=1 if "all_reduce" in name else 2)
        else:
            operation = operation_of(name)
            two = operation in ("all_gather", "reduce_scatter", "all_to_all") and point.backend.startswith("nccl")
            hook = Call(self, point.backend, operation, data=(2 if two else 1) if owner else 1)
        self._patch(point.target, getattr(module, owner) if owner else module, name, hook)

    def _patch_torch(self, module: ModuleType) -> None:
        for name, data in TORCH_CALLS.items():
            if hasattr(module, name):
                hook = TorchCall(self, module, operation_of(name), data)
                self._patch(f"torch.distributed.{name}", module, name, hook)

    def _patch_flashinfer(self, name: str, module: ModuleType) -> None:
        self._patch(f"{module.__name__}:{name}", module, name, Call(self, "flashinfer fusion", "all_reduce", data=0))

    def _patch(self, target: str, owner: Any, name: str, hook: Hook) -> None:
        try:
            function = innermost(vars(owner)[name])
            if isinstance(hook, TorchCall):
                hook.learn(function)
            patch = wrap(function, hook)
        except (Refused, AttributeError, KeyError, ValueError) as error:
            self.complete = False
            self._tell_refused(f"collective {target}", str(error) or type(error).__name__)
            return
        self._patches.append(patch)
        self._tell_patched(f"collective {target}")
        if self.listening:
            patch.on()

    # -- counting ------------------------------------------------------------------------------------------------

    def count(self, backend: str, operation: str, size: int) -> None:
        """One call that launches a collective with `size` bytes of this rank's."""
        graph = self._graph
        if graph is not None:
            if not self._capturing():
                return
            entry = graph.setdefault((backend, operation), [0, 0])
        elif self.recorder.active:
            span = self.recorder.current()
            outside = span is None or span.row[PHASE] == "cycle"
            where = ("", None) if span is None or outside else (span.row[PHASE], span.row[BATCH])
            key = (*where, backend, operation)
            entry = self.eager.get(key) or self.eager.setdefault(key, [0, 0])
        else:
            return
        entry[0] += 1
        entry[1] += size

    def begin_capture(self, phase: str, size: int, runner: int) -> bool:
        """A graph of `phase` for `size` requests is about to be captured; a later capture of it takes its place.

        False inside another capture, whose graph it is part of.
        """
        if self._graph is not None:
            return False
        self._graph = self.captured.setdefault((phase, size), {})[runner] = {}
        return True

    def end_capture(self) -> None:
        """It is captured, or it failed: then the runner does not replay it."""
        self._graph = None

    def clear(self) -> None:
        """Begin a window. What was captured stays: it is still replayed."""
        self.eager = {}

    def failed(self, hook: Call, error: Exception) -> None:
        """A hook could not read its call; the counts are no longer complete."""
        self.complete = False
        hook.errors += 1
        if hook.errors == 1:
            self._tell_refused(f"collective {hook.backend} {hook.operation}", f"{type(error).__name__}: {error}")

    def report(self) -> dict[str, Any]:
        """The counts as they are sent: eager rows [phase or "", batch, backend, operation, calls, bytes]; graphs."""
        graphs = []
        for (phase, size), runners in self.captured.items():
            total: Counts = {}
            for counts in runners.values():
                for key, (calls, length) in counts.items():
                    entry = total.setdefault(key, [0, 0])
                    entry[0] += calls
                    entry[1] += length
            graphs.append([phase, size, [[*key, *entry] for key, entry in total.items()]])
        return {
            "complete": self.complete and bool(self._patches),
            "eager": [[*key, *entry] for key, entry in self.eager.items()],
            "captured": graphs,
        }


class Call(Hook):
    """A function of a backend that launches a collective. `data` is the parameter with this rank's contribution."""

    def __init__(self, collectives: Collectives, backend: str, operation: str, data: int) -> None:
        self.collectives = collectives
        self.backend = backend
        self.operation = operation
        self.data = data
        self.errors = 0

    def enter(self, arguments: tuple[Any, ...]) -> Any:
        here = self.collectives.here
        if here.inside:
            return None
        here.inside = True
        here.seen += 1
        if self.errors < MAX_ERRORS:
            try:
                if not getattr(arguments[0], "disabled", False):
                    self.collectives.count(self.named(arguments), self.operation, self.contributed(arguments))
            except Exception as error:
                self.collectives.failed(self, error)
        return here

    def leave(self, token: Any, result: Any) -> None:
        if token is not None:
            token.inside = False

    def abandon(self, token: Any) -> None:
        self.leave(token, None)

    def named(self, arguments: tuple[Any, ...]) -> str:
        """The backend."""
        return self.backend

    def contributed(self, arguments: tuple[Any, ...]) -> int:
        """How many bytes this rank contributes."""
        if self.data < 0:
            return 0
        data = arguments[self.data]
        if isinstance(data, (list, tuple)):
            return sum(one.numel() * one.element_size() for one in data)
        return 0 if data is None else int(data.numel() * data.element_size())


class TorchCall(Call):
    """A function of torch.distributed: its backend is NCCL for a tensor on the GPU, else what the group says."""

    def __init__(self, collectives: Collectives, module: ModuleType, operation: str, data: int) -> None:
        super().__init__(collectives, "torch", operation, data)
        self.module = module
        self.group = 0

    def learn(self, function: FunctionType) -> None:
        """Find the parameter that names the group; batch_isend_irecv has it in its operations."""
        code = function.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        self.group = names.index("group") if "group" in names else -1

    def named(self, arguments: tuple[Any, ...]) -> str:
        tensor = arguments[self.data] if self.data >= 0 else None
        if isinstance(tensor, (list, tuple)):
            tensor = tensor[0] if tensor else None
        if getattr(tensor, "is_cuda", False):
            return "nccl (torch)"
        group = arguments[self.group] if self.group >= 0 else arguments[0][0].group
        name = str(self.module.get_backend(group))
        return "nccl (torch)" if name == "nccl" else name


class Coordinator(Call):
    """GroupCoordinator chooses a backend: a call that none of the known ones took up is still a collective."""

    def __init__(self, collectives: Collectives, operation: str, data: int) -> None:
        super().__init__(collectives, OTHER, operation, data)

    def enter(self, arguments: tuple[Any, ...]) -> Any:
        here = self.collectives.here
        return None if here.inside else (here.seen, arguments)

    def leave(self, token: Any, result: Any) -> None:
        if token is not None and token[0] == self.collectives.here.seen:
            try:
                self.collectives.count(self.backend, self.operation, self.contributed(token[1]))
            except Exception as error:
                self.collectives.failed(self, error)

    def abandon(self, token: Any) -> None:
        pass


class CaptureOf(Hook):
    """A graph runner captures one graph: its second argument is the number of requests."""

    def __init__(self, collectives: Collectives, phase: str) -> None:
        self.collectives = collectives
        self.phase = phase

    def enter(self, arguments: tuple[Any, ...]) -> Any:
        runner = arguments[0]
        mode = getattr(getattr(runner, "capture_forward_mode", None), "name", "")
        drafting = bool(getattr(getattr(runner, "model_runner", None), "is_draft_worker", False))
        phase = self.phase or ("draft" if drafting else MODES.get(mode, ""))
        if not phase or not isinstance(arguments[1], int):
            return None
        return self.collectives.begin_capture(phase, arguments[1], id(runner))

    def leave(self, token: Any, result: Any) -> None:
        if token:
            self.collectives.end_capture()

    def abandon(self, token: Any) -> None:
        self.leave(token, None)


def operation_of(name: str) -> str:
    """`outplace_all_reduce` is an all_reduce, `_push_stacked` of a vocabulary gather an all_gather."""
    if name in ("_push_stacked", "_pull"):
        return "all_gather"
    found = next(operation for operation in OPERATIONS if operation in name)
    return "send_recv" if found == "batch_isend_irecv" else found

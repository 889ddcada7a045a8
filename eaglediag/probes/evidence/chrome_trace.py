"""A Chrome trace of the torch profiler, streamed: kernels, launches, collectives and busy time per pass of each phase.

A pass is found by the agent's annotations when a probe made the trace (`eaglediag[verify bs=12 step=7]`), else by
SGLang's own (`step[TARGET_VERIFY bs=12]`, `draft`, `draft_extend`) or, in releases and traces without them, by the
Python function of the speculative worker that made it (profiled with stacks). A kernel
belongs to the pass in which it was launched: the correlation id leads from the kernel to the launch, and the launch's
time and thread to the pass. One cudaGraphLaunch launches many kernels.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

from eaglediag.capture.model import Phase, Problem, Profile
from eaglediag.errors import UsageError
from eaglediag.probes.evidence.evidence import Evidence
from eaglediag.probes.evidence.stream import Progress, pieces

_AGENT = re.compile(r"eaglediag\[(decode|verify|draft|draft_extend|extend|idle) bs=(\d{1,9}|None) step=(\d{1,15})\]")
_STEP = re.compile(r"step\[(\w+)(?: bs=(\d+))?")
_WORKER = re.compile(
    r"(?:eagle_worker\w*|multi_layer_eagle_worker\w*)\.py\(\d+\): "
    r"(draft|verify|forward_draft_extend\w*|_draft_extend_\w+)$"
)
_LAUNCH = re.compile(r"cu(?:da)?(?:Launch(?:Cooperative)?Kernel|GraphLaunch)")
_NCCL = re.compile(r"nccl(?:Dev)?Kernel_([A-Z][A-Za-z]+)", re.IGNORECASE)
_CUSTOM = re.compile(
    r"cross_device_reduce|allreduce_fusion|all_reduce_\w*shot|multimem_all_\w+|mscclpp|quickreduce", re.IGNORECASE
)


class Pass(NamedTuple):
    """One pass of one phase on one CPU thread; times in microseconds. `step` is the agent's number of its step."""

    start: float
    end: float
    thread: tuple[Any, Any]
    phase: Phase
    batch_size: int | None
    step: int | None = None


class Kernel(NamedTuple):
    """One kernel or copy on the device; times in microseconds."""

    start: float
    end: float
    name: str
    correlation: int
    stream: int | None = None


@dataclass
class Trace:
    """What of a trace is kept."""

    agent_passes: list[Pass] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)
    worker_passes: list[Pass] = field(default_factory=list)
    launches: dict[int, tuple[float, tuple[Any, Any], bool]] = field(default_factory=dict)
    kernels: list[Kernel] = field(default_factory=list)
    events: int = 0

    def take(self, event: dict[str, Any]) -> None:
        """Take one trace event."""
        self.events += 1
        if event.get("ph") != "X":
            return
        category, name = event.get("cat"), event.get("name")
        start, length = event.get("ts"), event.get("dur")
        if not isinstance(name, str) or not isinstance(start, (int, float)) or not isinstance(length, (int, float)):
            return
        thread = (event.get("pid"), event.get("tid"))
        arguments = event.get("args")
        correlation = arguments.get("correlation") if isinstance(arguments, dict) else None
        if category == "user_annotation":
            if ours := _AGENT.match(name):
                size = int(ours.group(2)) if ours.group(2) != "None" else None
                phase = cast(Phase, ours.group(1))
                self.agent_passes.append(Pass(start, start + length, thread, phase, size, int(ours.group(3))))
            elif found := _annotated(name):
                self.passes.append(Pass(start, start + length, thread, *found))
        elif category == "python_function":
            if worker := _WORKER.search(name):
                self.worker_passes.append(Pass(start, start + length, thread, _worker_phase(worker.group(1)), None))
        elif isinstance(correlation, int):
            if category in ("kernel", "gpu_memcpy", "gpu_memset"):
                stream = arguments.get("stream") if isinstance(arguments, dict) else None
                shown = name if category == "kernel" else ""
                self.kernels.append(Kernel(start, start + length, shown, correlation, stream))
            elif category in ("cuda_runtime", "cuda_driver") and _LAUNCH.match(name):
                self.launches[correlation] = (start, thread, "Graph" in name)


def read(path: Path, progress: Progress | None = None) -> Evidence:
    """Read a trace. Raises UsageError when it is not one or ends before its first event."""
    trace = Trace()
    problems: list[Problem] = []
    try:
        for event in events(path, progress):
            trace.take(event)
    except ValueError as error:
        if not trace.events:
            raise UsageError(f"{path} is not a readable Chrome trace: {error}", "export it again") from error
        problems.append(Problem(code="trace_cut_off", message=f"the trace ends early, after {trace.events} events"))
    found = profiles(trace)
    if not found:
        problems.append(
            Problem(
                code="no_passes_in_trace",
                message=f"the trace holds {len(trace.kernels)} kernels but names no step",
                advice="profile with SGLang's /start_profile and with_stack, or `eaglediag probe --profile-steps 5`",
            )
        )
    return Evidence(method="profiler", files=[path.name], profiles=found, problems=problems)


def events(path: Path, progress: Progress | None = None) -> Iterator[dict[str, Any]]:
    """The trace's events one by one. Raises ValueError where the file is cut off or garbled."""
    decoder = json.JSONDecoder()
    buffer, at, inside = "", 0, False
    for piece in pieces(path, progress):
        buffer, at = buffer[at:] + piece, 0
        if not inside:
            mark = re.search(r'"traceEvents"\s*:\s*\[', buffer)
            bare = re.match(r"\s*\[", buffer)
            if mark is None and bare is None:
                at = max(0, len(buffer) - 64)
                continue
            inside = True
            at = mark.end() if mark else bare.end()  # type: ignore[union-attr]
        while True:
            while at < len(buffer) and buffer[at] in " \n\t,":
                at += 1
            if at >= len(buffer):
                break
            if buffer[at] == "]":
                return
            try:
                event, at = decoder.raw_decode(buffer, at)
            except json.JSONDecodeError:
                # Either the event goes on in the next piece, or it is garbled; a whole piece settles which.
                if len(buffer) - at > 64 * 1024 * 1024:
                    raise
                break
            if isinstance(event, dict):
                yield event
    raise ValueError("it ends in the middle" if inside else "no traceEvents in it")


def attributed(trace: Trace) -> tuple[dict[Pass, list[bool]], dict[Pass, list[Kernel]]]:
    """For each pass, its launches (True: a whole graph) and its kernels and copies."""
    passes = _outermost(trace.agent_passes or trace.passes or trace.worker_passes)
    by_thread: dict[tuple[Any, Any], list[Pass]] = {}
    for one in sorted(passes):
        by_thread.setdefault(one.thread, []).append(one)
    starts = {thread: [one.start for one in found] for thread, found in by_thread.items()}
    launched: dict[Pass, list[bool]] = {one: [] for one in passes}
    pass_of: dict[int, Pass] = {}
    for correlation, (time, thread, graph) in trace.launches.items():
        at = bisect_right(starts.get(thread, []), time) - 1
        if at >= 0 and time <= by_thread[thread][at].end:
            pass_of[correlation] = by_thread[thread][at]
            launched[by_thread[thread][at]].append(graph)
    ran: dict[Pass, list[Kernel]] = {one: [] for one in passes}
    for kernel in trace.kernels:
        if kernel.correlation in pass_of:
            ran[pass_of[kernel.correlation]].append(kernel)
    return launched, ran


def profiles(trace: Trace) -> list[Profile]:
    """The passes by phase and batch size."""
    launched, ran = attributed(trace)
    groups: dict[tuple[Phase, int | None], list[Pass]] = {}
    for one in ran:
        # A pass at the trace's end may have launched what the trace no longer holds.
        if ran[one]:
            groups.setdefault((one.phase, one.batch_size), []).append(one)
    return [
        _profile(phase, size, found, launched, ran)
        for (phase, size), found in sorted(groups.items(), key=lambda item: (item[0][0], item[0][1] or 0))
    ]


def _profile(
    phase: Phase, size: int | None, passes: list[Pass], launched: dict[Pass, list[bool]], ran: dict[Pass, list[Kernel]]
) -> Profile:
    count = len(passes)
    graphs = sum(sum(launched[one]) for one in passes)
    kernels = [kernel for one in passes for kernel in ran[one] if kernel.name]
    collectives = Counter(name for kernel in kernels if (name := collective(kernel.name)))
    return Profile(
        phase=phase,
        batch_size=size,
        steps=count,
        kernels_per_step=len(kernels) / count,
        launches_per_step=(sum(len(launched[one]) for one in passes) - graphs) / count,
        graph_launches_per_step=graphs / count,
        device_busy_ms=sum(_busy(ran[one]) for one in passes) / count / 1000,
        span_ms=sum(max(kernel.end for kernel in ran[one]) - min(kernel.start for kernel in ran[one]) for one in passes)
        / count
        / 1000,
        collectives_per_step={name: calls / count for name, calls in sorted(collectives.items())},
    )


def collective(kernel: str) -> str:
    """The collective that a kernel is part of, by backend: `nccl AllReduce`, `custom cross_device_reduce`; else ""."""
    if found := _NCCL.search(kernel):
        return f"nccl {found.group(1)}"
    found = _CUSTOM.search(kernel)
    return f"custom {found.group()}" if found else ""


def _busy(kernels: list[Kernel]) -> float:
    """The time in which at least one kernel or copy ran, in microseconds: overlaps count once."""
    total, until = 0.0, float("-inf")
    for kernel in sorted(kernels):
        if kernel.end > until:
            total += kernel.end - max(kernel.start, until)
            until = kernel.end
    return total


def _annotated(name: str) -> tuple[Phase, int | None] | None:
    if name in ("draft", "draft_extend"):
        return ("draft" if name == "draft" else "draft_extend", None)
    found = _STEP.match(name)
    if found is None:
        return None
    mode, size = found.group(1), int(found.group(2)[:9]) if found.group(2) else None
    phase: Phase = "extend"
    if mode.startswith("DRAFT_EXTEND"):
        phase = "draft_extend"
    elif mode == "TARGET_VERIFY":
        phase = "verify"
    elif mode.startswith("DECODE"):
        phase = "decode"
    elif mode == "IDLE":
        phase = "idle"
    return phase, size


def _worker_phase(function: str) -> Phase:
    if function == "verify":
        return "verify"
    return "draft" if function == "draft" else "draft_extend"


def _outermost(passes: list[Pass]) -> list[Pass]:
    """The passes that are not inside another; one without a batch size takes that of a pass inside it."""
    kept: list[Pass] = []
    for one in sorted(passes, key=lambda one: (str(one.thread), one.start, -one.end)):
        outer = kept[-1] if kept else None
        if outer and outer.thread == one.thread and one.end <= outer.end:
            if outer.batch_size is None and one.batch_size is not None:
                kept[-1] = outer._replace(batch_size=one.batch_size)
        else:
            kept.append(one)
    return kept

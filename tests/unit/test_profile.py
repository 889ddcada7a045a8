"""A profile of a probe's own: passes by the agent's names, and CUDA events held against kernel times."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from eaglediag.errors import InstrumentationError
from eaglediag.probes.agents import Rows
from eaglediag.probes.payload.recorder import COLUMNS
from eaglediag.probes.profile import read


def annotation(name: str, start: float, end: float) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": name, "ts": start, "dur": end - start, "pid": 1, "tid": 1}


def launch(correlation: int, at: float, graph: bool = False) -> dict[str, Any]:
    name = "cudaGraphLaunch" if graph else "cudaLaunchKernel"
    event = {"ph": "X", "cat": "cuda_runtime", "name": name, "ts": at, "dur": 2.0, "pid": 1, "tid": 1}
    return {**event, "args": {"correlation": correlation}}


def kernel(correlation: int, start: float, end: float, name: str = "gemm", stream: int = 7) -> dict[str, Any]:
    event = {"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": end - start, "pid": 0, "tid": stream}
    return {**event, "args": {"correlation": correlation, "stream": stream}}


def trace(*events: dict[str, Any]) -> bytes:
    return gzip.compress(json.dumps({"traceEvents": list(events)}).encode())


def rows(*phases: tuple[int, str, float | None]) -> Rows:
    """(step, phase, device time in microseconds)"""
    made = []
    for step, phase, device in phases:
        row = dict.fromkeys(COLUMNS) | {"row": "phase", "step": step, "phase": phase, "batch": 12, "device_us": device}
        made.append(list(row.values()))
    return Rows(0, "cuda_event", 0, 0, list(COLUMNS), made)


EAGER = (
    annotation("draft", 90, 500),  # SGLang's own, around the agent's
    annotation("eaglediag[verify bs=12 step=7]", 100, 400),
    annotation("step[TARGET_VERIFY bs=12]", 110, 390),
    launch(1, 120),
    launch(2, 200),
    kernel(1, 150, 180, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
    kernel(2, 210, 380),
    kernel(9, 30, 60),  # of something before the pass
)


def test_passes_are_the_agents_where_it_named_them() -> None:
    (profile,) = read(trace(*EAGER), None)
    assert (profile.phase, profile.batch_size, profile.steps) == ("verify", 12, 1)
    assert (profile.kernels_per_step, profile.launches_per_step, profile.graph_launches_per_step) == (2, 2, 0)
    assert profile.device_busy_ms == pytest.approx(0.200)
    assert profile.span_ms == pytest.approx(0.230)
    assert profile.collectives_per_step == {"nccl AllReduce": 1}
    assert profile.device_ms is None


def test_on_an_idle_device_events_see_the_host() -> None:
    (profile,) = read(trace(*EAGER), rows((7, "verify", 301.0)))
    # begun by the host at 100, and the host got to the end at 400, after the last kernel
    assert profile.device_ms_by_kernels == pytest.approx(0.300)
    assert profile.device_ms == pytest.approx(0.301)


def test_on_a_busy_device_events_see_the_stream() -> None:
    (profile,) = read(
        trace(
            annotation("eaglediag[verify bs=1 step=7]", 100, 140),
            launch(1, 120, graph=True),
            kernel(8, 50, 200),
            kernel(1, 210, 300),
            kernel(1, 300, 900),
            kernel(8, 60, 850, "copy", stream=20),
        ),
        rows((7, "verify", 702.0)),
    )
    assert profile.graph_launches_per_step == 1
    assert profile.kernels_per_step == 2
    assert profile.device_ms_by_kernels == pytest.approx(0.700)
    assert profile.device_ms == pytest.approx(0.702)


def test_a_phase_that_ran_twice_in_a_step_is_not_compared() -> None:
    (profile,) = read(trace(*EAGER), rows((7, "verify", 300.0), (7, "verify", 10.0)))
    assert profile.device_ms is None


def test_without_kernels_it_is_refused() -> None:
    with pytest.raises(InstrumentationError, match="no kernels"):
        read(trace(annotation("eaglediag[verify bs=12 step=7]", 100, 400)), None)


def test_a_trace_that_is_cut_off_is_refused() -> None:
    with pytest.raises(InstrumentationError, match="cannot be read"):
        read(gzip.compress(b'{"traceEvents": [{"ph": "X", "cat"'), None)

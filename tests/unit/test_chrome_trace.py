"""Chrome traces of the torch profiler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eaglediag.errors import UsageError
from eaglediag.probes.evidence import chrome_trace
from tests.sglang_lines import imported

H200 = Path(__file__).parents[1] / "data" / "h200"


def span(category: str, name: str, start: float, length: float, **arguments: Any) -> dict[str, Any]:
    thread = {"pid": 0, "tid": 7} if category in ("kernel", "gpu_memcpy") else {"pid": 1, "tid": 1}
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": length, **thread, "args": arguments}


def step(start: float, name: str, kernels: list[tuple[str, float, float]], graph: bool) -> list[dict[str, Any]]:
    """A pass with its launches; with `graph` one launch makes all kernels."""
    events = [span("user_annotation", name, start, 100.0)]
    for i, (kernel, after, length) in enumerate(kernels):
        correlation = int(start) * 100 + (0 if graph else i)
        if not graph or i == 0:
            launch = "cudaGraphLaunch" if graph else "cudaLaunchKernel"
            events.append(span("cuda_runtime", launch, start + 1 + i, 1.0, correlation=correlation))
        events.append(span("kernel", kernel, start + after, length, correlation=correlation))
    return events


KERNELS = [
    ("gemm", 50.0, 10.0),
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 55.0, 10.0),
    ("void sglang::cross_device_reduce_1stage<__nv_bfloat16, 2>", 80.0, 5.0),
]


def test_graphs_launches_collectives_and_busy_time(tmp_path: Path) -> None:
    events = step(1000, "step[TARGET_VERIFY bs=4]", KERNELS, graph=True)
    events += step(2000, "step[TARGET_VERIFY bs=4]", KERNELS, graph=False)
    capture = imported(tmp_path, json.dumps({"traceEvents": events}), names=["t.json"])
    (profile,) = capture.profiles
    assert (profile.phase, profile.batch_size, profile.steps) == ("verify", 4, 2)
    assert (profile.kernels_per_step, profile.launches_per_step, profile.graph_launches_per_step) == (3, 1.5, 0.5)
    # 50 to 65 with an overlap counted once, and 80 to 85
    assert profile.device_busy_ms == pytest.approx(0.020)
    assert profile.span_ms == pytest.approx(0.035)
    assert profile.collectives_per_step == {"custom cross_device_reduce": 1, "nccl AllReduce": 1}


def test_a_draft_s_steps_are_not_decode_steps(tmp_path: Path) -> None:
    events = [span("user_annotation", "draft", 990.0, 200.0), *step(1000, "step[DECODE bs=4]", KERNELS, graph=False)]
    events += step(3000, "step[DECODE bs=4]", KERNELS, graph=False)
    capture = imported(tmp_path, json.dumps({"traceEvents": events}), names=["t.json"])
    assert {(profile.phase, profile.batch_size) for profile in capture.profiles} == {("draft", 4), ("decode", 4)}


def test_passes_by_the_worker_s_functions(tmp_path: Path) -> None:
    frame = "sglang/srt/speculative/eagle_worker.py(310): verify"
    events = step(1000, "## unrelated ##", KERNELS, graph=False)
    events.append(span("python_function", frame, 995.0, 200.0))
    capture = imported(tmp_path, json.dumps({"traceEvents": events}), names=["t.json"])
    (profile,) = capture.profiles
    assert (profile.phase, profile.kernels_per_step) == ("verify", 3)


def test_h200_trace() -> None:
    found = chrome_trace.read(H200 / "torch-profile-eager-bs12.json.gz")
    profiles = {profile.phase: profile for profile in found.profiles}
    verify = profiles["verify"]
    assert (verify.batch_size, verify.steps) == (12, 3)
    assert verify.graph_launches_per_step == 0
    assert verify.kernels_per_step == pytest.approx(466, abs=1)
    assert verify.device_busy_ms < verify.span_ms
    assert not verify.collectives_per_step
    # 1720 kernels in all, over three cycles and a fourth that was cut off
    assert sum(profile.kernels_per_step * profile.steps for profile in found.profiles) <= 1720


def test_a_trace_that_is_cut_off_says_so(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": step(1000, "step[TARGET_VERIFY bs=4]", KERNELS, graph=False)})
    path = tmp_path / "t.json"
    path.write_text(text[:-20])
    found = chrome_trace.read(path)
    assert [problem.code for problem in found.problems] == ["trace_cut_off"]
    assert found.profiles


def test_a_bare_list_of_events(tmp_path: Path) -> None:
    events = step(1000, "step[TARGET_VERIFY bs=4]", KERNELS, graph=False)
    assert imported(tmp_path, json.dumps(events), names=["t.json"]).profiles


def test_events_across_pieces_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eaglediag.probes.evidence.stream.CHUNK", 64)
    events = [event for i in range(20) for event in step(1000 * (i + 1), "step[EXTEND bs=1]", KERNELS, graph=False)]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}, indent=1))
    assert len(list(chrome_trace.events(path))) == len(events)


def test_what_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": [')
    with pytest.raises(UsageError, match="not a readable Chrome trace"):
        chrome_trace.read(path)

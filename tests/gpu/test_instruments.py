"""The instruments on a real GPU, without SGLang: events, stream capture, NVML. Skipped where there is no CUDA."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from eaglediag.capture.model import Window
from eaglediag.hosts import open_host
from eaglediag.probes.evidence import chrome_trace
from eaglediag.probes.folder import RemoteFolder
from eaglediag.probes.gpu import GpuSampler
from eaglediag.probes.payload.collectives import Collectives
from eaglediag.probes.payload.probe_points import ProbePoint
from eaglediag.probes.payload.recorder import DEVICE, PHASE, Recorder
from eaglediag.probes.profile import compare

pytestmark = pytest.mark.gpu

torch: Any = pytest.importorskip("torch", reason="torch is not installed: no GPU tests")
if not torch.cuda.is_available():
    pytest.skip("no CUDA GPU", allow_module_level=True)


def work(times: int = 100) -> Any:
    """About 5 ms: a phase's length, beside which the launch of its first kernel is nothing."""
    matrix = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    for _ in range(times):
        matrix = matrix @ matrix
        matrix = matrix / matrix.norm()
    return matrix


def recorded(recorder: Recorder, phase: str, call: Any) -> None:
    step = recorder.open("step", "cycle", 1)
    span = recorder.open("phase", phase, 1)
    call()
    recorder.close(span)
    recorder.close(step)


def test_events_agree_with_the_profilers_kernel_times(tmp_path: Path) -> None:
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    recorder = Recorder()
    recorder.start(annotate=True)
    with torch.profiler.profile(activities=list(torch.profiler.supported_activities())) as profiler:
        for _ in range(20):
            recorded(recorder, "draft", work)
            recorded(recorder, "verify", graph.replay)
        torch.cuda.synchronize()
    recorder.stop()
    rows = [row for row in recorder.drain() if row[0] == "phase"]
    events = {(row[1], row[PHASE]): row[DEVICE] / 1000 for row in rows}
    assert len(events) == 40
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    trace = chrome_trace.Trace()
    for event in chrome_trace.events(path):
        trace.take(event)
    _, ran = chrome_trace.attributed(trace)
    compared = compare(ran, trace.kernels, events)
    for phase in ("draft", "verify"):
        measured, kernels = compared[phase, 1]
        assert measured == pytest.approx(kernels, rel=0.02)
    found = {profile.phase: profile for profile in chrome_trace.profiles(trace)}
    assert found["verify"].graph_launches_per_step == 1
    assert found["draft"].graph_launches_per_step == 0
    assert found["draft"].launches_per_step > 20


def test_only_what_the_stream_captures_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("fake_runner")
    source = """
class Communicator:
    def all_reduce(self, tensor): return tensor.add_(1)
class Runner:
    capture_forward_mode = None
    def capture_one_shape(self, size, forward):
        forward(); forward()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            forward()
        return graph
"""
    vars(module)["torch"] = torch
    exec(compile(source, "fake_runner.py", "exec"), vars(module))
    monkeypatch.setitem(sys.modules, "fake_runner", module)
    made: Any = module
    collectives = Collectives(Recorder(), lambda target: None, lambda *why: pytest.fail(str(why)))
    collectives.on()
    collectives.install(
        [
            ProbePoint("collective", "", "fake_runner", "Communicator.all_reduce", "", 1, "nccl (pynccl)"),
            ProbePoint("capture", "verify", "fake_runner", "Runner.capture_one_shape", "", 1),
        ]
    )
    tensor = torch.zeros(512, device="cuda", dtype=torch.bfloat16)

    def forward() -> None:
        for _ in range(65):
            made.Communicator().all_reduce(tensor)

    graph = made.Runner().capture_one_shape(8, forward)
    collectives.off()
    graph.replay()
    torch.cuda.synchronize()
    assert collectives.report()["captured"] == [["verify", 8, [["nccl (pynccl)", "all_reduce", 65, 65 * 1024]]]]


def test_the_sampler_sees_the_load(tmp_path: Path) -> None:
    host = open_host("local")
    folder = RemoteFolder(host, str(tmp_path))
    folder.ship(sys.executable)
    sampler = GpuSampler(host, folder, sys.executable)
    sampler.start(10.0, [{"gpu": torch.cuda.current_device(), "pid": os.getpid()}], {})
    time.sleep(1.5)  # the counters are read about once a second, and a window needs a reading on both sides
    begin = time.time()
    while time.time() < begin + 3.0:
        work(200)
        torch.cuda.synchronize()
    end = time.time()
    time.sleep(1.5)
    sampling = sampler.stop([Window(id="load", started=begin, duration_s=end - begin)])
    assert not sampling.refused
    (gpu,) = sampling.gpus
    assert gpu.name == torch.cuda.get_device_name()
    assert gpu.memory_mb
    assert gpu.series.t[0] <= begin + 0.5
    assert gpu.series.t[-1] >= end
    assert all(mhz is None or 0 < mhz <= (gpu.sm_mhz_max or 1e9) for mhz in gpu.series.sm_mhz)
    assert "load" in gpu.throttled_ms
    assert all(0 <= ms <= 1000 * (end - begin) * 1.1 for ms in gpu.throttled_ms["load"].values())
    assert sampling.cost is not None
    assert 40 <= sampling.cost.samples <= 80

"""A probe that only reads, against servers that only answer."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eaglediag.capture import store
from eaglediag.capture.model import Capture, Gpu, GpuProcess
from eaglediag.cli.read_only import address
from eaglediag.errors import UsageError
from eaglediag.probes.read_only import look
from eaglediag.probes.read_only.gpus import in_use
from tests.fake_server import FakeServer, SglangCounters, running, vllm_page
from tests.invoke import Ran, eaglediag
from tests.sglang_lines import EAGLE3, codes

#: What the sampler needs of NVML, for a machine without a GPU.
NVML = """
import types
class NVMLError(Exception): value = 3
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetUUID(handle): return f"GPU-{handle}"
def nvmlDeviceGetClockInfo(handle, kind): return 1400 + handle
def nvmlDeviceGetComputeRunningProcesses(handle):
    return [types.SimpleNamespace(pid=42, usedGpuMemory=2**30)] if handle else []
"""


def server_info(**more: Any) -> str:
    arguments = {"model_path": "m", "version": "0.5.14", "device": "cpu", "decode_log_interval": 40, **EAGLE3}
    return json.dumps({**arguments, "internal_states": [{}], **more})


def sglang(counters: SglangCounters | None = None, **more: Any) -> FakeServer:
    pages: dict[str, Callable[[], str | None]] = {"/server_info": lambda: server_info(**more)}
    pages["/v1/models"] = lambda: '{"data": [{"id": "m"}]}'
    if counters is not None:
        pages["/metrics"] = counters.page
    return FakeServer(pages)


@pytest.fixture
def steady() -> Iterator[FakeServer]:
    with running(sglang(SglangCounters())) as server:
        yield server


def read(server: FakeServer, output: Path, *more: object, duration: float = 1.5) -> Ran:
    command = ("probe", "--host", "local", "--url", server.url, "--read-only", "--remote-parent", output.parent)
    watch = () if "--drive" in more else ("--duration", duration)
    return eaglediag(*command, "-o", output, *watch, *more)


def captured(server: FakeServer, output: Path, *more: object, duration: float = 1.5) -> Capture:
    ran = read(server, output, *more, duration=duration)
    assert ran.code == 0, ran.err
    return store.read(output)


def test_what_ran_by_itself(steady: FakeServer, tmp_path: Path) -> None:
    capture = captured(steady, tmp_path / "c.json")
    assert (capture.source.kind, capture.status, capture.arm) == ("read_only", "complete", "eagle")
    (window,) = capture.windows
    assert (window.agent, window.concurrency, window.throughput_method) == ("absent", 4, "metrics")
    assert window.throughput == pytest.approx(800, rel=0.1)
    ((batch,),) = [rank.batches for rank in window.ranks]
    assert (batch.batch_size, batch.kind, batch.period_ms.method) == (4, "cycle", "metrics")
    assert batch.period_ms.mean == pytest.approx(10.0, rel=0.1)
    assert batch.accept is not None
    assert batch.accept.tokens / batch.accept.passes == pytest.approx(2.0)
    assert batch.accept.method == "metrics"
    assert [(part.phase, part.graph) for part in batch.parts] == [("verify", True)]
    assert capture.instrumentation.route == "none"
    assert "answered /metrics" in capture.instrumentation.overhead.method
    assert {"unknown_draft_graphs", "unknown_gates", "unknown_parts"} <= set(codes(capture))
    for problem in capture.problems:
        if problem.code.startswith("unknown_"):
            assert "eaglediag probe --host local --launch" in problem.advice
    # Health checks make SGLang generate, and nothing is sent without --drive.
    assert set(steady.asked) == {"/metrics", "/server_info"}
    assert steady.posted == []
    assert list(tmp_path.iterdir()) == [tmp_path / "c.json"]


def test_without_an_output_only_the_summary(steady: FakeServer) -> None:
    ran = eaglediag("probe", "--host", "local", "--url", steady.url, "--read-only", "--duration", 1)
    assert ran.code == 0, ran.err
    assert "eagle: SGLang 0.5.14, EAGLE3, 3 steps, 4 draft tokens\n" in ran.out
    assert "ms:" not in ran.out


def test_eager_passes_are_counted_and_said(tmp_path: Path) -> None:
    with running(sglang(SglangCounters(graph=False))) as server:
        capture = captured(server, tmp_path / "c.json")
    (denial,) = capture.denials
    assert (denial.phase, denial.batch_size, denial.explained) == ("verify", 4, False)
    assert "eager_passes" in codes(capture)


def test_an_older_name_of_server_info(tmp_path: Path) -> None:
    server = sglang(SglangCounters())
    server.pages["/get_server_info"] = server.pages.pop("/server_info")
    with running(server):
        assert captured(server, tmp_path / "c.json", duration=1).server.release == "0.5.14"


def test_driving_sends_the_load_and_takes_its_words(steady: FakeServer, tmp_path: Path) -> None:
    capture = captured(steady, tmp_path / "c.json", "--drive", "--concurrency", "2,3", "--requests", 6)
    assert [(window.id, window.concurrency) for window in capture.windows] == [("c2", 2), ("c3", 3)]
    assert [len(window.requests) for window in capture.windows] == [6, 6]
    assert all(window.throughput_method == "host_clock" for window in capture.windows)
    assert len(steady.posted) == 1 + 2 + 3 + 6 + 6
    assert capture.workload.concurrency == [2, 3]


def log_line(step_ms: float) -> str:
    token = int(time.time() * 1000) % 10**9
    return (
        f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] Decode batch, #running-req: 4, #token: {token}, "
        f"token usage: 0.01, accept len: 2.00, cuda graph: True, gen throughput (token/s): {8000 / step_ms:.2f}, "
        "#queue-req: 0\n"
    )


@pytest.mark.parametrize(("step_ms", "contradicts"), [(10.0, False), (25.0, True)])
def test_the_log_is_believed_and_held_against_the_metrics(
    steady: FakeServer, tmp_path: Path, step_ms: float, contradicts: bool
) -> None:
    log, output, stop = tmp_path / "server.log", tmp_path / "c.json", threading.Event()
    log.write_text(log_line(99.0) * 3)  # what was there before is not of now

    def write() -> None:
        while not stop.wait(0.4):
            with log.open("a") as stream:
                stream.write(log_line(step_ms))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        capture = captured(steady, output, "--log", log, duration=3)
    finally:
        stop.set()
        writer.join()
    ((batch,),) = [rank.batches for rank in capture.windows[0].ranks]
    assert (batch.period_ms.method, batch.count % 40) == ("log_line", 0)
    assert batch.period_ms.mean == pytest.approx(step_ms, rel=0.01)
    assert abs(batch.blocks.t[0] - capture.windows[0].started) < 10
    assert ("contradiction" in codes(capture)) == contradicts
    assert capture.source.files == [str(log)]
    assert str(log) not in subprocess.run(["ps", "-A", "-o", "args="], capture_output=True, text=True).stdout


def test_without_metrics_it_says_so_and_takes_recorded_step_times(tmp_path: Path) -> None:
    times = {"4": [0.5, *[0.01] * 10]}

    def info() -> str:
        times["4"].append(0.012)
        return server_info(internal_states=[{"step_time_dict": times}])

    server = sglang()
    server.pages["/server_info"] = info
    with running(server):
        capture = captured(server, tmp_path / "c.json")
    assert "metrics_off" in codes(capture)
    ((batch,),) = [rank.batches for rank in capture.windows[0].ranks]
    assert (batch.period_ms.method, batch.count) == ("server_info", 40)
    assert batch.period_ms.mean == pytest.approx(12.0)


def test_vllm_is_read_by_its_counters(tmp_path: Path) -> None:
    born = time.time()

    def page() -> str:
        steps = int((time.time() - born) * 100)
        return vllm_page(8, steps, 8 * steps, (6 * steps, 4 * steps, 2 * steps))

    pages: dict[str, Callable[[], str | None]] = {"/metrics": page, "/version": lambda: '{"version": "0.11.0"}'}
    with running(FakeServer(pages)) as server:
        capture = captured(server, tmp_path / "c.json")
    assert (capture.server.engine, capture.server.release) == ("vllm", "0.11.0")
    assert capture.server.speculation is not None
    assert capture.server.speculation.max_accept_length == 4
    ((batch,),) = [rank.batches for rank in capture.windows[0].ranks]
    assert batch.period_ms.mean == pytest.approx(10.0, rel=0.1)
    assert batch.accept is not None
    assert batch.accept.tokens / batch.accept.passes == pytest.approx(2.5)
    assert sum(batch.accept.histogram) == batch.accept.passes
    assert "unknown_clocks" in codes(capture)


def test_the_key_is_sent_and_nowhere_kept(tmp_path: Path) -> None:
    server = sglang(SglangCounters(), api_key="sk-very-secret", served_model_name="sk-very-secret by mistake")
    server.key = "sk-very-secret"
    with running(server):
        ran = read(server, tmp_path / "c.json")
        assert (ran.code, ran.err.count("\n")) == (5, 1)
        assert "--api-key" in ran.err
        capture = captured(server, tmp_path / "c.json", "--api-key", "sk-very-secret")
        ran = eaglediag(
            *("probe", "--host", "local", "--url", server.url, "--read-only", "--duration", 1),
            EAGLEDIAG_API_KEY="sk-very-secret",
        )
        assert ran.code == 0, ran.err
    assert "sk-very-secret" not in (tmp_path / "c.json").read_text()
    assert capture.server.arguments["served_model_name"] == "[redacted] by mistake"


def test_nothing_ran(tmp_path: Path) -> None:
    with running(sglang(SglangCounters(step_ms=1e9))) as server:
        ran = read(server, tmp_path / "c.json", duration=1)
    assert ran.code == 3
    assert "--drive" in ran.err
    assert store.read(tmp_path / "c.json").status == "partial"


def test_a_server_that_hangs(steady: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "SILENT_S", 1.0)
    monkeypatch.setattr("eaglediag.probes.read_only.pages.TIMEOUT_S", 0.7)
    threading.Timer(2.0, steady.hang.set).start()
    ran = read(steady, tmp_path / "c.json", duration=60)
    assert ran.code == 5
    assert "stopped answering" in ran.err
    capture = store.read(tmp_path / "c.json")
    assert capture.status == "partial"
    assert capture.windows[0].ranks[0].batches


def test_a_server_that_goes_away(tmp_path: Path) -> None:
    outcome: list[Ran] = []
    with running(sglang(SglangCounters())) as server:
        reader = threading.Thread(target=lambda: outcome.append(read(server, tmp_path / "c.json", duration=60)))
        reader.start()
        time.sleep(2.5)
    reader.join(30)
    assert outcome[0].code == 5
    assert "stopped answering" in outcome[0].err
    assert store.read(tmp_path / "c.json").windows[0].throughput


def test_nobody_there_and_somebody_else(tmp_path: Path) -> None:
    with running(FakeServer({"/metrics": lambda: "process_cpu_seconds_total 3\n"})) as other:
        ran = read(other, tmp_path / "c.json")
        assert (ran.code, "neither SGLang nor" in ran.err) == (5, True)
    ran = read(other, tmp_path / "c.json")
    assert (ran.code, "no server answers" in ran.err) == (5, True)


def test_a_log_that_is_not_there(steady: FakeServer, tmp_path: Path) -> None:
    ran = read(steady, tmp_path / "c.json", "--log", tmp_path / "none.log")
    assert ran.code == 5
    assert "none.log is not there" in ran.err


class TestGpus:
    def python(self, folder: Path, library: str) -> Path:
        """A Python that finds this pynvml first."""
        folder.mkdir()
        (folder / "pynvml.py").write_text(library)
        script = folder / "python"
        script.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
        script.chmod(0o755)
        return script

    def test_sampled_by_the_usual_sampler_and_nothing_stays(self, tmp_path: Path) -> None:
        python, place = self.python(tmp_path / "bin", NVML), tmp_path / "host"
        place.mkdir()
        seen: list[tuple[int, list[str]]] = []
        with running(sglang(SglangCounters(), device="cuda")) as server:
            timer = threading.Timer(1.5, lambda: seen.extend(contents(place)))
            timer.start()
            capture = captured(server, place / "c.json", "--python", python)
        assert seen == [(0o700, ["gpu.jsonl", "lib/eaglediag_payload/gpu_sampler.py", "MANIFEST.sha256"])]
        assert list(place.iterdir()) == [place / "c.json"]
        (gpu,) = capture.hosts[0].gpus  # the one that something runs on
        assert (gpu.index, set(gpu.series.sm_mhz)) == (1, {1401.0})
        assert capture.hosts[0].gpu_sampling is not None
        assert "unknown_clocks" not in codes(capture)

    def test_refused_by_name_and_the_rest_goes_on(self, tmp_path: Path) -> None:
        python = self.python(tmp_path / "bin", "raise ImportError")
        with running(sglang(SglangCounters(), device="cuda")) as server:
            capture = captured(server, tmp_path / "c.json", "--python", python, duration=1)
            assert capture.windows
            assert [one.message for one in capture.problems if one.code == "gpu_sampler"] == [
                "local: no GPU samples: nvidia-ml-py is not in the server's Python"
            ]
            assert "unknown_clocks" in codes(capture)
            capture = captured(server, tmp_path / "c.json", "--python", "/nowhere/python", duration=1)
            assert "/nowhere/python is not there" in next(
                one.message for one in capture.problems if one.code == "gpu_sampler"
            )

    def test_the_gpus_that_something_runs_on(self) -> None:
        idle, busy = Gpu(index=0), Gpu(index=1, processes=[GpuProcess(pid=7)])
        assert [(gpu.index, gpu.processes) for gpu in in_use([idle, busy])] == [(1, [])]
        assert in_use([idle, Gpu(index=2)]) == [idle, Gpu(index=2)]


def contents(place: Path) -> list[tuple[int, list[str]]]:
    """Mode and files of each folder of ours."""
    return [
        (
            stat.S_IMODE(folder.stat().st_mode),
            sorted((str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()), key=str.lower),
        )
        for folder in place.glob("eaglediag-*")
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "give --launch or --url"),
        (["--launch", "python -m x", "--url", "http://h:1", "--read-only"], "give --launch or --url"),
        (["--url", "http://127.0.0.1:1"], "--url and --read-only go together"),
        (["--launch", "python -m x", "--read-only"], "--url and --read-only go together"),
        (["--launch", "python -m x", "--log", "l"], "--log does not go with --launch"),
        (["--launch", "python -m x"], "-o is missing"),
        (["--url", "http://127.0.0.1:1", "--read-only", "--ab"], "--ab does not go with --read-only"),
        (["--url", "http://127.0.0.1:1", "--read-only", "--concurrency", "4"], "add --drive"),
        (["--url", "https://h:1", "--read-only"], "not the plain HTTP address"),
        (["--url", "http://h:1", "--read-only", "-o", "/nowhere/c.json"], "cannot be written"),
    ],
)
def test_options_that_do_not_go_together(options: list[str], said: str) -> None:
    ran = eaglediag("probe", "--host", "local", *options)
    assert ran.code == 2
    assert said in ran.err
    assert ran.err.count("\n") == 1


def test_addresses() -> None:
    assert address("http://127.0.0.1:30000") == ("127.0.0.1", 30000)
    assert address("10.0.0.7:8000/") == ("10.0.0.7", 8000)
    assert address("http://h") == ("h", 80)
    for wrong in ("http://", "http://h:x", "http://h/v1", "http://u:p@h", "ftp://h"):
        with pytest.raises(UsageError, match="--url"):
            address(wrong)

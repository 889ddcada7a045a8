"""A probe that only reads, on the real thing: the real SGLang with EAGLE-3 on a CPU, behind a real sshd."""

from __future__ import annotations

import json
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from eaglediag.capture import store
from eaglediag.capture.model import BatchStats, Capture, Window
from tests.engine import RunningServer, start_server
from tests.fake_server import FakeServer, SglangCounters, running
from tests.invoke import Ran, eaglediag
from tests.sglang_lines import codes
from tests.sshd import ALIAS, Sshd, running_sshd
from tests.unit.test_read_only import NVML, server_info

pytestmark = [pytest.mark.engine, pytest.mark.sshd, pytest.mark.timeout(600)]

KEY = "sk-not-for-captures"
INTERVAL = 5
TOKENS = 480
LINE = re.compile(r"#running-req: (\d+), .*?accept len: ([\d.]+), .*gen throughput \(token/s\): ([\d.]+)")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with running_sshd(tmp_path_factory.mktemp("sshd")) as sshd:
        yield sshd


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    options = ["--enable-metrics", "--decode-log-interval", str(INTERVAL), "--api-key", KEY]
    with start_server("eagle", extra_args=options) as one:
        yield one


def command(sshd: Sshd, server: RunningServer | FakeServer, output: Path, *more: object) -> list[str]:
    argv = ("probe", "--host", ALIAS, "--ssh-config", sshd.ssh_config, "--url", f"http://127.0.0.1:{server.port}")
    rest = ("--read-only", "--remote-parent", output.parent, "-o", output, "--api-key", KEY)
    return [str(word) for word in (*argv, *rest, *more)]


def drive(levels: str, requests: int) -> list[str]:
    load = ["--max-new-tokens", str(TOKENS), "--endpoint", "generate", "--ignore-eos"]
    return ["--drive", "--concurrency", levels, "--requests", str(requests), *load]


def captured(ran: Ran, output: Path) -> Capture:
    assert ran.code == 0, ran.err
    assert KEY not in output.read_text()
    assert list(output.parent.iterdir()) == [output]
    return store.read(output)


def at(window: Window, size: int) -> BatchStats:
    (found,) = [batch for rank in window.ranks for batch in rank.batches if batch.batch_size == size]
    return found


def logged(text: str, size: int) -> float:
    """The mean cycle in ms that the server's own decode lines at a batch size tell, the one after idle left out."""
    lines = [(int(n), float(length), float(rate)) for n, length, rate in LINE.findall(text)]
    cycles = sorted(1000 * n * length / rate for n, length, rate in lines if n == size)
    return statistics.fmean(cycle for cycle in cycles if cycle < 3 * statistics.median(cycles))


def processes() -> str:
    return subprocess.run(["ps", "-A", "-o", "args="], check=True, capture_output=True, text=True).stdout


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 150  # patience only: other tests may load the machine
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("it did not come to that")


@pytest.mark.parametrize(("followed", "method"), [(False, "metrics"), (True, "log_line")])
def test_a_load_of_ours(host: Sshd, server: RunningServer, tmp_path: Path, followed: bool, method: str) -> None:
    output, before = tmp_path / "c.json", len(server.log_text())
    more = ["--log", str(server.log)] if followed else []
    capture = captured(eaglediag(*command(host, server, output, *drive("1,4", 4), *more)), output)
    text = server.log_text()[before:]
    assert (capture.source.kind, capture.status, capture.arm) == ("read_only", "complete", "eagle")
    assert (capture.server.release, capture.server.arguments["api_key"]) == ("0.5.20", "[redacted]")
    assert [window.id for window in capture.windows] == ["c1", "c4"]
    for window in capture.windows:
        assert window.concurrency is not None
        batch = at(window, window.concurrency)
        assert batch.period_ms.method == method
        assert batch.period_ms.mean == pytest.approx(logged(text, batch.batch_size), rel=0.3)
        # What the requests themselves report; the first token of each comes out of its prefill.
        passes = sum(one.verify_passes or 0 for one in window.requests)
        emitted = sum(one.completion_tokens - 1 for one in window.requests)
        assert batch.accept is not None
        assert batch.accept.tokens / batch.accept.passes == pytest.approx(emitted / passes, rel=0.1)
        assert window.failed_requests == 0
        assert batch.count <= passes / batch.batch_size + 2 * INTERVAL
        # A look at the metrics that finds requests beginning or ending tells no batch size.
        assert batch.count >= (0.5 if followed else 0.15) * passes / batch.batch_size
        assert [(part.phase, part.graph) for part in batch.parts] == [("verify", False)]
    assert {"eager_passes", "unknown_draft_graphs", "unknown_gates", "unknown_parts"} <= set(codes(capture))
    assert not {"contradiction", "metrics_off", "unreadable_lines"} & set(codes(capture))
    assert capture.denials


def test_a_load_of_others(host: Sshd, server: RunningServer, tmp_path: Path) -> None:
    """Four requests at a time; the server is left alone, and has nothing of ours in it."""
    output, stop, before = tmp_path / "c.json", threading.Event(), len(server.log_text())
    tokens: list[int] = []

    def load() -> None:
        while not stop.is_set():
            tokens.append(generate(server, ["Rain.", "Snow.", "Fog.", "Sun."]))

    loader = threading.Thread(target=load)
    loader.start()
    try:
        inside: list[str] = []
        timer = threading.Timer(4.0, lambda: inside.append(inside_of(server)))
        timer.start()
        capture = captured(eaglediag(*command(host, server, output, "--duration", "8")), output)
    finally:
        stop.set()
        loader.join()
    for ours in ("eaglediag_payload", "/eaglediag-", str(tmp_path)):
        assert ours not in inside[0]
    window = max(capture.windows, key=lambda window: window.duration_s)
    batch = at(window, 4)
    assert batch.period_ms.method == "metrics"
    assert batch.period_ms.mean == pytest.approx(logged(server.log_text()[before:], 4), rel=0.3)
    assert window.throughput is not None
    assert window.throughput == pytest.approx(
        1000 * 4 * (batch.accept.tokens / batch.accept.passes if batch.accept else 0) / batch.period_ms.mean, rel=0.35
    )
    assert capture.workload.source == "what others asked of the server"


def test_ctrl_c(host: Sshd, server: RunningServer, tmp_path: Path) -> None:
    process, output = begin(host, server, tmp_path, [*drive("2", 400), "--log", str(server.log)])
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.count("\n")) == (99, 1), err
    ended(output, server, "interrupted")


def test_a_lost_connection(host: Sshd, server: RunningServer, tmp_path: Path) -> None:
    process, output = begin(host, server, tmp_path, [*drive("2", 400), "--log", str(server.log)])
    host.drop_connections()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    assert "Traceback" not in err
    ended(output, server, "ended_early")


def test_a_lost_connection_leaves_no_sampler_and_no_folder(host: Sshd, tmp_path: Path) -> None:
    folder, place = tmp_path / "bin", tmp_path / "host"
    folder.mkdir()
    place.mkdir()
    (folder / "pynvml.py").write_text(NVML)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    counters = SglangCounters()
    pages: dict[str, Callable[[], str | None]] = {
        "/metrics": counters.page,
        "/server_info": lambda: server_info(device="cuda"),
    }
    with running(FakeServer(pages)) as server:
        argv = command(host, server, place / "c.json", "--python", python)
        process = subprocess.Popen([sys.executable, "-m", "eaglediag", *argv], stderr=subprocess.PIPE, text=True)
        until(lambda: any(place.glob("eaglediag-*/gpu.jsonl")))
        time.sleep(1.0)
        host.drop_connections()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 4, err
    until(lambda: not any(place.glob("eaglediag-*")) and str(place) not in processes())


def test_without_metrics_and_a_server_that_dies(host: Sshd, tmp_path: Path) -> None:
    with start_server("baseline", extra_args=["--decode-log-interval", str(INTERVAL)]) as server:
        log = ["--log", str(server.log)]
        output = tmp_path / "c.json"
        capture = captured(eaglediag(*command(host, server, output, *drive("2", 4), *log)), output)
        assert "metrics_off" in codes(capture)
        batch = at(capture.windows[0], 2)
        assert (batch.kind, batch.period_ms.method, batch.accept) == ("decode", "log_line", None)
        steps = max(one.latency_ms for one in capture.windows[0].requests) / TOKENS
        assert batch.period_ms.mean == pytest.approx(steps, rel=0.35)
        process, output = begin(host, server, tmp_path / "dies", [*drive("2", 400), *log])
        server.process.kill()
        _, err = process.communicate(timeout=120)
    assert process.returncode == 5, err
    assert err.count("\n") == 1
    ended(output, server, "ended_early")


def begin(host: Sshd, server: RunningServer, folder: Path, more: Sequence[str]) -> tuple[subprocess.Popen[str], Path]:
    """A probe that has been measuring for some seconds."""
    folder.mkdir(exist_ok=True)
    output, before = folder / "c.json", len(server.log_text())
    argv = [sys.executable, "-m", "eaglediag", *command(host, server, output, *more)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: process.poll() is not None or server.log_text()[before:].count("Decode batch") > 60)
    assert process.poll() is None, process.communicate()
    return process, output


def ended(output: Path, server: RunningServer, why: str) -> None:
    """What was read until then is there, and nothing else."""
    capture = store.read(output)
    assert capture.status == "partial"
    assert why in codes(capture)
    assert capture.windows[0].ranks[0].batches
    assert list(output.parent.iterdir()) == [output]
    until(lambda: f"-F -- {server.log}" not in processes())


def generate(server: RunningServer, prompts: list[str]) -> int:
    """Completion tokens of one batch; `RunningServer.generate` carries no key."""
    body = {"text": prompts, "sampling_params": {"max_new_tokens": TOKENS, "temperature": 0, "ignore_eos": True}}
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}/generate",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        return sum(one["meta_info"]["completion_tokens"] for one in json.load(response))


def inside_of(server: RunningServer) -> str:
    """The environment, open files and mapped files of every process of the server."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if not process.name.isdigit() or int((process / "stat").read_text().split()[4]) != server.process.pid:
                continue
            found += [(process / name).read_text(errors="replace") for name in ("environ", "maps")]
            found += [str(link.readlink()) for link in (process / "fd").iterdir()]
        except (OSError, ValueError, IndexError):
            continue  # it ended meanwhile
    assert found
    return "\n".join(found)

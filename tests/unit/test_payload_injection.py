"""The payload as it lies on a host, injected into a process by either route, on every Python found here.

The engine is a toy with SGLang's names; the real one is in tests/integration.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eaglediag.probes.folder import payload_files
from tests.pythons import interpreters

SCHEDULER = """
class Scheduler:
    def __init__(self, server_args, port_args, gpu_id, tp_rank, moe_ep_rank, pp_rank, dp_rank):
        from sglang.srt.managers.tp_worker import TpModelWorker
        self.tp_worker = TpModelWorker()
        self.enable_overlap = True
"""
TP_WORKER = """
class TpModelWorker:
    def forward_batch_generation(self, batch):
        return batch
"""
MAIN = """
import sys, time, types
if len(sys.argv) > 1:  # as SGLang does from 0.5.12: plugins first thing
    from importlib.metadata import entry_points
    import sglang.srt.managers.tp_worker
    for entry in entry_points(group="sglang.srt.plugins"):
        entry.load()()
from sglang.srt.managers.scheduler import Scheduler
arguments = types.SimpleNamespace(tp_size=2, pp_size=1, dp_size=1, api_key="sk-1", model_path="/m")
scheduler = Scheduler(arguments, None, 0, 1, 0, 0, None)
batch = types.SimpleNamespace(forward_mode=types.SimpleNamespace(name="DECODE"), reqs=[1])
import sitecustomize
print(getattr(sitecustomize, "WHOSE", "ours"), flush=True)
while sys.stdin.readline():
    for _ in range(10):
        scheduler.tp_worker.forward_batch_generation(batch)
    print("done", flush=True)
"""


@pytest.fixture(params=interpreters(), ids=lambda path: Path(path).parts[-3])
def python(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Process:
    """A toy engine with the payload in it."""

    def __init__(self, folder: Path, python: str, route: str) -> None:
        for name, data in payload_files().items():
            path = folder / "remote" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        (folder / "remote" / "agents").mkdir(mode=0o700)
        managers = folder / "engine" / "sglang" / "srt" / "managers"
        managers.mkdir(parents=True)
        (managers / "scheduler.py").write_text(SCHEDULER)
        (managers / "tp_worker.py").write_text(TP_WORKER)
        (folder / "theirs").mkdir()
        (folder / "theirs" / "sitecustomize.py").write_text('WHOSE = "theirs"\n')
        (folder / "main.py").write_text(textwrap.dedent(MAIN))
        ours = ["remote/lib"] if route == "plugin" else ["remote/site", "remote/lib"]
        search = [str(folder / name) for name in (*ours, "theirs", "engine")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(search), "EAGLEDIAG_FOLDER": str(folder / "remote")}
        argv = [python, str(folder / "main.py"), *([route] if route == "plugin" else [])]
        self.folder, self.python = folder, python
        self.process = subprocess.Popen(argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.sitecustomize = self.process.stdout.readline().strip()

    def run_steps(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def ask(self, **request: Any) -> dict[str, Any]:
        script = self.folder / "remote" / "lib" / "eaglediag_payload" / "control.py"
        argv = [self.python, str(script), str(self.folder / "remote"), json.dumps(request)]
        answer = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
        assert answer["failed"] == {}
        [reply] = answer["replies"].values()
        return dict(reply)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(10)


@pytest.fixture(params=["plugin", "sitecustomize"])
def engine(request: pytest.FixtureRequest, tmp_path: Path, python: str) -> Iterator[Process]:
    process = Process(tmp_path, python, request.param)
    yield process
    process.close()


def test_dormant_until_told_and_dormant_again(engine: Process) -> None:
    assert engine.sitecustomize == "theirs"
    status = engine.ask(command="status")
    assert (status["rank"], status["ranks_expected"], status["state"], status["layout"]) == (1, 2, "dormant", "A")
    assert "managers.tp_worker:TpModelWorker.forward_batch_generation" in status["patched"]
    assert any(refused["target"].startswith("forward") for refused in status["refused"])
    assert status["arguments"]["api_key"] == "<redacted>"
    engine.run_steps()
    assert engine.ask(command="start")["ok"]
    engine.run_steps()
    assert engine.ask(command="stop")["ok"]
    engine.run_steps()
    reply = engine.ask(command="flush", file="w.jsonl.gz")
    assert reply["rows"] == 10
    with gzip.open(reply["file"], "rt", encoding="utf-8") as stream:
        assert json.loads(stream.readline())["hooks_ns"] > 0
    assert "unknown command" in engine.ask(command="exec")["error"]


def test_only_the_owner_can_open_the_socket(engine: Process) -> None:
    deadline = time.monotonic() + 10
    while not (sockets := list((engine.folder / "remote" / "agents").glob("*.sock"))):
        assert time.monotonic() < deadline
    assert sockets[0].stat().st_mode & 0o777 == 0o600

"""The embedded host for tests: SGLang's CPU engine, built once, and servers that a test starts and stops.

Tests that use it carry the mark `engine`, and a timeout that leaves room for the first build.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HOST = Path(__file__).resolve().parents[1] / "embedded_host"
RELEASE = "0.5.20"
READY_WITHIN = 180.0

#: Every server's ports lie in here. SGLang adds up to 10,000 to the one it is given, for gRPC, whether it is used or
#: not; and from 32,768 on Linux gives out ports to whoever asks, so that one may be gone before the server is up.
PORTS = range(15_000, 22_000)
#: A server of two nodes takes the next port too.
PORTS_APART = 20


@dataclass(frozen=True)
class Engine:
    """What embedded_host/build.py built. `sources` goes first on PYTHONPATH unless None."""

    release: str
    python: Path
    models: Path
    sources: Path | None

    def environment(self) -> dict[str, str]:
        """This process's environment, with what a Python of the engine needs to import SGLang and the kernels."""
        path = [*([self.sources] if self.sources else []), HOST / "shim", HOST / "stubs", HOST / "kernels"]
        variables = {"PYTHONPATH": os.pathsep.join(map(str, path)), "SGLANG_USE_CPU_ENGINE": "1"}
        return {**os.environ, **variables, "PYTHONDONTWRITEBYTECODE": "1", "TORCHDYNAMO_DISABLE": "1"}


@dataclass(frozen=True)
class RunningServer:
    """A server that answers on 127.0.0.1. `launch` is the command line it was started with."""

    port: int
    launch: str
    process: subprocess.Popen[bytes]
    log: Path

    def post(self, path: str, body: Mapping[str, Any], timeout: float = 60.0) -> Any:
        """POST JSON and return the JSON answered. Raises urllib.error.URLError."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return json.load(response)

    def generate(self, prompt: str | list[str], max_new_tokens: int, temperature: float = 0.0) -> Any:
        """Completions of exactly `max_new_tokens`, as /generate gives them: output_ids, meta_info, text.

        One for one prompt; for a list a list, and the server runs them in one batch.
        """
        sampling = {"max_new_tokens": max_new_tokens, "temperature": temperature, "ignore_eos": True}
        return self.post("/generate", {"text": prompt, "sampling_params": sampling})

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")


@cache
def engine_environment(release: str = RELEASE) -> Engine:
    """Build the engine unless it is there. Skips the test when EAGLEDIAG_SKIP_ENGINE=1; a failed build is an error."""
    if os.environ.get("EAGLEDIAG_SKIP_ENGINE") == "1":
        pytest.skip("EAGLEDIAG_SKIP_ENGINE=1: tests that need SGLang's CPU engine are left out")
    paths = json.loads(_host_script("build.py", "--json", "--release", release))
    sources = Path(paths["sources"]) if paths["sources"] else None
    return Engine(paths["release"], Path(paths["python"]), Path(paths["models"]), sources)


def launch_command(
    arm: str, port: int, extra_args: Sequence[str] = (), *, release: str = RELEASE, env: Mapping[str, str] | None = None
) -> str:
    """A server's command line, for a shell or `eaglediag probe --launch`. Arms: baseline, eagle, standalone, ngram."""
    engine_environment(release)
    arguments = ["--print", "--arm", arm, "--port", str(port), "--release", release, *extra_args]
    return _host_script("serve.py", *arguments, env=env).strip()


def server_port() -> int:
    """A free port for an inference server, given out once in this run of the tests."""
    for port in _given_out:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
    raise AssertionError(f"servers hold all ports in {PORTS}, or so many were asked for")


def _ports_of_this_worker() -> Iterator[int]:
    worker, workers = (int(os.environ.get(f"PYTEST_XDIST_WORKER{what}", "0").strip("gw")) for what in ("", "_COUNT"))
    mine = PORTS[::PORTS_APART][worker :: workers or 1]
    # Another run on this machine should not go through them in the same order.
    start = secrets.randbelow(len(mine))
    return iter([*mine[start:], *mine[:start]])


_given_out = _ports_of_this_worker()


@contextmanager
def start_server(
    arm: str,
    port: int | None = None,
    extra_args: Sequence[str] = (),
    extra_env: Mapping[str, str] | None = None,
    *,
    release: str = RELEASE,
) -> Iterator[RunningServer]:
    """A server that answers, stopped with all its processes at the end. Fails with its log's end otherwise."""
    port = server_port() if port is None else port
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(extra_env or {})}
    launch = launch_command(arm, port, extra_args, release=release, env=environment)
    with tempfile.TemporaryDirectory(prefix="engine-") as folder:
        log = Path(folder) / "server.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                shlex.split(launch), stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
        server = RunningServer(port, launch, process, log)
        try:
            _wait_until_ready(server)
            yield server
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads its own group, and the group."""
    for end, patience in ((signal.SIGTERM, 15.0), (signal.SIGKILL, 15.0)):
        try:
            os.killpg(process.pid, end)
        except ProcessLookupError:
            break
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
    process.wait(15.0)


def _wait_until_ready(server: RunningServer) -> None:
    deadline = time.monotonic() + READY_WITHIN
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            pytest.fail(f"the server ended with {server.process.returncode} before it was ready:\n{_tail(server)}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/health", timeout=10):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.5)
    pytest.fail(f"the server was not ready within {READY_WITHIN:.0f} s:\n{_tail(server)}")


def _tail(server: RunningServer) -> str:
    # SGLang prints its arguments in one line of many thousand characters.
    return "\n".join(line[:400] for line in server.log_text().splitlines()[-40:])


def _host_script(name: str, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run([sys.executable, HOST / name, *arguments], capture_output=True, text=True, env=env)
    if done.returncode:
        pytest.fail(f"embedded_host/{name} failed:\n{done.stderr}")
    return done.stdout

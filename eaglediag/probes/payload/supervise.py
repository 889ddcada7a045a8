"""Run on the host: start the server, pass on what it prints, and stop it when told or when nobody listens any more.

The life of the server and of the folder hangs on this process's standard input: end of file there, as when the
laptop lost the connection or was closed, ends the one and removes the other. The line "stop" ends the server only.

usage: python supervise.py FOLDER, then on standard input one JSON line
{"argv": [...], "shell": "..." | null, "environment": {...}, "route": "plugin"|"sitecustomize"|"none", "grace_s": 20}.
Prints JSON lines: {"event": "started", "pid"}, {"event": "log", "line"}, {"event": "rank_ended", "rank", "pid"} for a
rank that ends unbidden, {"event": "exit", "code"}, {"event": "cleaned", "gone"}.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import Any

PLUGIN = "eaglediag"
_output = threading.Lock()
_stopping = threading.Event()


def emit(event: str, **values: Any) -> None:
    """One event to the laptop. When nobody reads any more, end of file on standard input follows."""
    with _output, contextlib.suppress(OSError, ValueError):
        sys.stdout.write(json.dumps({"event": event, **values}) + "\n")
        sys.stdout.flush()


def server_environment(folder: str, spec: dict[str, Any]) -> dict[str, str]:
    """The server's environment: the host's, the launch command's own assignments, and the injection put in front."""
    environment = {**os.environ, **spec["environment"]}
    route = spec["route"]
    if route == "none":
        return environment
    library = os.path.join(folder, "lib")
    ours = [library] if route == "plugin" else [os.path.join(folder, "site"), library]
    theirs = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    environment["PYTHONPATH"] = os.pathsep.join(ours + theirs)
    environment["EAGLEDIAG_FOLDER"] = folder
    allowed = environment.get("SGLANG_PLUGINS")
    if route == "plugin" and allowed:
        environment["SGLANG_PLUGINS"] = f"{allowed},{PLUGIN}"
    return environment


def main() -> None:
    """Supervise one server from start to end."""
    folder = sys.argv[1]
    with open(os.path.join(folder, "supervisor.pid"), "w", encoding="utf-8") as stream:
        stream.write(str(os.getpid()))
    spec = json.loads(sys.stdin.readline())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a hang-up shows as end of file, and is handled there
    argv = spec["argv"] if spec["shell"] is None else [shutil.which("bash") or "sh", "-c", spec["shell"]]
    try:
        server = subprocess.Popen(
            argv,
            env=server_environment(folder, spec),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        emit("exit", code=127, error=f"{argv[0]}: {error.strerror}")
        sys.stdin.read()
        _clean(folder)
        return
    emit("started", pid=server.pid)
    reader = threading.Thread(target=_pass_on, args=(server, folder), daemon=True)
    reader.start()
    threading.Thread(target=_watch_ranks, args=(folder,), daemon=True).start()
    listener = threading.Thread(target=_obey, args=(server, float(spec["grace_s"])), daemon=True)
    listener.start()
    code = server.wait()
    _end_group(server.pid, 3.0)
    reader.join(5.0)
    emit("exit", code=code)
    listener.join()
    _clean(folder)


def _obey(server: subprocess.Popen[bytes], grace_s: float) -> None:
    """ "stop" ends the server and waits for the records to be fetched; end of file ends everything."""
    for line in sys.stdin:
        if line.strip() == "stop":
            _stopping.set()
            _end_group(server.pid, grace_s)
    _stopping.set()
    _end_group(server.pid, grace_s)


def _watch_ranks(folder: str) -> None:
    """Tell of each rank whose process ends while the server should run: the first is what ended the others.

    The agents' markers name the processes. Needs pidfds (Linux 5.3); without them a dead rank has no name.
    """
    ranks: dict[int, dict[str, Any]] = {}
    known: set[str] = set()
    poll = select.poll()
    with contextlib.suppress(OSError, AttributeError):
        while not _stopping.is_set() and os.path.isdir(folder):
            for path in set(glob.glob(os.path.join(folder, "agents", "*.json"))) - known:
                known.add(path)
                with open(path, encoding="utf-8") as stream:
                    marker = json.load(stream)
                descriptor = os.pidfd_open(marker["pid"])
                ranks[descriptor] = marker
                poll.register(descriptor, select.POLLIN)
            for descriptor, _ in poll.poll(500):
                marker = ranks.pop(descriptor)
                poll.unregister(descriptor)
                os.close(descriptor)
                if not _stopping.is_set():
                    emit("rank_ended", rank=marker["rank"], pid=marker["pid"])


def _clean(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    emit("cleaned", gone=not os.path.exists(folder))


def _pass_on(server: subprocess.Popen[bytes], folder: str) -> None:
    assert server.stdout is not None
    with open(os.path.join(folder, "server.log"), "ab", buffering=0) as log:
        for line in server.stdout:
            with contextlib.suppress(OSError):  # a full disk must not stop the server's output
                log.write(line)
            # tqdm redraws with carriage returns: each is a line of its own
            for part in line.decode(errors="replace").replace("\r", "\n").splitlines():
                if part.strip():
                    emit("log", line=part)


def _end_group(leader: int, grace_s: float) -> None:
    """Ask the launcher to end, which knows how to end its own; then ask all of its group, then make them."""
    for signal_number, patience_s, whole_group in (
        (signal.SIGTERM, grace_s, False),
        (signal.SIGTERM, 3.0, True),
        (signal.SIGKILL, 3.0, True),
    ):
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if whole_group else os.kill)(leader, signal_number)
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            try:
                os.killpg(leader, 0)
            except ProcessLookupError:
                return
            time.sleep(0.1)


if __name__ == "__main__":
    main()

"""The server that the probe starts: under a supervisor on the host, watched through its log, always stopped."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from eaglediag.capture.model import CapturedGraphs, Phase
from eaglediag.errors import HostError, InstrumentationError
from eaglediag.hosts.base import Host, Process
from eaglediag.probes.evidence import sglang_log as log
from eaglediag.probes.evidence.exceptions import OPENING, Exceptions
from eaglediag.probes.folder import RemoteFolder
from eaglediag.probes.launch import LaunchCommand
from eaglediag.probes.progress import Progress, silent

#: How long the launcher gets to end by itself before its processes are killed.
GRACE_S = 20.0
KEPT_LOG_LINES = 400


class ServerLog:
    """The log so far: its last lines, the graphs it says were captured, and what it says is wrong."""

    def __init__(self, progress: Progress) -> None:
        self.lines: deque[str] = deque(maxlen=KEPT_LOG_LINES)
        self.captured: dict[Phase, CapturedGraphs] = {}
        self.disabled: list[str] = []
        self.trouble: list[str] = []
        self.ready = False
        self._progress = progress
        self._capturing = ""
        self._exceptions = Exceptions()

    def add(self, line: str) -> None:
        """Take one line, and tell of it what a waiting user wants to know."""
        self.lines.append(line)
        if raised := self._exceptions.take(line):
            self.trouble.append(raised[:500])
        if self.ready or raised:
            return
        for event in log.parse_line(line):
            if isinstance(event, log.WeightsLoading):
                self._progress("loading weights")
            elif isinstance(event, log.WeightsLoaded):
                self._progress("loading weights", event.model)
            elif isinstance(event, log.CaptureBegin):
                self._capturing = f"{'draft ' if event.draft and event.phase == 'extend' else ''}{event.phase}"
                self._progress("capturing graphs", self._capturing)
                # Draft prefill graphs are the draft's own; the table has one row a phase, the target's.
                if not (event.draft and event.phase == "extend"):
                    self.captured[event.phase] = CapturedGraphs(
                        sizes=sorted(event.sizes or []),
                        unit="tokens" if event.unit == "tokens" else "requests",
                        backend=event.backend,
                        tokens_per_request=event.tokens_per_request,
                    )
            elif isinstance(event, log.CaptureProgress):
                size = f" {event.size} {event.unit}" if event.size is not None else ""
                detail = f"{self._capturing}{size}, {event.done} of {event.total}"
                self._progress("capturing graphs", detail, event.done / max(1, event.total))
            elif (
                isinstance(event, log.CaptureEnd)
                and event.phase in self.captured
                and not (event.draft and event.phase == "extend")
            ):
                captured = self.captured[event.phase]
                captured.seconds, captured.memory_gb = event.seconds, event.memory_gb
                if event.sizes and not captured.sizes:
                    captured.sizes = sorted(event.sizes)
            elif isinstance(event, log.GraphDisabled):
                self.disabled.append(event.text[:500])
            elif isinstance(event, log.Trouble) and not event.text.endswith(OPENING):
                self.trouble.append(event.text[:500])
            elif isinstance(event, log.Ready):
                self._progress("warming up", "the server answers")

    def tail(self, count: int) -> list[str]:
        """The last lines."""
        return list(self.lines)[-count:]

    @property
    def why(self) -> str:
        """What ended the server, as far as its log says. What comes last is often a consequence of what came before."""
        if not self.trouble:
            return _last_words(list(self.lines))
        told = list(dict.fromkeys(self.trouble))
        return "; then ".join(one[:300] for one in (told if len(told) < 3 else [*told[:2], told[-1]]))


class Server:
    """One server process tree on one host. Use as a context manager; `stop` and `close` are safe at any time."""

    def __init__(
        self,
        host: Host,
        folder: RemoteFolder,
        launch: LaunchCommand,
        python: str,
        route: str,
        progress: Progress = silent,
    ) -> None:
        self.host = host
        self.folder = folder
        self.launch = launch
        self.python = python
        self.route = route
        self.log = ServerLog(progress)
        self.exit_code: int | None = None
        self.started_s = 0.0
        self.ready_s: float | None = None
        #: (rank, pid) of ranks whose processes ended unbidden, the first first.
        self.ended_ranks: list[tuple[int, int]] = []
        self._progress = progress
        self._supervisor: Process | None = None
        self._ended = threading.Event()
        self._cleaned = threading.Event()
        self._lost = ""

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the command under the supervisor. Raises HostError."""
        script = f"{self.folder.path}/lib/eaglediag_payload/supervise.py"
        self._supervisor = self.host.popen([self.python, script, self.folder.path])
        spec = {
            "argv": list(self.launch.argv),
            "shell": self.launch.text if self.launch.shell else None,
            "environment": self.launch.environment,
            "route": self.route,
            "grace_s": GRACE_S,
        }
        self._tell(json.dumps(spec))
        self.started_s = time.monotonic()
        threading.Thread(target=self._listen, args=(self._supervisor,), daemon=True).start()
        self._progress("starting the server")

    def wait_ready(self, timeout_s: float, others: Sequence[Server] = ()) -> None:
        """Wait until the server answers /health; `others` are its parts on further nodes, which must not end either.

        Raises InstrumentationError when it ends first (with its last line) or takes longer, HostError when the
        connection is lost.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for part in (self, *others):
                part.check()
            if self._healthy():
                self.ready_s = time.monotonic() - self.started_s
                self.log.ready = True
                return
            self._ended.wait(0.3)
        last = (self.log.tail(1) or ["(none)"])[0][:300]
        raise InstrumentationError(
            f"the server was not ready after {timeout_s:.0f} s; its last line: {last}",
            "raise --ready-timeout if it was still loading or capturing",
        )

    def check(self) -> None:
        """Raises InstrumentationError when the server has ended, HostError when the connection is lost."""
        if self._lost:
            raise HostError(self._lost, "the supervisor on the host stops the server and removes its folder")
        if self._ended.is_set():
            raise InstrumentationError(
                f"{self.host.label}: the server ended with exit code {self.exit_code}: {self.log.why}",
                "the capture holds its last log lines; mend the launch command and probe again",
            )

    @property
    def running(self) -> bool:
        """Whether the server is up, as far as is known."""
        return self._supervisor is not None and not self._ended.is_set()

    def stop(self) -> None:
        """Stop the server and wait for its end. Never raises."""
        if self._supervisor is not None and not self._ended.is_set():
            self._progress("stopping the server")
            if self._tell("stop"):
                self._ended.wait(GRACE_S + 15.0)

    def close(self) -> None:
        """Stop the server, let the supervisor remove the folder, and let go. Never raises."""
        if self._supervisor is None:
            return
        self.stop()
        with contextlib.suppress(OSError):
            self._supervisor.stdin.close()
        if self._cleaned.wait(GRACE_S + 15.0):
            self.folder.gone = True
        else:
            self._supervisor.kill()
        self._supervisor = None

    def _healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.launch.port, timeout=20.0)
        try:
            connection.sock = self.host.connect(self.launch.port)
            headers = {"Authorization": f"Bearer {self.launch.api_key}"} if self.launch.api_key else {}
            connection.request("GET", "/health", headers=headers)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _tell(self, line: str) -> bool:
        assert self._supervisor is not None
        try:
            self._supervisor.stdin.write(line.encode() + b"\n")
            self._supervisor.stdin.flush()
        except OSError:
            return False
        return True

    def _listen(self, supervisor: Process) -> None:
        handlers: dict[str, Callable[[dict[str, Any]], None]] = {
            "log": lambda event: self.log.add(str(event["line"])),
            "rank_ended": lambda event: self.ended_ranks.append((int(event["rank"]), int(event["pid"]))),
            "exit": self._exited,
            "cleaned": lambda event: self._cleaned.set(),
        }
        for line in supervisor.stdout:
            try:
                event = json.loads(line)
                handle = handlers.get(event["event"])
            except (ValueError, KeyError, TypeError):
                self.log.add(line.decode(errors="replace").rstrip())
                continue
            if handle is not None:
                handle(event)
        if not self._ended.is_set():
            try:
                code = supervisor.wait(10.0)
                words = supervisor.stderr.read().decode(errors="replace").strip().splitlines()
                self._lost = (
                    f"{self.host.label}: the supervisor ended with exit code {code}: {(words or [''])[-1][:300]}"
                )
            except (HostError, TimeoutError) as error:
                self._lost = str(error) or f"lost the connection to {self.host.label}"
            self._ended.set()

    def _exited(self, event: dict[str, Any]) -> None:
        self.exit_code = int(event["code"])
        if event.get("error"):
            self.log.trouble.append(str(event["error"]))
        self._ended.set()


def _last_words(lines: list[str]) -> str:
    """The line that most likely says why: the last that names an error, else the last."""
    for line in reversed(lines):
        if any(mark in line for mark in ("Error", "error:", "Exception", "No module named", "Killed", "killed")):
            return line.strip()[:500]
    return lines[-1].strip()[:500] if lines else "it printed nothing"

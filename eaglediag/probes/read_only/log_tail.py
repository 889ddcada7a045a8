"""Follows the server's log on the host, from now on, and keeps what may be evidence."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import suppress

from eaglediag.errors import HostError, InstrumentationError
from eaglediag.hosts.base import Host, Process

#: Lines kept: a day of decode lines at two a second. Older ones are dropped.
MOST_LINES = 200_000
LONGEST_LINE = 100_000

#: tail ends with the shell's input: also when the connection is lost, and also where the log falls silent.
_FOLLOW = 'tail -n 0 -F -- "$1" & p=$!; exec 3<&0; (cat; kill $p) <&3 >/dev/null 2>&1 & wait $p'


class LogTail:
    """The lines that came in since `start`, each with the time of its arrival here. Use as a context manager."""

    def __init__(self, host: Host, path: str) -> None:
        self.host = host
        self.path = path
        self._lines: deque[tuple[float, str]] = deque(maxlen=MOST_LINES)
        self._process: Process | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> LogTail:
        """Raises InstrumentationError when the file cannot be read, HostError when the host is gone."""
        if self.host.run(["sh", "-c", 'test -f "$1" && test -r "$1"', "sh", self.path]).returncode:
            raise InstrumentationError(
                f"{self.host.label}: the log {self.path} is not there or cannot be read",
                "give --log the path of the server's log on the host, or leave it out",
            )
        self._process = self.host.popen(["sh", "-c", _FOLLOW, "sh", self.path])
        self._thread = threading.Thread(target=self._listen, args=(self._process,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        process, thread = self._process, self._thread
        if process is None or thread is None:
            return
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(3.0)
        except (TimeoutError, HostError):
            process.kill()
        thread.join(3.0)  # a stream that is being read must not be closed
        if not thread.is_alive():
            process.__exit__(None, None, None)

    def check(self) -> None:
        """Raises HostError when the connection is lost, InstrumentationError when tail ended."""
        if self._process is not None and self._thread is not None and not self._thread.is_alive():
            try:
                code = self._process.wait(1.0)
            except TimeoutError:
                return
            words = self._process.stderr.read().decode(errors="replace").strip().splitlines()
            why = words[-1][:300] if words else f"tail ended with {code}"
            raise InstrumentationError(
                f"{self.host.label}: {self.path} cannot be followed: {why}",
                "give --log another path, or leave it out",
            )

    def between(self, start: float, end: float) -> str:
        """The lines that came in from `start` to `end`, seconds since the epoch on this machine's clock."""
        return "".join(line for at, line in list(self._lines) if start <= at <= end)

    def _listen(self, process: Process) -> None:
        for raw in process.stdout:
            if b' HTTP/1.1" ' not in raw:
                text = raw[:LONGEST_LINE].decode(errors="replace")
                self._lines.append((time.time(), text if text.endswith("\n") else text + "\n"))

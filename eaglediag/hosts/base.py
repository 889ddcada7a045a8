"""What probing needs of a machine: run a command, keep one running, write and read files, reach a port.

Everything else here is built from `popen` and `connect`, so that a container or a login over two hops is one small class.
Only POSIX sh, cat, mkdir, mv and rm are asked of the machine.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Protocol

from eaglediag.errors import HostError


@dataclass(frozen=True)
class Completed:
    """A command that ended: its exit status and what it printed."""

    returncode: int
    stdout: bytes
    stderr: bytes


class Stream(Protocol):
    """A connected byte stream, as `http.client` needs one: a socket or an SSH channel."""

    def sendall(self, data: bytes, /) -> None: ...
    def makefile(self, mode: str = ..., buffering: int = ...) -> IO[bytes]: ...
    def settimeout(self, timeout: float | None, /) -> None: ...
    def close(self) -> None: ...


class Process(ABC):
    """A command running on the host. Closing `stdin` tells it that nobody is listening any more."""

    stdin: IO[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]

    @abstractmethod
    def poll(self) -> int | None:
        """The exit status, or None while it runs."""

    @abstractmethod
    def wait(self, timeout: float) -> int:
        """Wait for the end. Raises TimeoutError; raises HostError when the connection was lost."""

    @abstractmethod
    def kill(self) -> None:
        """End it now, as far as the connection allows. Never raises."""


class Host(ABC):
    """A machine. `label` is what messages and captures call it."""

    label: str

    @abstractmethod
    def popen(self, argv: Sequence[str]) -> Process:
        """Start a command; the shell never sees an unquoted argument. Raises HostError when the host is gone."""

    @abstractmethod
    def connect(self, port: int, address: str = "127.0.0.1", timeout: float = 10.0) -> Stream:
        """Connect to a port as seen from the host. Raises ConnectionError when nobody listens, HostError when the host is gone."""

    @abstractmethod
    def close(self) -> None:
        """Give the connection back. Never raises."""

    def __enter__(self) -> Host:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float = 30.0) -> Completed:
        """Run a command to its end. Raises HostError when the host is gone or the command takes longer than `timeout` s."""
        raise NotImplementedError  # replaced below by the hosts helper

    def write_file(self, path: str, data: bytes, mode: int = 0o600) -> None:
        """Write a file under a temporary name and rename it. Raises HostError with the host's own words (disk full, ...)."""
        quoted, temporary = shlex.quote(path), shlex.quote(path + ".part")
        script = f"umask 077 && cat > {temporary} && chmod {mode:o} {temporary} && mv -f {temporary} {quoted}"
        done = self.run(["sh", "-c", script], stdin=data)
        if done.returncode:
            raise HostError(f"{self.label}: cannot write {path}: {done.stderr.decode(errors='replace').strip()}")

    def read_file(self, path: str, limit: int = 256 * 1024 * 1024) -> bytes:
        """Read a file of at most `limit` bytes. Raises HostError."""
        done = self.run(["head", "-c", str(limit), "--", path], timeout=120.0)
        if done.returncode:
            raise HostError(f"{self.label}: cannot read {path}: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout

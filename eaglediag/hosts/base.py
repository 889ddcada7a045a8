"""What probing needs of a machine: run a command, keep one running, write and read files, reach a port.

Everything else here is built from `popen` and `connect`, so that a container or a
login over two hops is one small class. Only sh, cat, chmod, head, mkdir, mv and rm are asked of the machine.
"""

from __future__ import annotations

import shlex
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Literal, Protocol

from eaglediag.errors import HostError

Ask = Callable[[str, bool], str]
"""Puts a prompt to the user, without echo when the second argument is true, and returns the answer."""


@dataclass(frozen=True)
class Completed:
    """A command that ended: its exit status and what it printed."""

    returncode: int
    stdout: bytes
    stderr: bytes


class Stream(Protocol):
    """A connected byte stream, as `http.client` needs one: a socket or an SSH channel."""

    def sendall(self, data: bytes, /) -> None: ...
    def makefile(self, mode: Literal["rb"], /) -> IO[bytes]: ...
    def settimeout(self, timeout: float | None, /) -> None: ...
    def close(self) -> None: ...


class Process(ABC):
    """A command running on the host. Closing `stdin` tells it that nobody is listening any more.

    The streams are buffered: `stdin` needs a flush. After a lost connection the streams end; `wait` and `poll` say why.
    """

    stdin: IO[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]

    @abstractmethod
    def poll(self) -> int | None:
        """The exit status, or None while it runs; negative when a signal ended it.

        Raises HostError when the connection was lost.
        """

    @abstractmethod
    def wait(self, timeout: float) -> int:
        """Wait for the end. Raises TimeoutError; raises HostError when the connection was lost."""

    @abstractmethod
    def kill(self) -> None:
        """End it now, as far as the connection allows. Never raises."""

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the streams. The command itself is left alone, but sees the end of its input."""
        for stream in (self.stdin, self.stdout, self.stderr):
            with suppress(OSError):
                stream.close()


class Host(ABC):
    """A machine. `label` is what messages and captures call it."""

    label: str

    @abstractmethod
    def popen(self, argv: Sequence[str]) -> Process:
        """Start a command; the shell never sees an unquoted argument. Raises HostError when the host is gone."""

    @abstractmethod
    def connect(self, port: int, address: str = "127.0.0.1", timeout: float = 10.0) -> Stream:
        """Connect to a port as seen from the host.

        Raises ConnectionError when nobody listens, HostError when the host is gone.
        """

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
        """Run a command to its end.

        Raises HostError when the host is gone or the command takes longer than `timeout` s.
        """
        deadline = time.monotonic() + timeout
        process = self.popen(argv)
        printed: dict[str, bytes] = {"stdout": b"", "stderr": b""}

        def feed() -> None:
            # A command may end without reading its input; its exit status, or the lost connection, is then the news.
            with suppress(OSError):
                process.stdin.write(stdin)
            with suppress(OSError):
                process.stdin.close()

        def drain(name: str, stream: IO[bytes]) -> None:
            printed[name] = stream.read()

        threads = {
            process.stdin: threading.Thread(target=feed, daemon=True),
            process.stdout: threading.Thread(target=drain, args=("stdout", process.stdout), daemon=True),
            process.stderr: threading.Thread(target=drain, args=("stderr", process.stderr), daemon=True),
        }
        try:
            for thread in threads.values():
                thread.start()
            for thread in threads.values():
                thread.join(max(0.0, deadline - time.monotonic()))
                if thread.is_alive():
                    raise TimeoutError
            returncode = process.wait(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            process.kill()
            raise HostError(f"{self.label}: `{shlex.join(argv)[:200]}` took longer than {timeout:g} s") from None
        except BaseException:
            process.kill()
            raise
        finally:
            for stream, thread in threads.items():
                if thread.ident is not None:
                    thread.join(1.0)
                if not thread.is_alive():  # closing a stream that is being read would wait for the reader
                    with suppress(OSError):
                        stream.close()
        return Completed(returncode, printed["stdout"], printed["stderr"])

    def write_file(self, path: str, data: bytes, mode: int = 0o600) -> None:
        """Write a file under a temporary name and rename it.

        Raises HostError with the host's own words (disk full, ...).
        """
        quoted, temporary = shlex.quote(path), shlex.quote(path + ".part")
        script = (
            f"umask 077; cat > {temporary} && chmod {mode:o} {temporary} && mv -f {temporary} {quoted}"
            f" || {{ rm -f {temporary}; exit 1; }}"
        )
        done = self.run(["sh", "-c", script], stdin=data, timeout=120.0)
        if done.returncode:
            raise HostError(f"{self.label}: cannot write {path}: {done.stderr.decode(errors='replace').strip()}")

    def read_file(self, path: str, limit: int = 256 * 1024 * 1024) -> bytes:
        """Read a file. Raises HostError when it cannot be read or holds more than `limit` bytes."""
        done = self.run(["head", "-c", str(limit + 1), "--", path], timeout=120.0)
        if done.returncode:
            raise HostError(f"{self.label}: cannot read {path}: {done.stderr.decode(errors='replace').strip()}")
        if len(done.stdout) > limit:
            raise HostError(f"{self.label}: {path} is larger than {limit} bytes")
        return done.stdout

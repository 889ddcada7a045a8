"""SSH channels as what the rest of the program expects: a process with its three streams, and a socket."""

from __future__ import annotations

import io
import shlex
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Literal

import paramiko

from eaglediag.errors import HostError
from eaglediag.hosts.base import Process

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


def lost(label: str) -> HostError:
    """The error for a connection that is gone."""
    return HostError(f"lost the connection to {label}", "check the network and the machine, then run it again")


def send_all(channel: paramiko.Channel, data: bytes) -> None:
    """Send everything. Raises BrokenPipeError when either side closed it, where paramiko's sendall would spin."""
    view = memoryview(data)
    while view:
        try:
            sent = channel.send(bytes(view[:32768]))
        except TimeoutError:
            raise
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise BrokenPipeError(str(error)) from error
        if not sent:
            raise BrokenPipeError("the channel is closed for writing")
        view = view[sent:]


class _Reader(io.RawIOBase):
    def __init__(self, receive: Callable[[int], bytes], closed: Callable[[], None] | None = None) -> None:
        self._receive, self._on_close = receive, closed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        data = self._receive(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed and self._on_close:
            self._on_close()
        super().close()


class _Writer(io.RawIOBase):
    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        whole = bytes(data)
        send_all(self._channel, whole)
        return len(whole)

    def close(self) -> None:
        if not self.closed:
            # On a dead connection nobody is left to be told; `wait` reports that.
            with suppress(OSError, EOFError, paramiko.SSHException):
                self._channel.shutdown_write()
        super().close()


def _until_lost(receive: Callable[[int], bytes], size: int) -> bytes:
    try:
        return receive(size)
    except (EOFError, paramiko.SSHException):  # the acknowledgement found the connection gone
        return b""


class SshProcess(Process):
    """A command on an exec channel. Its exit status is -1 when a signal ended it: paramiko does not pass on which.

    It is started by a shell that first prints its process id behind `MARK`: sshd does not pass signals on for root.
    """

    MARK = b"eaglediag-pid "

    def __init__(self, channel: paramiko.Channel, label: str, kill: Callable[[int], None]) -> None:
        """`channel` has been asked to run `command(argv)`; `kill` ends the process group that a process id leads.

        Raises HostError when the login shell does not start the command.
        """
        self._channel, self._label, self._kill, self._killed = channel, label, kill, False
        self.stdin = io.BufferedWriter(_Writer(channel))
        self.stdout = io.BufferedReader(_Reader(lambda size: _until_lost(channel.recv, size)))
        self.stderr = io.BufferedReader(_Reader(lambda size: _until_lost(channel.recv_stderr, size)))
        self._pid = self._begin()

    @classmethod
    def command(cls, argv: Sequence[str]) -> str:
        """The command line for the exec request."""
        return shlex.join(["sh", "-c", f'echo "{cls.MARK.decode()}$$"; exec "$@"', "sh", *argv])

    def _begin(self) -> int:
        """Wait until the command starts; its process id. Raises HostError when the login shell lets none start."""
        greeting = []
        for line in self.stdout:
            if line.startswith(self.MARK):
                return int(line.removeprefix(self.MARK))
            greeting.append(line)  # a talkative shell start-up file
        status = self.wait(10.0)
        said = " ".join(b"".join([*greeting, self.stderr.read()]).decode(errors="replace").split())
        raise HostError(f"{self._label} starts no command: {said[:300] or f'exit status {status}'}")

    def poll(self) -> int | None:
        return self.wait(0.0) if self._channel.exit_status_ready() else None

    def wait(self, timeout: float) -> int:
        if not self._channel.status_event.wait(timeout):
            raise TimeoutError
        status = self._channel.exit_status
        cut_off = self._channel.closed and not self._channel.eof_received
        if (status == -1 or cut_off) and not self._killed:
            # A dying transport closes its channels just before it counts as dead: let it finish.
            transport = self._channel.get_transport()
            transport.join(1.0)
            if not transport.is_active():
                raise lost(self._label)
        return status

    def kill(self) -> None:
        self._killed = True
        with suppress(HostError):
            self._kill(self._pid)
        with suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.close()


class ChannelStream:
    """A direct-tcpip channel with the manners of a socket: it lives until it and every file made of it are closed.

    `http.client` closes the socket of a response it is still going to read; paramiko's channel would lose the rest.
    """

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel
        self._holders = 1
        self._closed = False
        self._lock = threading.Lock()

    def sendall(self, data: bytes, /) -> None:
        send_all(self._channel, data)

    def makefile(self, mode: Literal["rb"], /) -> IO[bytes]:
        """A buffered reader."""
        with self._lock:
            self._holders += 1
        return io.BufferedReader(_Reader(self._receive, self._release))

    def settimeout(self, timeout: float | None, /) -> None:
        self._channel.settimeout(timeout)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._release()

    def _receive(self, size: int) -> bytes:
        try:
            data = self._channel.recv(size)
        except (EOFError, paramiko.SSHException) as error:
            raise ConnectionResetError("the SSH connection was lost") from error
        if not data and not self._channel.eof_received:
            raise ConnectionResetError("the SSH connection was lost")
        return data

    def _release(self) -> None:
        with self._lock:
            self._holders -= 1
            last = self._holders == 0
        if last:
            with suppress(OSError, EOFError, paramiko.SSHException):
                self._channel.close()

"""SSH channels as what the rest of the program expects: a process with its three streams, and a socket."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Literal

import paramiko
from paramiko.common import cMSG_CHANNEL_REQUEST

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
        try:
            data = self._receive(len(view))
        except (EOFError, paramiko.SSHException) as error:
            raise ConnectionResetError(str(error)) from error
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


class SshProcess(Process):
    """A command on an exec channel. Its exit status is -1 when a signal ended it: paramiko does not pass on which."""

    def __init__(self, channel: paramiko.Channel, label: str) -> None:
        self._channel, self._label, self._killed = channel, label, False
        self.stdin = io.BufferedWriter(_Writer(channel))
        self.stdout = io.BufferedReader(_Reader(channel.recv))
        self.stderr = io.BufferedReader(_Reader(channel.recv_stderr))

    def poll(self) -> int | None:
        return self.wait(0.0) if self._channel.exit_status_ready() else None

    def wait(self, timeout: float) -> int:
        if not self._channel.status_event.wait(timeout):
            raise TimeoutError
        status = self._channel.exit_status
        if status == -1 and not self._killed:
            # A dying transport closes its channels just before it counts as dead: let it finish.
            transport = self._channel.get_transport()
            transport.join(1.0)
            if not transport.is_active():
                raise lost(self._label)
        return status

    def kill(self) -> None:
        self._killed = True
        request = paramiko.Message()
        request.add_byte(cMSG_CHANNEL_REQUEST)
        request.add_int(self._channel.remote_chanid)
        request.add_string("signal")
        request.add_boolean(False)
        request.add_string("KILL")
        with suppress(OSError, EOFError, paramiko.SSHException):
            # paramiko has no call for RFC 4254's "signal" request.
            self._channel.get_transport()._send_user_message(request)  # type: ignore[attr-defined]
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
        return io.BufferedReader(_Reader(self._channel.recv, self._release))

    def settimeout(self, timeout: float | None, /) -> None:
        self._channel.settimeout(timeout)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._release()

    def _release(self) -> None:
        with self._lock:
            self._holders -= 1
            last = self._holders == 0
        if last:
            with suppress(OSError, EOFError, paramiko.SSHException):
                self._channel.close()

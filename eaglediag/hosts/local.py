"""This machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from eaglediag.errors import HostError
from eaglediag.hosts.base import Host, Process, Stream


class LocalProcess(Process):
    """A child in a session of its own, so that Ctrl-C in our terminal reaches us alone."""

    def __init__(self, argv: Sequence[str]) -> None:
        # Through sh, so that a command that does not exist is exit status 127 with a message, as it is over SSH.
        self._child = subprocess.Popen(
            ["sh", "-c", 'exec "$@"', "sh", *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        self.stdin, self.stdout, self.stderr = self._child.stdin, self._child.stdout, self._child.stderr

    def poll(self) -> int | None:
        return self._child.poll()

    def wait(self, timeout: float) -> int:
        try:
            return self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None

    def kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(1.0)  # collects the child


class LocalHost(Host):
    """This machine, without a login."""

    label = "local"

    def popen(self, argv: Sequence[str]) -> Process:
        try:
            return LocalProcess(argv)
        except OSError as error:
            raise HostError(f"local: cannot start a process: {error}") from error

    def connect(self, port: int, address: str = "127.0.0.1", timeout: float = 10.0) -> Stream:
        try:
            return socket.create_connection((address, port), timeout)
        except TimeoutError:
            raise ConnectionRefusedError(f"{address} port {port} does not answer within {timeout:g} s") from None

    def close(self) -> None:
        """Nothing is held."""

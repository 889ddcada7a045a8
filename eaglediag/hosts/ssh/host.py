"""A machine over SSH."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import paramiko
from paramiko.common import OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

from eaglediag.errors import HostError
from eaglediag.hosts.base import Ask, Host, Process, Stream
from eaglediag.hosts.ssh.channel import ChannelStream, SshProcess, lost
from eaglediag.hosts.ssh.config import Target
from eaglediag.hosts.ssh.connect import Connector


class SshHost(Host):
    """A machine over one SSH connection, shared by all its commands and streams, from any thread.

    The machine is asked for a sign of life every `keepalive` s; without an answer within twice that time the connection
    counts as lost.
    """

    def __init__(
        self,
        target: Target,
        *,
        ssh_config: Path | None = None,
        identities: Sequence[Path] = (),
        accept_new_host_key: bool = False,
        ask: Ask | None = None,
        keepalive: float = 15.0,
    ) -> None:
        self.label = str(target)
        self._connector = Connector(ssh_config, accept_new_host_key, ask)
        self._transport = self._connector.connect(target, identities)
        # paramiko keeps one error per connection: two channels refused at once would swap theirs.
        self._opening = threading.Lock()
        self._closed = threading.Event()
        self._keepalive = keepalive
        threading.Thread(target=self._watch, name=f"keepalive {self.label}", daemon=True).start()

    def popen(self, argv: Sequence[str]) -> Process:
        try:
            with self._opening:
                channel = self._transport.open_session(timeout=60.0)
                channel.exec_command(SshProcess.command(argv))
        except paramiko.ChannelException as error:
            raise HostError(
                f"{self.label} refuses to start another command: {error.text}", "raise MaxSessions in its sshd_config"
            ) from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise self._failure(error) from error
        return SshProcess(channel, self.label, self._kill)

    def _kill(self, pid: int) -> None:
        """End a command's process group; sshd makes every command the leader of one."""
        self.run(["sh", "-c", f"kill -KILL -{pid} || kill -KILL {pid}"], timeout=10.0)

    def connect(self, port: int, address: str = "127.0.0.1", timeout: float = 10.0) -> Stream:
        try:
            with self._opening:
                channel = self._transport.open_channel(
                    "direct-tcpip", (address, port), ("127.0.0.1", 0), timeout=timeout
                )
        except paramiko.ChannelException as error:
            if error.code == OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED:
                raise HostError(
                    f"{self.label} refuses to forward connections: {error.text}",
                    "set AllowTcpForwarding yes in its sshd_config",
                ) from error
            raise ConnectionRefusedError(f"{self.label}: {address} port {port}: {error.text}") from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            if self._transport.is_active():
                raise ConnectionRefusedError(f"{self.label}: {address} port {port}: {error}") from error
            raise lost(self.label) from error
        channel.settimeout(timeout)
        return ChannelStream(channel)

    def close(self) -> None:
        self._closed.set()
        self._connector.close()

    def _failure(self, error: Exception) -> HostError:
        if self._transport.is_active():
            return HostError(f"{self.label}: cannot start a command: {error or type(error).__name__}")
        return lost(self.label)

    def _watch(self) -> None:
        """Notice a connection that fell silent; paramiko's own keepalive expects no answer."""
        while not self._closed.wait(self._keepalive) and self._transport.is_active():
            question = threading.Thread(target=self._ask_for_life, daemon=True)
            question.start()
            question.join(2 * self._keepalive)
            if question.is_alive() and not self._closed.is_set():
                self._transport.close()

    def _ask_for_life(self) -> None:
        # When the connection breaks meanwhile, whoever uses it next is told.
        with suppress(paramiko.SSHException, EOFError, OSError):
            self._transport.global_request("keepalive@openssh.com", wait=True)

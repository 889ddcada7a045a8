"""From a target to a logged-in transport: sockets, proxies, jump hosts, host keys, login."""

from __future__ import annotations

import logging
import socket
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import paramiko

from eaglediag.errors import HostError, UsageError
from eaglediag.hosts.base import Ask
from eaglediag.hosts.ssh import known_hosts
from eaglediag.hosts.ssh.config import Settings, Target, parse_target, resolve
from eaglediag.hosts.ssh.login import log_in

# paramiko logs tracebacks of what it also raises; without a handler Python would print them.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

_HOPS = 8


@dataclass
class Connector:
    """Connects to a target with everything on the way to it. `opened` holds what to close, in order of opening."""

    ssh_config: Path | None = None
    accept_new_host_key: bool = False
    ask: Ask | None = None
    opened: list[Callable[[], None]] = field(default_factory=list)

    def connect(self, target: Target, identities: Sequence[Path] = ()) -> paramiko.Transport:
        """A logged-in connection. Raises HostError, and UsageError for a key file that is not there."""
        for path in identities:
            if not path.is_file():
                raise UsageError(f"no key file at {path}")
        try:
            settings = resolve(target, self.ssh_config)
            return self._connect(
                replace(settings, identity_files=(*identities, *settings.identity_files)), settings.proxy_jump, 0
            )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close everything, the farthest first."""
        while self.opened:
            self.opened.pop()()

    def _connect(self, settings: Settings, jumps: Sequence[str], depth: int) -> paramiko.Transport:
        if depth > _HOPS:
            raise HostError(f"{settings.name}: ProxyJump goes round in circles", "correct the ssh config")
        stream, proxy_stderr = self._stream(settings, jumps, depth)
        transport = paramiko.Transport(stream)
        self.opened.append(transport.close)
        options = transport.get_security_options()
        options.key_types = known_hosts.preferred(options.key_types, known_hosts.known_types(settings))
        try:
            transport.start_client(timeout=30.0)
            key = transport.get_remote_server_key()
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise _handshake_error(settings, error, proxy_stderr) from error
        known_hosts.admit(key, settings, self.accept_new_host_key)
        log_in(transport, settings, self.ask)
        return transport

    def _stream(self, settings: Settings, jumps: Sequence[str], depth: int) -> tuple[socket.socket, IO[bytes] | None]:
        """The bytes' way to the machine, and the standard error of the ProxyCommand when that is the way."""
        if jumps:
            *earlier, last = jumps
            via = resolve(parse_target(last), self.ssh_config)
            # "Host * / ProxyJump gateway" also applies to the gateway, which is then reached directly.
            if (via.hostname, via.port, via.user) != (settings.hostname, settings.port, settings.user):
                hop = self._connect(via, earlier or via.proxy_jump, depth + 1)
                return self._jump(hop, via, settings), None
        elif settings.proxy_command:
            return self._proxy(settings.proxy_command)
        try:
            stream = socket.create_connection((settings.hostname, settings.port), settings.connect_timeout)
        except socket.gaierror as error:
            raise HostError(
                f"{settings.name}: cannot resolve {settings.hostname}: {error.strerror}", "check the name"
            ) from error
        except (OSError, UnicodeError) as error:
            raise _unreachable(settings, str(error)) from error
        # Requests are small and waited for; held back by Nagle's algorithm, each would cost 40 ms.
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.opened.append(stream.close)
        return stream, None

    def _jump(self, hop: paramiko.Transport, via: Settings, settings: Settings) -> socket.socket:
        try:
            channel = hop.open_channel(
                "direct-tcpip",
                (settings.hostname, settings.port),
                ("127.0.0.1", 0),
                timeout=settings.connect_timeout,
            )
        except (paramiko.SSHException, EOFError, OSError) as error:
            why = error.text if isinstance(error, paramiko.ChannelException) else str(error)
            raise _unreachable(settings, f"{why} (asked from {via.name})") from error
        return channel  # type: ignore[return-value]  # as much of a socket as Transport needs

    def _proxy(self, command: str) -> tuple[socket.socket, IO[bytes]]:
        """Start a ProxyCommand on a socket pair.

        paramiko's own ProxyCommand knows no shell syntax and spins when the command ends.
        """
        ours, theirs = socket.socketpair()
        self.opened.append(ours.close)
        stderr = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the command
        with theirs:
            child = subprocess.Popen(
                ["sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=stderr,
                start_new_session=True,
            )

        def end() -> None:
            child.terminate()
            try:
                child.wait(2.0)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            stderr.close()

        self.opened.append(end)
        return ours, stderr


def _unreachable(settings: Settings, why: str) -> HostError:
    where = f"{settings.hostname} port {settings.port}"
    return HostError(f"{settings.name}: cannot connect to {where}: {why}", "check that sshd listens there")


def _handshake_error(settings: Settings, error: Exception, proxy_stderr: IO[bytes] | None) -> HostError:
    where = f"{settings.hostname} port {settings.port}"
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        return HostError(f"{settings.name}: no algorithm in common with {where}: {error}", "update its SSH server")
    if proxy_stderr is not None:
        proxy_stderr.seek(0)
        said = " ".join(proxy_stderr.read(4096).decode(errors="replace").split())
        return HostError(f"{settings.name}: ProxyCommand gave no connection: {said or error}", "check the ssh config")
    return HostError(
        f"{settings.name}: {where} did not complete the SSH handshake: {error or 'it hung up'}",
        "check that this is an SSH server",
    )

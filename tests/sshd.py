"""A real sshd on loopback, with keys, config and known_hosts of its own.

The integration tests take the fixtures `sshd`, `start_sshd` and `password_user`.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

PASSPHRASE = "open sesame"
ALIAS = "testhost"

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def generate_key(path: Path, passphrase: str = "", kind: str = "ed25519") -> Path:
    """Make a key pair at `path` and `path`.pub, replacing one that is there."""
    path.unlink(missing_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", path], check=True)
    return path


def free_port() -> int:
    """A port of 127.0.0.1 nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Sshd:
    """The server. Its client side lies ready: `ssh_config` knows it as `ALIAS`, with a key and its host key."""

    def __init__(self, folder: Path, options: Sequence[str] = ()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.options = folder, tuple(options)
        self.user = getpass.getuser()
        self.port = free_port()
        self.host_key = generate_key(folder / "host_key")
        self.client_key = generate_key(folder / "client_key")
        self.encrypted_key = generate_key(folder / "encrypted_key", PASSPHRASE)
        self.log = folder / "sshd.log"
        self.known_hosts = folder / "known_hosts"
        self.ssh_config = folder / "ssh_config"
        self._authorized = folder / "authorized_keys"
        self._authorized.write_text("".join(Path(f"{key}.pub").read_text() for key in self.client_keys))
        self.trust()
        self.write_config(f"Host {ALIAS}\n{self.login_lines()}")

    @property
    def client_keys(self) -> tuple[Path, Path]:
        """The keys that are let in."""
        return self.client_key, self.encrypted_key

    @property
    def spec(self) -> str:
        """The server as `--host` takes it, without an alias."""
        return f"{self.user}@127.0.0.1:{self.port}"

    def login_lines(self, *, key: Path | None = None) -> str:
        """The body of a Host block for the server."""
        return (
            f"  HostName 127.0.0.1\n  Port {self.port}\n  User {self.user}\n"
            f"  IdentityFile {key or self.client_key}\n  IdentitiesOnly yes\n"
        )

    def write_config(self, text: str) -> None:
        """Replace `ssh_config`; every host in it uses the fixture's known_hosts and no agent unless `text` says so."""
        common = f"Host *\n  UserKnownHostsFile {self.known_hosts}\n  GlobalKnownHostsFile /dev/null\n"
        self.ssh_config.write_text(text + common + "  IdentityFile none\n")

    def host_key_line(self) -> str:
        """The known_hosts line of the server's present host key."""
        kind, blob, *_ = Path(f"{self.host_key}.pub").read_text().split()
        return f"[127.0.0.1]:{self.port} {kind} {blob}\n"

    def trust(self) -> None:
        """Make known_hosts hold exactly the server's present host key."""
        self.known_hosts.write_text(self.host_key_line())

    def fingerprint(self) -> str:
        """The host key's fingerprint as ssh-keygen prints it."""
        printed = subprocess.run(["ssh-keygen", "-lf", self.host_key], check=True, capture_output=True, text=True)
        return printed.stdout.split()[1]

    def start(self) -> None:
        """Start and wait until the port is open."""
        assert SSHD is not None
        config = self.folder / "sshd_config"
        lines = [
            *self.options,  # the first value of an option holds
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {self.host_key}",
            f"AuthorizedKeysFile {self._authorized}",
            "PidFile none",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin yes",
            "MaxStartups 100",
        ]
        config.write_text("\n".join([*lines, "PerSourcePenalties no\n"]))
        if subprocess.run([SSHD, "-t", "-f", config], capture_output=True).returncode:
            config.write_text("\n".join([*lines, ""]))  # an sshd older than 9.8
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", config], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"sshd did not start:\n{self.log.read_text()}") from None
                time.sleep(0.02)

    def stop(self) -> None:
        """Stop listening and end all connections."""
        self.drop_connections()
        self._process.terminate()
        self._process.wait(10)

    def restart_with_new_host_key(self) -> None:
        """Come back as another machine would: same address, another key. known_hosts keeps the old one."""
        self.stop()
        generate_key(self.host_key)
        self.start()

    def drop_connections(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Kill the server's side of every connection, or with SIGSTOP make it fall silent."""
        listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,comm="], check=True, capture_output=True, text=True)
        processes = [(int(pid), int(parent), name) for pid, parent, name in map(_fields, listing.stdout.splitlines())]
        family = {self._process.pid}
        for pid, parent, name in sorted(processes):
            if parent in family and "sshd" in name:
                family.add(pid)
        for pid in family - {self._process.pid}:
            try:
                os.kill(pid, how)
            except ProcessLookupError:
                continue  # it ended by itself


def _fields(line: str) -> list[str]:
    return line.split(None, 2)


@contextmanager
def running_sshd(folder: Path, *options: str) -> Iterator[Sshd]:
    """An sshd for the present user; `options` are lines of sshd_config that come before the usual ones. May skip."""
    if SSHD is None or shutil.which("ssh-keygen") is None:
        pytest.skip("OpenSSH's sshd and ssh-keygen are not installed")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd's privilege separation folder
    server = Sshd(folder, options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def start_sshd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Sshd]]:
    """Starts any number of servers, each with its own sshd_config lines, and stops them after the test."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with ExitStack() as stack:
        count = 0

        def start(*options: str) -> Sshd:
            nonlocal count
            count += 1
            return stack.enter_context(running_sshd(tmp_path / f"sshd{count}", *options))

        yield start


@pytest.fixture
def sshd(start_sshd: Callable[..., Sshd]) -> Sshd:
    """A server with the usual settings: keys only."""
    return start_sshd()


@dataclass(frozen=True)
class Account:
    """A system account made for the test."""

    name: str
    password: str


@pytest.fixture
def password_user() -> Iterator[Account]:
    """An account with a password, removed after the test. Skips where such a one cannot be made."""
    if os.getuid() != 0 or shutil.which("useradd") is None or shutil.which("chpasswd") is None:
        pytest.skip("password logins need root and useradd: sshd checks them against the system's accounts")
    account = Account(f"eagle{secrets.token_hex(4)}", secrets.token_hex(8))
    subprocess.run(["useradd", "-M", "-d", "/tmp", "-s", "/bin/sh", account.name], check=True)
    try:
        subprocess.run(["chpasswd"], input=f"{account.name}:{account.password}\n", text=True, check=True)
        yield account
    finally:
        deadline = time.monotonic() + 10
        while removal := subprocess.run(["userdel", account.name], capture_output=True, text=True).returncode:
            # 8: the account's last session is still ending
            assert removal == 8
            assert time.monotonic() < deadline
            time.sleep(0.1)

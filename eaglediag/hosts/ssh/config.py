"""Whom to connect to and how, as the user's ssh config has it.

OpenSSH itself is asked (`ssh -G`) where it is installed, since only it knows every rule of its config. Otherwise
paramiko's parser reads the files.
"""

from __future__ import annotations

import getpass
import glob
import hashlib
import os
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from eaglediag.errors import UsageError

_DEFAULTS = {
    "port": ["22"],
    "identityfile": ["~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519"],
    "userknownhostsfile": ["~/.ssh/known_hosts ~/.ssh/known_hosts2"],
    "globalknownhostsfile": ["/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"],
}


@dataclass(frozen=True)
class Target:
    """A host as the user wrote it; `user` and `port` are None where the ssh config decides."""

    host: str
    user: str | None = None
    port: int | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host and self.port else self.host
        return (f"{self.user}@" if self.user else "") + host + (f":{self.port}" if self.port else "")


def parse_target(spec: str) -> Target:
    """Read "[user@]host[:port]", "[v6]:port", a bare IPv6 address or an alias. Raises UsageError."""
    rest = spec.strip().removeprefix("ssh://").rstrip("/")
    user, at, rest = rest.rpartition("@")
    bracketed = re.fullmatch(r"\[([0-9A-Fa-f:.%\w-]+)\](?::(.*))?", rest)
    if bracketed:
        host, port = bracketed[1], bracketed[2]
    elif rest.count(":") > 1:
        host, port = rest, None
    else:
        host, colon, port_text = rest.partition(":")
        port = port_text if colon else None
    # A leading "-" would reach ssh as an option.
    if not host or host.startswith("-") or user.startswith("-") or bool(at) != bool(user) or re.search(r"[\s/]", rest):
        raise UsageError(f"{spec!r} is no host", "write [user@]host[:port], or local for this machine")
    if port is not None and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise UsageError(f"{spec!r} has no usable port", "write [user@]host[:port] with a port from 1 to 65535")
    return Target(host, user or None, int(port) if port else None)


@dataclass(frozen=True)
class Settings:
    """How to reach and recognise one machine. `name` is what the user called it, `hostname` what is connected to."""

    name: str
    hostname: str
    port: int
    user: str
    identity_files: tuple[Path, ...]
    identities_only: bool
    identity_agent: str | None
    """Path of the agent's socket; None means the one in SSH_AUTH_SOCK, "none" means no agent."""
    known_hosts: tuple[Path, ...]
    global_known_hosts: tuple[Path, ...]
    hash_known_hosts: bool
    host_key_alias: str | None
    proxy_jump: tuple[str, ...]
    proxy_command: str | None
    connect_timeout: float
    batch_mode: bool

    @property
    def host_key_name(self) -> str:
        """The name under which known_hosts files hold the machine's key."""
        if self.host_key_alias:
            return self.host_key_alias
        return self.hostname.lower() if self.port == 22 else f"[{self.hostname.lower()}]:{self.port}"


def resolve(target: Target, config: Path | None = None) -> Settings:
    """Look `target` up in the user's ssh config, or in `config` instead of it. Raises UsageError for a bad config."""
    if config is not None and not config.is_file():
        raise UsageError(f"no ssh config at {config}")
    values = _ask_openssh(target, config) if shutil.which("ssh") else _read_files(target, config)

    def first(key: str) -> str | None:
        value = values.get(key, _DEFAULTS.get(key, [""]))[0]
        return None if value.lower() in ("", "none") else value

    hostname = first("hostname") or target.host
    port = target.port or int(first("port") or 22)
    user = target.user or first("user") or getpass.getuser()
    local = socket.gethostname()
    jump = first("proxyjump")
    tokens = {
        "%": "%",
        "h": hostname,
        "n": target.host,
        "p": str(port),
        "r": user,
        "k": first("hostkeyalias") or hostname,
        "u": getpass.getuser(),
        "d": str(Path.home()),
        "l": local,
        "L": local.partition(".")[0],
        "i": str(os.getuid()),
        "j": jump or "",
        "C": hashlib.sha1(f"{local}{hostname}{port}{user}{jump or ''}".encode()).hexdigest(),
    }

    def expand(text: str) -> str:
        return re.sub(r"%(.)", lambda found: tokens.get(found[1], found[0]), text)

    def path(text: str) -> Path:
        known = re.sub(r"\$\{(\w+)\}", lambda found: os.environ.get(found[1], found[0]), text)
        return Path(expand(known)).expanduser()

    def paths(key: str) -> tuple[Path, ...]:
        return tuple(path(item) for item in (first(key) or "").split())

    agent = values.get("identityagent", [""])[0]
    if agent.startswith("$"):
        agent = os.environ.get(agent[1:].strip("{}"), "none")
    command = first("proxycommand")
    timeout = first("connecttimeout") or "0"
    return Settings(
        name=target.host,
        hostname=hostname,
        port=port,
        user=user,
        identity_files=tuple(path(item) for item in values.get("identityfile", _DEFAULTS["identityfile"])),
        identities_only=first("identitiesonly") == "yes",
        identity_agent=None if agent in ("", "SSH_AUTH_SOCK") else agent if agent == "none" else str(path(agent)),
        known_hosts=paths("userknownhostsfile"),
        global_known_hosts=paths("globalknownhostsfile"),
        hash_known_hosts=first("hashknownhosts") == "yes",
        host_key_alias=first("hostkeyalias"),
        proxy_jump=tuple(expand(jump).split(",")) if jump else (),
        proxy_command=expand(command) if command else None,
        connect_timeout=float(timeout) if timeout.isdigit() and int(timeout) else 15.0,
        batch_mode=first("batchmode") == "yes",
    )


def _ask_openssh(target: Target, config: Path | None) -> Mapping[str, list[str]]:
    argv = ["ssh", "-G", "-T"]
    argv += ["-F", str(config)] if config else []
    argv += ["-l", target.user] if target.user else []
    argv += ["-p", str(target.port)] if target.port else []
    done = subprocess.run(
        [*argv, "--", target.host], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
    )
    if done.returncode:
        said = " ".join(done.stderr.split())
        raise UsageError(f"ssh -G {target.host}: {said or f'exit status {done.returncode}'}", "correct the ssh config")
    values: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        values.setdefault(key, []).append(value)
    return values


def _read_files(target: Target, config: Path | None) -> Mapping[str, list[str]]:
    import paramiko

    files = [config] if config else [Path("~/.ssh/config").expanduser(), Path("/etc/ssh/ssh_config")]
    parser = paramiko.SSHConfig()
    try:
        # The first value of a keyword holds, and user and port take part in the expansion of others.
        given = [f"User {target.user}"] * bool(target.user) + [f"Port {target.port}"] * bool(target.port)
        parser.parse(chain(given, *(_with_includes(file) for file in files if file.is_file())))
        found = parser.lookup(target.host)
    except (paramiko.SSHException, OSError, ImportError, ValueError) as error:
        raise UsageError(f"cannot read the ssh config: {error}", "correct it, or install the OpenSSH client") from error
    return {
        key: list(value) if isinstance(value, list) else [value] for key, value in found.items() if value is not None
    }


def _with_includes(file: Path, depth: int = 0) -> Iterator[str]:
    """The lines of a config with its Include files in place, each followed by the Host or Match line it stood under."""
    if depth > 16:  # OpenSSH's own limit
        raise ValueError(f"{file} includes itself")
    block = "Host *"
    for line in file.read_text().splitlines():
        keyword, _, value = line.strip().replace("=", " ", 1).partition(" ")
        if keyword.lower() in ("host", "match"):
            block = line
        if keyword.lower() != "include":
            yield line
            continue
        for pattern in shlex.split(value):
            for name in sorted(glob.glob(str(Path("~/.ssh").expanduser() / Path(pattern).expanduser()))):
                yield from _with_includes(Path(name), depth + 1)
        yield block

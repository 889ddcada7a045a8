"""Host keys: is the machine the one it claims to be?

Unknown and changed keys stop us. Only an unknown key can be accepted, and only when the user said so.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hmac
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import paramiko

from eaglediag.errors import HostError
from eaglediag.hosts.ssh.config import Settings


@dataclass(frozen=True)
class Entry:
    """One line of a known_hosts file."""

    path: Path
    line: int
    marker: str
    hosts: str
    key_type: str
    blob: bytes

    def matches(self, name: str) -> bool:
        """Whether the line is about `name`, which is "host" or "[host]:port"."""
        if self.hosts.startswith("|1|"):
            return self._hash_matches(name)
        patterns = self.hosts.lower().split(",")
        return any(_glob(name, pattern) for pattern in patterns if not pattern.startswith("!")) and not any(
            _glob(name, pattern[1:]) for pattern in patterns if pattern.startswith("!")
        )

    def _hash_matches(self, name: str) -> bool:
        try:
            salt, hashed = (base64.b64decode(part) for part in self.hosts.split("|")[2:])
        except ValueError:  # binascii.Error, or another number of parts
            return False
        return hmac.compare_digest(hmac.digest(salt, name.encode(), "sha1"), hashed)


def _glob(name: str, pattern: str) -> bool:
    # "[" is literal in known_hosts: it opens "[host]:port".
    return re.fullmatch(fnmatch.translate(pattern.replace("[", "[[]")), name.lower()) is not None


def read(paths: Iterable[Path]) -> list[Entry]:
    """The entries of the files that exist. Lines that are no entries are passed over, as OpenSSH does.

    Raises HostError for a file that cannot be read.
    """
    entries = []
    for path in paths:
        try:
            lines = path.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise HostError(f"cannot read the known host keys: {error}") from error
        for number, line in enumerate(lines, 1):
            fields = line.split()
            marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
            if len(fields) < 3 or fields[0].startswith("#"):
                continue
            try:
                entries.append(Entry(path, number, marker, fields[0], fields[1], base64.b64decode(fields[2])))
            except binascii.Error:
                continue
    return entries


def fingerprint(blob: bytes) -> str:
    """A key's fingerprint as OpenSSH prints it."""
    return "SHA256:" + base64.b64encode(sha256(blob).digest()).decode().rstrip("=")


def known_types(settings: Settings) -> list[str]:
    """The key types on file for the machine, to be asked for first: another type would look like a changed key."""
    return list(dict.fromkeys(entry.key_type for entry in _known(settings) if not entry.marker))


def admit(key: paramiko.PKey, settings: Settings, accept_new: bool) -> None:
    """Return when `key` is the machine's known key, or is unknown and `accept_new`: then it is recorded.

    Raises HostError for every other key.
    """
    blob, kind = key.asbytes(), key.get_name()
    shown = f"{kind} {fingerprint(blob)}"
    entries = _known(settings)
    revoked = next((entry for entry in entries if entry.marker == "@revoked" and entry.blob == blob), None)
    if revoked:
        raise HostError(
            f"{settings.name}: the host key {shown} is marked revoked in {revoked.path} line {revoked.line}",
            "do not connect; ask who runs the machine",
        )
    plain = [entry for entry in entries if not entry.marker]
    if any(entry.blob == blob for entry in plain):
        return
    name = settings.host_key_name
    # OpenSSH lets a key on file without the port vouch for the machine, but does not hold it against it.
    contrary = [entry for entry in plain if entry.matches(name)]
    if contrary:
        old = next((entry for entry in contrary if entry.key_type == kind), contrary[0])
        raise HostError(
            f"{settings.name}: the host key has changed: the machine shows {shown}, "
            f"{old.path} line {old.line} has {old.key_type} {fingerprint(old.blob)}",
            "someone may be listening in; if the change is known to be right, "
            f"remove the old key: ssh-keygen -f {old.path} -R '{name}'",
        )
    if accept_new:
        _record(key, name, settings)
        return
    login = f"ssh{f' -p {settings.port}' if settings.port != 22 else ''} {settings.user}@{settings.name}"
    authority = any(entry.marker == "@cert-authority" for entry in entries)
    raise HostError(
        f"{settings.name}: unknown host key {shown}"
        + (" (a @cert-authority line is on file, but host certificates are not supported)" if authority else ""),
        "compare the fingerprint with the machine's own, then repeat with --accept-new-host-key, "
        f"or log in once: {login}",
    )


def _known(settings: Settings) -> list[Entry]:
    names = {settings.host_key_name}
    if not settings.host_key_alias:
        names.add(settings.hostname.lower())
    entries = read([*settings.known_hosts, *settings.global_known_hosts])
    return [entry for entry in entries if any(entry.matches(name) for name in names)]


def _record(key: paramiko.PKey, name: str, settings: Settings) -> None:
    if not settings.known_hosts:
        raise HostError(f"{settings.name}: UserKnownHostsFile is none, so the new host key cannot be recorded")
    path = settings.known_hosts[0]
    hosts = paramiko.HostKeys.hash_host(name) if settings.hash_known_hosts else name
    line = f"{hosts} {key.get_name()} {key.get_base64()}\n"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b") as file:
            whole = not _ends_mid_line(file.fileno())
            file.write((line if whole else "\n" + line).encode())
    except OSError as error:
        raise HostError(f"{settings.name}: cannot record the new host key: {error}") from error


def _ends_mid_line(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"


def preferred(supported: Sequence[str], known: Sequence[str]) -> list[str]:
    """`supported` host key algorithms, those that prove a key of a `known` type first."""

    def proves(algorithm: str) -> bool:
        return algorithm in known or (algorithm.startswith("rsa-sha2-") and "ssh-rsa" in known)

    return sorted(supported, key=lambda algorithm: not proves(algorithm))

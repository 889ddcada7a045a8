"""The one folder on the host: made by plain mkdir, 0700, holding the payload and a manifest; always removed."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import eaglediag
from eaglediag.errors import HostError, InstrumentationError
from eaglediag.hosts.base import Host, Process

#: Where folders go on the host unless told otherwise, and what `eaglediag clean` looks for.
PARENT = "/tmp"
PREFIX = "eaglediag-"

_ENTRY_POINTS = "[sglang.srt.plugins]\neaglediag = eaglediag_payload.entry:plugin\n"
_SITECUSTOMIZE = "import eaglediag_payload.entry\neaglediag_payload.entry.sitecustomize(__file__)\n"

#: How the unpacking ends when the folder is what is wrong (EX_CANTCREAT of sysexits.h).
_NO_ROOM = 73
# Plain mkdir first: it fails when somebody else made that name, a link included. What cannot be finished is removed.
_UNPACK = f"""
import base64, json, os, shutil, sys
folder = sys.argv[1]
def refuse(error):
    sys.stderr.write(str(error))
    sys.exit({_NO_ROOM})
os.umask(0o077)
try:
    os.mkdir(folder, 0o700)
except OSError as error:
    refuse(error)
try:
    os.mkdir(os.path.join(folder, "agents"))
    for name, data in json.load(sys.stdin).items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path + ".part", "wb") as stream:
            stream.write(base64.b64decode(data))
        os.replace(path + ".part", path)
except OSError as error:
    shutil.rmtree(folder, ignore_errors=True)
    refuse(error)
"""


def payload_files(only: Sequence[str] = ()) -> dict[str, bytes]:
    """The files that go to the host, by path in the folder; with `only`, these payload modules and nothing else."""
    files = {
        f"lib/eaglediag_payload/{item.name}": item.read_bytes()
        for item in resources.files("eaglediag.probes.payload").iterdir()
        if item.name.endswith(".py") and (not only or item.name in only)
    }
    if only:
        return files
    information = f"lib/eaglediag_payload-{eaglediag.__version__}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: eaglediag-payload\nVersion: {eaglediag.__version__}\n"
    files[f"{information}/METADATA"] = metadata.encode()
    files[f"{information}/entry_points.txt"] = _ENTRY_POINTS.encode()
    files["site/sitecustomize.py"] = _SITECUSTOMIZE.encode()
    return dict(sorted(files.items()))


class RemoteFolder:
    """The folder on one host. Use as a context manager: it is removed at the end, whatever happened."""

    def __init__(self, host: Host, parent: str = PARENT) -> None:
        self.host = host
        self.parent = parent
        self.path = f"{parent.rstrip('/')}/{PREFIX}{secrets.token_hex(6)}"
        self.gone = False

    def __enter__(self) -> RemoteFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def ship(self, python: str, only: Sequence[str] = ()) -> None:
        """Make the folder and write the payload, or `only` some modules of it, into it, in one command.

        Raises HostError with the host's own words where the folder cannot be made or filled, InstrumentationError where
        `python` is no Python that can do it.
        """
        files = payload_files(only)
        manifest = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items())
        files["MANIFEST.sha256"] = manifest.encode()
        encoded = {name: base64.b64encode(data).decode() for name, data in files.items()}
        done = self.host.run([python, "-c", _UNPACK, self.path], stdin=json.dumps(encoded).encode())
        if done.returncode:
            words = (done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]
            if done.returncode != _NO_ROOM:
                raise InstrumentationError(
                    f"{self.host.label}: {python} does not run as a Python: {words[:300]}",
                    "name the server's Python with --python",
                )
            raise HostError(
                f"{self.host.label}: cannot write into {self.path}: {words}",
                f"make {self.parent} writable and free some space, or name another folder with --remote-parent",
            )

    def guard(self) -> Process:
        """A shell on the host that removes the folder as soon as its input ends, also when the connection is lost."""
        return self.host.popen(["sh", "-c", "trap '' HUP; cat >/dev/null; rm -rf -- \"$1\"", "sh", self.path])

    def remove(self) -> None:
        """Remove the folder; on a host that is gone its supervisor or guard does it."""
        if self.gone:
            return
        try:
            self.host.run(["rm", "-rf", "--", self.path])
            self.gone = True
        except HostError:
            return


@dataclass(frozen=True)
class Leftover:
    """A folder of an earlier probe; `pid` is its supervisor's when that still runs."""

    path: str
    pid: int | None


def leftovers(host: Host, parent: str = PARENT) -> list[Leftover]:
    """The user's folders on the host. Raises HostError."""
    # `-O` is not in POSIX; bash, dash and busybox have it.
    script = (
        f'for d in {shlex.quote(parent)}/{PREFIX}*; do [ -d "$d" ] && [ ! -L "$d" ] && [ -O "$d" ] || continue; '
        'p=$(cat "$d/supervisor.pid" 2>/dev/null); kill -0 "$p" 2>/dev/null || p=; echo "$d $p"; done'
    )
    done = host.run(["sh", "-c", script])
    found = []
    for line in done.stdout.decode(errors="replace").splitlines():
        path, _, pid = line.partition(" ")
        found.append(Leftover(path, int(pid) if pid.strip().isdigit() else None))
    return found


def remove_leftover(host: Host, folder: Leftover) -> None:
    """Remove one. Raises HostError when it will not go."""
    done = host.run(["rm", "-rf", "--", folder.path])
    if done.returncode:
        raise HostError(f"{host.label}: cannot remove {folder.path}: {done.stderr.decode(errors='replace').strip()}")

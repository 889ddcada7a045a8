"""The gates of an SGLang installation: of a host's Python, or of source on this machine. Nothing is started."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from pathlib import Path

from eaglediag.analysis.gates import Installation
from eaglediag.errors import HostError, InstrumentationError, UsageError
from eaglediag.hosts.base import Host
from eaglediag.hosts.local import LocalHost
from eaglediag.probes.folder import PARENT, RemoteFolder

#: Parsing the source of the largest release takes seconds on a slow machine.
TIMEOUT_S = 120.0


def on_host(host: Host, python: str | None = None, parent: str = PARENT) -> Installation:
    """What the host's `python` (by default its python3) would import as SGLang.

    The finder is copied to one folder, run there and removed. Raises HostError, and InstrumentationError when there is
    no such Python or no SGLang in it.
    """
    wanted = python or "python3"
    found = host.run(["sh", "-c", f"command -v {shlex.quote(wanted)}"])
    if found.returncode:
        raise InstrumentationError(f"{host.label}: {wanted} is not there", "name the server's Python with --python")
    with RemoteFolder(host, parent) as folder:
        folder.ship(wanted)
        return _list(host, folder, wanted, [], f"{host.label}, {wanted}", "name the Python that has it with --python")


def in_folder(source: Path) -> Installation:
    """What an unpacked wheel, a checkout or a package folder holds. Raises UsageError when it holds no SGLang."""
    if not source.is_dir():
        raise UsageError(f"{source} is no folder", "name an unpacked wheel or a checkout")
    with LocalHost() as host, RemoteFolder(host, tempfile.gettempdir()) as folder:
        folder.ship(sys.executable)
        try:
            return _list(host, folder, sys.executable, [str(source.resolve())], str(source), "")
        except InstrumentationError:
            raise UsageError(
                f"{source} holds no sglang", "name the folder that holds the package `sglang`, or a checkout"
            ) from None


def _list(host: Host, folder: RemoteFolder, python: str, arguments: list[str], where: str, advice: str) -> Installation:
    script = f"{folder.path}/lib/eaglediag_payload/listing.py"
    done = host.run([python, script, *arguments], timeout=TIMEOUT_S)
    said = done.stderr.decode(errors="replace").strip().splitlines()
    if done.returncode:
        words = said[-1][:300] if said else f"{python} ended with status {done.returncode}"
        raise InstrumentationError(f"{host.label}: {words}", advice)
    try:
        return Installation.from_json(json.loads(done.stdout.decode().strip().splitlines()[-1]), where)
    except (ValueError, LookupError, TypeError):
        raise HostError(f"{host.label}: {python} printed no list of gates", "run it again with --debug") from None

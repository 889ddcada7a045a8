"""What the host has, found in seconds and before anything is started; whatever is missing is named."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from typing import Any, Literal

from packaging.version import InvalidVersion, Version

from eaglediag.capture.model import Gpu, HostInfo
from eaglediag.errors import InstrumentationError
from eaglediag.hosts.base import Host
from eaglediag.probes.folder import RemoteFolder
from eaglediag.probes.launch import LaunchCommand

Route = Literal["plugin", "sitecustomize"]
#: What the payload, the records and the server's log may take.
NEEDED_MB = 200
#: The oldest release whose names the payload knows.
OLDEST = Version("0.5.2")
PIP_EXEC = "'''exec' "
_PYTHON = re.compile(r"(.*/)?(python|pypy)[\w.]*")


@dataclass
class Preflight:
    """What was found on one host. `python` is the interpreter that will run the server."""

    python: str
    found: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    @property
    def route(self) -> Route:
        """How the payload gets in: the plugin group where the release has one."""
        return "plugin" if self.found["plugin_route"] else "sitecustomize"

    def host_info(self, name: str) -> HostInfo:
        """The host as the capture describes it."""
        found = self.found
        return HostInfo(
            name=name,
            system=found["system"],
            python=found["python"],
            cpu=found["cpu"],
            cores=found["cores"],
            memory_gb=found["memory_gb"],
            driver=found["driver"],
            gpus=[Gpu(host=name, **gpu) for gpu in found["gpus"]],
        )

    def versions(self) -> dict[str, str]:
        """Versions of what matters, where they were found."""
        names = ("python", "torch", "cuda", "nccl", "driver")
        return {name: str(self.found[name]) for name in names if self.found.get(name)}


def preflight(host: Host, folder: RemoteFolder, launch: LaunchCommand, python: str) -> Preflight:
    """Look at the host with its interpreter `python`. The payload must have been shipped.

    Raises InstrumentationError for what makes a probe impossible: no such Python, no SGLang in it, a release without
    anything to hook, the port taken, no room on the disk.
    """
    environment = {
        name: value for name, value in launch.environment.items() if name in ("PYTHONPATH", "SGLANG_PLUGINS")
    }
    script = f"{folder.path}/lib/eaglediag_payload/preflight.py"
    done = host.run([python, script, str(launch.port), json.dumps(environment)], timeout=60.0)
    try:
        found: dict[str, Any] = json.loads(done.stdout.decode().strip().splitlines()[-1])
    except (ValueError, IndexError):
        words = (done.stderr.decode(errors="replace").strip().splitlines() or ["it printed nothing"])[-1]
        raise InstrumentationError(
            f"{host.label}: {python} cannot run the preflight: {words[:300]}",
            "name the server's Python with --python",
        ) from None
    _require(host, folder, launch, python, found)
    result = Preflight(python, found)
    result.notes = _notes(found)
    return result


def find_python(host: Host, launch: LaunchCommand, python: str | None) -> str:
    """The absolute path of the server's Python: as given, as launched, or from the launched script's first line.

    Raises InstrumentationError when it is not there, or when what is launched is another program: that is not run to
    see what it makes of our arguments.
    """
    wanted = python or launch.python
    script = (
        f"p=$(command -v {shlex.quote(wanted)}) || exit 3; "
        'l=$(head -c 4096 "$p" 2>/dev/null | head -n 2 | tr -d "\\000"); '
        'echo "$p"; case "$l" in "#!"*) echo "$l";; esac'
    )
    path = launch.environment.get("PATH")
    prefix = [f"PATH={path}"] if path else []
    done = host.run(["env", *prefix, "sh", "-c", script])
    lines = done.stdout.decode(errors="replace").strip().splitlines()
    if done.returncode or not lines:
        raise InstrumentationError(
            f"{host.label}: {wanted} is not there",
            "give the full path of the server's Python in --launch or with --python",
        )
    place, *script_lines = lines
    # Where a path is too long for a script's first line, pip lets a shell start the Python of the second.
    starting = [line.removeprefix("#!") for line in script_lines if line.startswith(("#!", PIP_EXEC))]
    named = " ".join(starting).split() or [place]
    found = next(filter(_PYTHON.fullmatch, named), python and place)
    if not found:
        raise InstrumentationError(
            f"{host.label}: {wanted} is neither Python nor a script of one",
            "give --launch the command that starts the server, or name the server's Python with --python",
        )
    return found


def _require(host: Host, folder: RemoteFolder, launch: LaunchCommand, python: str, found: dict[str, Any]) -> None:
    if found["package"] is None:
        raise InstrumentationError(
            f"{host.label}: {python} (Python {found['python']}) has no SGLang",
            "name the Python that has it with --python",
        )
    if not found["points"]:
        raise InstrumentationError(
            f"{host.label}: SGLang {found['release']} in {found['package']} has nothing that eaglediag can hook",
            f"probe a release from {OLDEST} on",
        )
    if not found["port_free"]:
        raise InstrumentationError(
            f"{host.label}: port {launch.port} is taken",
            "stop what listens there, or give the launch command another --port",
        )
    if found["disk_free_mb"] < NEEDED_MB:
        raise InstrumentationError(
            f"{host.label}: {found['disk_free_mb']} MB free in {folder.parent}, {NEEDED_MB} MB are needed",
            "free some space",
        )


def _notes(found: dict[str, Any]) -> list[str]:
    notes = [f"probe point absent: {what} ({why})" for what, why in found["missing"]]
    try:
        if found["release"] and Version(found["release"]) < OLDEST:
            notes.append(
                f"SGLang {found['release']} is older than {OLDEST}, the oldest release that eaglediag was tried on"
            )
    except InvalidVersion:
        notes.append(f"SGLang's version {found['release']} is not a release number; what it resolves is listed")
    if not found["gpus"]:
        notes.append("no NVIDIA GPU found on the host: times are host times, clocks are unknown")
    return notes

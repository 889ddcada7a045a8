"""The Pythons of this machine that the payload must run under."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

VERSIONS = ("3.10", "3.11", "3.12", "3.13")


@cache
def interpreters() -> tuple[str, ...]:
    """One working interpreter of each supported version that is found on PATH or in pyenv; always this one."""
    found = {f"{sys.version_info[0]}.{sys.version_info[1]}": sys.executable}
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for version in VERSIONS:
        candidates = [shutil.which(f"python{version}"), *sorted(root.glob(f"versions/{version}.*/bin/python"))]
        for candidate in map(str, filter(None, candidates)):
            if version not in found and _works(candidate):
                found[version] = candidate
    return tuple(found[version] for version in sorted(found))


def _works(python: str) -> bool:
    """A pyenv shim exists without being a Python."""
    return subprocess.run([python, "-c", "pass"], capture_output=True).returncode == 0

"""The source of a published SGLang release: its wheel, fetched with pip, of which only the needed part is kept."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from packaging.version import InvalidVersion, Version

from eaglediag.errors import UsageError
from eaglediag.probes.progress import Progress, silent

#: What is kept of a wheel: the server's Python source, and its version.
_NEEDED = re.compile(r"sglang/(srt/.*|_?version)\.py|sglang-[^/]*\.dist-info/METADATA")
TIMEOUT_S = 600.0


def cache_folder() -> Path:
    """Where releases are kept: EAGLEDIAG_CACHE, or `eaglediag` in the user's cache folder."""
    told = os.environ.get("EAGLEDIAG_CACHE")
    if told:
        return Path(told) / "releases"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "eaglediag" / "releases"


def release_source(release: str, progress: Progress = silent) -> Path:
    """The folder that holds a release's package `sglang`, fetched when it is not in the cache.

    Nothing of the release is installed or run. Raises UsageError when it cannot be had.
    """
    try:
        wanted = str(Version(release))
    except InvalidVersion:
        raise UsageError(f"{release} is no release", "name one like 0.5.9") from None
    folder = cache_folder() / wanted
    if (folder / "sglang" / "srt").is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            progress("fetching", f"SGLang {wanted}")
            wheel = _download(wanted, Path(temporary))
            unpacked = Path(temporary) / "unpacked"
            _unpack(wheel, unpacked, progress)
            if not folder.exists():  # another process may have been quicker
                os.replace(unpacked, folder)
    except OSError as error:
        raise UsageError(
            f"cannot keep SGLang {wanted} in {folder}: {error}", "name another folder in EAGLEDIAG_CACHE"
        ) from error
    return folder


def _download(release: str, folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode:
        found = shutil.which("pip")
        if found is None:
            raise UsageError("this Python has no pip to fetch a release with", "install pip, or name a --source")
        pip = [found]
    # The wheel is read, not installed: which Python it is for does not matter.
    command = [*pip, "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--ignore-requires-python", f"sglang=={release}", "--dest", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise UsageError(f"fetching SGLang {release} took longer than {TIMEOUT_S:.0f} s", "name a --source") from None
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise UsageError(
            f"pip cannot fetch SGLang {release}: {said[-1][:300] if said else 'it said nothing'}",
            "check the release and the network, or name an unpacked wheel with --source",
        )
    return wheels[0]


def _unpack(wheel: Path, folder: Path, progress: Progress) -> None:
    with zipfile.ZipFile(wheel) as archive:
        needed = [item for item in archive.infolist() if _NEEDED.fullmatch(item.filename)]
        for number, item in enumerate(needed):
            progress("unpacking", f"{len(needed)} files", number / len(needed))
            archive.extract(item, folder)

"""Published wheels, SGLang's releases above all, unpacked once into a cache."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

RELEASES = (
    "0.4.6.post5",
    "0.5.2",
    "0.5.4.post3",
    "0.5.5.post3",
    "0.5.6.post2",
    "0.5.8.post1",
    "0.5.9",
    "0.5.10.post1",
    "0.5.12",
    "0.5.14",
    "0.5.16",
    "0.5.18",
    "0.5.20",
    "0.5.23",
)


def release_source(release: str) -> Path:
    """The folder that holds a release's package `sglang`; fetched with pip when EAGLEDIAG_WHEELS does not have it."""
    return unpacked("sglang", release, release)


def unpacked(package: str, version: str, name: str) -> Path:
    """The folder `name` in the cache, which holds what is in the wheel of a package for this interpreter."""
    cache = Path(os.environ.get("EAGLEDIAG_WHEELS", Path.home() / ".cache" / "eaglediag" / "wheels"))
    folder = cache / name
    if (folder / package).is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    # Beside its place, then renamed: another run may fetch the same one, and one that is interrupted leaves no half.
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", f"{package}=={version}", "-d", temporary]
        done = subprocess.run(fetch, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{package} {version} cannot be fetched: {done.stderr.strip()[-300:]}")
        (wheel,) = Path(temporary).glob("*.whl")
        made = Path(temporary) / name
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(made)
        try:
            made.rename(folder)
        except OSError:
            if not (folder / package).is_dir():
                raise
    return folder

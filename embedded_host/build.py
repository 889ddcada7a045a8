#!/usr/bin/env python3
"""Builds the embedded host: SGLang's CPU engine in a virtual environment of its own, and the tiny models it serves.

Everything lands in a cache folder, `$EAGLEDIAG_CACHE` or `${XDG_CACHE_HOME:-~/.cache}/eaglediag`, under names that
change with what they are made from; a second run finds it all and returns at once. Needs Linux and Python 3.11 or 3.12
with the `venv` module (this script itself runs on 3.10 and later). pip's own configuration is honoured, and
`EAGLEDIAG_TORCH_INDEX` may name a package index with CPU builds of PyTorch.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REQUIREMENTS, NODEPS = HERE / "requirements.txt", HERE / "requirements-nodeps.txt"
RELEASE = "0.5.20"
#: Releases whose own source can be put before the engine's, in the same environment.
OTHER_RELEASES = ("0.5.6.post2", "0.5.9", "0.5.12", "0.5.14", "0.5.16", "0.5.18", "0.5.23")
PYTHONS = ("3.11", "3.12")
COMPLETE = ".complete"


class BuildError(Exception):
    """One line: what is missing or failed, and what to do."""


@dataclass(frozen=True)
class Installation:
    """What was built. `sources` is the folder to put first on PYTHONPATH, None for the release that is installed."""

    release: str
    python: Path
    models: Path
    sources: Path | None


def ensure(release: str = RELEASE) -> Installation:
    """Build what is missing; several processes may ask at once. Raises BuildError."""
    if release != RELEASE and release not in OTHER_RELEASES:
        raise BuildError(f"no SGLang release {release} here; choose {RELEASE} or one of {', '.join(OTHER_RELEASES)}")
    cache = cache_folder()
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BuildError(f"cannot make the cache folder: {error}; name another with EAGLEDIAG_CACHE") from error
    with _locked(cache / ".lock"):
        python = _engine(cache)
        models = _models(cache, python)
        sources = None if release == RELEASE else _sources(cache, python, release)
    return Installation(release, python, models, sources)


def cache_folder() -> Path:
    chosen = os.environ.get("EAGLEDIAG_CACHE")
    if chosen:
        return Path(chosen).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache").resolve() / "eaglediag"


def find_interpreter() -> tuple[Path, str]:
    """An interpreter that can make the environment, and its version such as 3.11. Raises BuildError."""
    candidates = [Path(found) for version in PYTHONS if (found := shutil.which(f"python{version}"))]
    if f"{sys.version_info.major}.{sys.version_info.minor}" in PYTHONS:
        candidates.append(Path(sys.executable))
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in PYTHONS:
        candidates += sorted(pyenv.glob(f"{version}.*/bin/python{version}"))
        candidates += [Path(folder) / f"python{version}" for folder in ("/usr/bin", "/usr/local/bin")]
    for candidate in candidates:
        # A pyenv shim exists even for versions it refuses to run, and distributions leave ensurepip out: ask.
        question = "import ensurepip, venv, sys; print('%d.%d' % sys.version_info[:2])"
        try:
            answer = subprocess.run([candidate, "-c", question], capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if answer.returncode == 0 and answer.stdout.strip() in PYTHONS:
            return candidate, answer.stdout.strip()
    raise BuildError(
        f"found no Python {' or '.join(PYTHONS)} with its venv module, which the engine needs; "
        "install one (for example the packages python3.11 and python3.11-venv) so that python3.11 is on PATH"
    )


def _engine(cache: Path) -> Path:
    """The Python of the engine's environment, built in place, as environments cannot be moved, and marked when done."""
    pins = REQUIREMENTS.read_bytes() + NODEPS.read_bytes()
    for version in PYTHONS:
        folder = cache / f"engine-{_key(pins, version.encode())}"
        python = folder / "bin" / "python"
        if (folder / COMPLETE).exists() and python.exists():
            return python
    interpreter, version = find_interpreter()
    folder = cache / f"engine-{_key(pins, version.encode())}"
    python = folder / "bin" / "python"
    shutil.rmtree(folder, ignore_errors=True)
    started = time.monotonic()
    _say(f"building the engine's environment with {interpreter} in {folder} (1.5 GB)")
    _command([interpreter, "-m", "venv", folder])
    pip: list[str | Path] = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    index = os.environ.get("EAGLEDIAG_TORCH_INDEX")
    _say("installing PyTorch and SGLang's other dependencies; a few minutes where they must be downloaded")
    _command([*pip, "-r", REQUIREMENTS, *(["--extra-index-url", index] if index else [])])
    _say(f"installing SGLang {RELEASE}")
    _command([*pip, "--no-deps", "-r", NODEPS])
    (folder / COMPLETE).touch()
    _say(f"the engine's environment is ready after {time.monotonic() - started:.0f} s")
    return python


def _models(cache: Path, python: Path) -> Path:
    """The folder with the tiny models, keyed by the script that makes them."""
    script = HERE / "models.py"
    folder = cache / f"models-{_key(script.read_bytes())}"
    if not folder.exists():
        _say(f"writing the tiny models to {folder}")
        with _into(folder) as temporary:
            _command([python, script, temporary])
    return folder


def _sources(cache: Path, python: Path, release: str) -> Path:
    """The unpacked wheel of another release, downloaded once by the engine's pip."""
    folder = cache / f"sglang-{release}"
    if not folder.exists():
        wheels = cache / "wheels"
        if not list(wheels.glob(f"sglang-{release}-*.whl")):
            _say(f"downloading SGLang {release}")
            with tempfile.TemporaryDirectory(dir=cache) as temporary:
                _command([python, "-m", "pip", "download", "--no-deps", "-d", temporary, f"sglang=={release}"])
                wheels.mkdir(exist_ok=True)
                for file in Path(temporary).iterdir():
                    file.rename(wheels / file.name)
        (wheel,) = wheels.glob(f"sglang-{release}-*.whl")
        with _into(folder) as temporary, zipfile.ZipFile(wheel) as archive:
            archive.extractall(temporary)
    return folder


def _key(*contents: bytes) -> str:
    return hashlib.sha256(b"\0".join(contents)).hexdigest()[:12]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the cache's lock; it is released with the file, also when the process is killed."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("waiting for another build to end")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _into(folder: Path) -> Iterator[Path]:
    """A temporary folder that gets the name `folder` when the block succeeds, and is removed when it fails."""
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}."))
    try:
        yield temporary
        temporary.chmod(0o755)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _command(argv: list[str | Path]) -> None:
    """Run to the end, quietly. PYTHONPATH is left out: what stands there is not the engine's."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    if done.returncode:
        _say("\n".join(done.stdout.splitlines()[-30:]))
        raise BuildError(
            f"`{' '.join(map(str, argv))}` failed with exit status {done.returncode}; its last lines are above"
        )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the embedded host; does nothing when it is built.")
    parser.add_argument("--release", default=RELEASE, choices=(RELEASE, *OTHER_RELEASES), help="SGLang release")
    parser.add_argument("--json", action="store_true", help="print the paths as a JSON object")
    arguments = parser.parse_args()
    try:
        installation = ensure(arguments.release)
    except BuildError as error:
        print(f"embedded host: {error}", file=sys.stderr)
        return 1
    paths = {name: value if value is None else str(value) for name, value in asdict(installation).items()}
    if arguments.json:
        print(json.dumps(paths))
    else:
        print("\n".join(f"{name}: {value}" for name, value in paths.items() if value))
    return 0


if __name__ == "__main__":
    sys.exit(main())

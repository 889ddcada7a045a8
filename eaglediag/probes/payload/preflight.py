"""Run on the host before anything is started: what is there, which release, what can be hooked. Imports no SGLang.

usage: python preflight.py PORT 'ENVIRONMENT AS JSON'; prints one JSON object. Values that cannot be found are null.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
from typing import Any

GPU_FIELDS = ("index", "name", "uuid", "memory.total", "driver_version")


def main() -> None:
    """Print what was found."""
    port, environment = int(sys.argv[1]), json.loads(sys.argv[2])
    os.environ.update(environment)
    sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    driver, gpus = _gpus()
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "executable": sys.executable,
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.node(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gb": _memory_gb(),
        "epoch": time.time(),
        "release": _version("sglang"),
        "torch": _version("torch"),
        "nccl": next((v for v in map(_version, ("nvidia-nccl-cu13", "nvidia-nccl-cu12")) if v), None),
        "cuda": _cuda(),
        "driver": driver,
        "gpus": gpus,
        "port_free": _port_free(port),
        "disk_free_mb": round(shutil.disk_usage(os.path.dirname(os.path.abspath(__file__))).free / 1e6),
        "plugins": os.environ.get("SGLANG_PLUGINS"),
        "package": None,
        "commit": None,
        "layout": None,
        "points": [],
        "missing": [],
        "plugin_route": False,
    }
    try:
        spec = importlib.util.find_spec("sglang")
    except (ImportError, ValueError):
        spec = None
    if spec is not None and spec.submodule_search_locations:
        from eaglediag_payload import probe_points  # type: ignore[import-not-found]

        package = next(iter(spec.submodule_search_locations))
        points, missing = probe_points.resolve(package)
        found.update(
            package=package,
            release=found["release"] or _release_of(package),
            commit=commit_of(package),
            layout=probe_points.layout_of(package),
            points=[point.target for point in points],
            missing=missing,
            plugin_route=os.path.isdir(os.path.join(package, "srt", "plugins")),
        )
    print(json.dumps(found))


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _release_of(package: str) -> str | None:
    path = os.path.join(package, "version.py")
    if os.path.isfile(path):
        with open(path, encoding="utf-8") as stream:
            match = re.search(r"__version__\s*=\s*[\"']([^\"']+)", stream.read())
            return match.group(1) if match else None
    return None


def commit_of(package: str) -> str | None:
    """The commit of a checkout; None for an installed wheel, also in a virtual environment inside some checkout."""
    folder = os.path.realpath(package)
    module = os.path.join(folder, "__init__.py")
    while folder != os.path.dirname(folder):
        if os.path.exists(os.path.join(folder, ".git")):
            if _run(["git", "-C", folder, "ls-files", "--error-unmatch", "--", module]) is None:
                return None
            done = _run(["git", "-C", folder, "describe", "--always", "--dirty", "--abbrev=12"])
            return done.strip() if done else None
        folder = os.path.dirname(folder)
    return None


def _cuda() -> str | None:
    """The CUDA version torch was built for, without importing torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = os.path.join(next(iter(spec.submodule_search_locations)), "version.py")
    if not os.path.isfile(path):
        return None
    with open(path, encoding="utf-8") as stream:
        match = re.search(r"^cuda\b[^=]*=\s*[\"']([\d.]+)", stream.read(), re.MULTILINE)
    return match.group(1) if match else None


def _gpus() -> tuple[str | None, list[dict[str, Any]]]:
    done = _run(["nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits"])
    gpus, driver = [], None
    for line in (done or "").splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) == len(GPU_FIELDS) and values[0].isdigit():
            memory = float(values[3]) if values[3].replace(".", "").isdigit() else None
            gpus.append({"index": int(values[0]), "name": values[1], "uuid": values[2], "memory_mb": memory})
            driver = values[4]
    return driver, gpus


def _port_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as stream:
            match = re.search(r"model name\s*:\s*(.+)", stream.read())
            return match.group(1).strip() if match else platform.machine()
    except OSError:
        return platform.machine()


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (ValueError, OSError):
        return None


def _run(argv: list[str]) -> str | None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=15, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    main()

"""How the payload gets into a process: SGLang's plugin group (0.5.12 and later), or Python's sitecustomize before that.

Either way this does next to nothing until a scheduler is constructed, and whatever goes wrong is written to a marker
file, not raised: the server must start as if we were not there.
"""

from __future__ import annotations

import os
import sys

#: The folder that this payload was copied to, and in which markers, sockets and records go.
FOLDER = "EAGLEDIAG_FOLDER"


def plugin() -> None:
    """Entry point of the group `sglang.srt.plugins`; SGLang swallows what it raises."""
    _install("plugin")


def sitecustomize(file: str) -> None:
    """Called by our sitecustomize.py at `file`: install, then run the sitecustomize that ours stands in front of."""
    _install("sitecustomize")
    _chain(os.path.dirname(os.path.abspath(file)))


def _install(route: str) -> None:
    folder = os.environ.get(FOLDER)
    if not folder or not os.path.isdir(folder):
        return
    try:
        from .agent import install

        install(folder, route)
    except Exception as error:
        with open(os.path.join(folder, "agents", f"{os.getpid()}.failed"), "w", encoding="utf-8") as stream:
            stream.write(f"{route}: {type(error).__name__}: {error}\n")


def _chain(ours: str) -> None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    others = [path for path in sys.path if os.path.abspath(path or ".") != ours]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)

"""Functions from source text, loaded from a real file, as the tracer needs them, with and without tracing."""

from __future__ import annotations

import itertools
import textwrap
from pathlib import Path
from types import FunctionType
from typing import Any

from eaglediag.probes.payload.tracer import Tracer

_numbers = itertools.count()


def load(folder: Path, source: str, **globals_: Any) -> dict[str, Any]:
    """Run `source` as a module of its own in `folder` and return its globals."""
    file = folder / f"sample_{next(_numbers)}.py"
    file.write_text(textwrap.dedent(source))
    namespace: dict[str, Any] = {"__name__": file.stem, **globals_}
    exec(compile(file.read_text(), str(file), "exec"), namespace)
    return namespace


def trace(function: FunctionType, kind: str = "gate", tracer: Tracer | None = None, **options: Any) -> Tracer:
    """Put the traced code in place of the function's own."""
    tracer = tracer or Tracer(lambda: ("verify", 1))
    function.__code__ = tracer.rewrite(function, function.__qualname__, kind=kind, **options)
    return tracer


def steps(tracer: Tracer) -> list[tuple[str, str]]:
    """(text, shown) of the frames of the only denial."""
    (denial,) = tracer.denials()
    assert denial["explained"], denial["reason"]
    return [(frame["text"], frame["shown"]) for frame in denial["frames"]]


def leaf(tracer: Tracer) -> dict[str, Any]:
    """The last frame of the only denial."""
    (denial,) = tracer.denials()
    assert denial["explained"], denial["reason"]
    last: dict[str, Any] = denial["frames"][-1]
    return last

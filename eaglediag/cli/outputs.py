"""Where a command writes: standard output, or a file that is neither one of its inputs nor written twice."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from eaglediag.errors import UsageError
from eaglediag.whole_file import whole_file

STDOUT = Path("/dev/stdout")


def outputs(asked: Mapping[str, Path | str | None], inputs: Iterable[Path]) -> dict[str, Path]:
    """The places by option, `-` being standard output; options that were not given are left out.

    Raises UsageError when one would be written over an input, or over another.
    """
    taken = {os.path.realpath(path): f"{path} is an input" for path in inputs}
    found = {}
    for option, given in asked.items():
        if given is None:
            continue
        where = STDOUT if str(given) == "-" else Path(given)
        place = os.path.realpath(where)
        if place in taken and place != os.devnull:
            raise UsageError(f"{option} {given} would overwrite it: {taken[place]}", f"give {option} another file")
        taken[place] = f"{given} is written by {option}"
        found[option] = where
    return found


def write_text(where: str, render: Callable[[TextIO], object], option: str) -> None:
    """Let `render` write to a file, or for `-` to standard output. Raises UsageError, naming the `option`."""
    if where == "-":
        render(sys.stdout)
        return
    try:
        with whole_file(Path(where)) as stream:
            text = TextIOWrapper(stream, encoding="utf-8")
            render(text)
            text.detach()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UsageError(f"cannot write {where}: {error.strerror}", f"choose another {option}") from error

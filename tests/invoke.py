"""The command line in this process: its exit code and what it printed."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from dataclasses import dataclass
from unittest import mock

from eaglediag.cli import main


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


def eaglediag(*arguments: object, width: int = 120, **environment: str) -> Ran:
    """Run `eaglediag` as a shell would; output is as to a pipe, `width` columns wide."""
    out, err = io.StringIO(), io.StringIO()
    # Reports look at COLUMNS alone, so that a developer's terminal does not change what the tests see.
    environment = {"COLUMNS": str(width), "NO_COLOR": "1", **environment}
    with (
        mock.patch.object(sys, "argv", ["eaglediag", *map(str, arguments)]),
        mock.patch.dict(os.environ, environment),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        else:
            code = 0
    return Ran(code, out.getvalue(), err.getvalue())

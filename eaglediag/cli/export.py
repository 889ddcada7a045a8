"""`eaglediag export`: the raw steps of a capture for other tools."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eaglediag.errors import UsageError

if TYPE_CHECKING:
    from eaglediag.reports.steps_file import Reading


def export(
    capture: Annotated[Path, typer.Argument(metavar="CAPTURE", help="A capture with its raw steps beside it.")],
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Chrome trace for Perfetto, on the clock of SGLang's own profiler traces; .gz compresses, - prints.",
        ),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="The steps as CSV; .gz compresses, - prints.")
    ] = None,
    parquet: Annotated[
        Path | None,
        # The bracket is escaped: help is Rich's markup.
        typer.Option("--parquet", metavar="FILE", help="The steps as Parquet; needs eaglediag\\[parquet]."),
    ] = None,
) -> None:
    """Write the recorded steps as a trace or a table.

    The steps are kept by `eaglediag probe --steps`. Example: eaglediag export eagle.json --trace eagle.trace.json.gz
    """
    from eaglediag.capture import store
    from eaglediag.cli.outputs import STDOUT, outputs
    from eaglediag.cli.progress import TerminalProgress
    from eaglediag.reports import chrome_trace, steps_table
    from eaglediag.reports.steps_file import Reading, needed

    if trace is None and csv is None and parquet is None:
        raise UsageError("nothing to export", "name a file with --trace, --csv or --parquet")
    read = store.read(capture)
    steps = needed(read, capture)
    places = outputs({"--trace": trace, "--csv": csv, "--parquet": parquet}, [capture, steps])
    writers: dict[str, Callable[[Path, Path, Reading], None]] = {
        "--trace": partial(chrome_trace.write, read),
        "--csv": steps_table.write_csv,
        "--parquet": steps_table.write_parquet,
    }
    lacking = ""
    with TerminalProgress() as progress:
        for option, out in places.items():
            reading = Reading(read, partial(progress, f"writing {out}", ""))
            try:
                writers[option](steps, out, reading)
            except BrokenPipeError:
                raise
            except OSError as error:
                advice = "choose another file, or free some space"
                raise UsageError(f"cannot write {out}: {error.strerror}", advice) from error
            lacking = reading.lacking
    for out in places.values():
        if out != STDOUT:
            typer.echo(f"wrote {out}", err=True)
    if lacking:
        typer.echo(f"{steps}: {lacking}", err=True)

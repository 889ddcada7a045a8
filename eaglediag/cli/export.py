"""`eaglediag export`: the raw steps of a capture for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eaglediag.errors import UsageError


def export(
    capture: Annotated[Path, typer.Argument(metavar="CAPTURE", help="A capture with its raw steps beside it.")],
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Chrome trace for Perfetto, on the clock of SGLang's own profiler traces; .gz compresses.",
        ),
    ] = None,
    csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="The steps as CSV; .gz compresses.")] = None,
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
    from eaglediag.cli.progress import TerminalProgress
    from eaglediag.reports import chrome_trace, steps_file, steps_table

    if trace is None and csv is None and parquet is None:
        raise UsageError("nothing to export", "name a file with --trace, --csv or --parquet")
    read = store.read(capture)
    steps = steps_file.needed(read, capture)
    out = capture
    try:
        with TerminalProgress() as progress:
            if trace is not None:
                out = trace
                chrome_trace.write(read, steps, trace, lambda share: progress(f"writing {trace}", "", share))
            if csv is not None:
                out = csv
                steps_table.write_csv(steps, csv, lambda share: progress(f"writing {csv}", "", share))
            if parquet is not None:
                out = parquet
                steps_table.write_parquet(steps, parquet, lambda share: progress(f"writing {parquet}", "", share))
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}", "choose another file, or free some space") from error
    for path in (trace, csv, parquet):
        if path is not None:
            typer.echo(f"wrote {path}", err=True)

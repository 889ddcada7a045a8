"""`eaglediag compare`: two captures, the verdict first."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from eaglediag.cli.outputs import outputs, write_text


def compare(
    baseline: Annotated[
        Path, typer.Argument(metavar="BASELINE", help="The capture without speculation (or the older of two alike).")
    ],
    candidate: Annotated[
        Path, typer.Argument(metavar="CANDIDATE", help="The capture with speculation (or the newer of two alike).")
    ],
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show all evidence, what the clients saw, and every denied graph.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
    markdown: Annotated[
        str | None,
        typer.Option("--markdown", metavar="FILE", help="Write the report as markdown too; - for standard output."),
    ] = None,
) -> None:
    """Say which of two captures is faster, by how much, and why.

    Ends with 0 when they could be compared, whatever came out, and with 3 when the data support no verdict.

    Example: eaglediag compare results/baseline.json results/eagle.json
    """
    from eaglediag.analysis.comparison import compare as compared
    from eaglediag.capture import store

    outputs({"--markdown": markdown}, [baseline, candidate])
    result = compared(*store.read_pair(baseline, candidate))
    if as_json:
        from eaglediag.reports import results_json

        results_json.write(results_json.comparison(result), sys.stdout)
    elif markdown != "-":
        from eaglediag.reports import terminal

        terminal.render(result, terminal.console(), verbose=verbose)
    if markdown is not None:
        from eaglediag.reports import markdown as markdown_report

        write_text(markdown, partial(markdown_report.render, result), "--markdown")
    if result.outcome in ("inconclusive", "not_comparable"):
        raise typer.Exit(3)

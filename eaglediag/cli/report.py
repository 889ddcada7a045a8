"""`eaglediag report`: one capture or two, as a page, a comment or a bug report, or on the terminal."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from eaglediag.cli.outputs import outputs, write_text
from eaglediag.errors import UsageError

if TYPE_CHECKING:
    from eaglediag.analysis.comparison import Comparison
    from eaglediag.capture.model import Capture


def report(
    captures: Annotated[
        list[Path], typer.Argument(metavar="[BASELINE] CANDIDATE", help="One capture, or the baseline and another.")
    ],
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page that needs nothing but itself.")
    ] = None,
    markdown: Annotated[
        str | None,
        typer.Option("--markdown", metavar="FILE", help="Write a comment for a pull request; - for standard output."),
    ] = None,
    issue: Annotated[
        str | None,
        typer.Option(
            "--issue",
            metavar="FILE",
            help="Write a bug report for the engine's tracker, with names, addresses, paths and keys replaced. It is "
            "shown first; - only shows it.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Write the --issue without asking.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Print again whenever a capture changes, until Ctrl-C.")
    ] = False,
) -> None:
    """Show what captures say: on the terminal, as a page, as markdown, or as a bug report.

    Example: eaglediag report baseline.json eagle.json --html report.html
    """
    from eaglediag.reports import steps_file

    if len(captures) > 2:
        raise UsageError(f"{len(captures)} captures were given", "give one, or a baseline and one other")
    if watch:
        if html is not None or markdown is not None or issue is not None or as_json:
            raise UsageError("--watch prints on the terminal", "leave --html, --markdown, --issue and --json out")
        _watch(captures)
        return
    read, result = _read(captures)
    steps = [found for path, one in zip(captures, read, strict=True) if (found := steps_file.beside(one, path))]
    outputs({"--html": html, "--markdown": markdown, "--issue": issue}, [*captures, *steps])
    if html is not None:
        write_page(captures, read, result, html)
    if markdown is not None:
        write_text(markdown, lambda out: _markdown(read, result, out), "--markdown")
    if issue is not None:
        _issue(read, result, issue, yes)
    if as_json:
        _json(read, result)
    elif html is None and markdown is None and issue is None:
        _terminal(captures, read, result)


def _read(paths: list[Path]) -> tuple[list[Capture], Comparison | None]:
    from eaglediag.analysis.comparison import compare
    from eaglediag.capture import store

    read = list(store.read_pair(*paths)) if len(paths) == 2 else [store.read(path) for path in paths]
    return read, compare(*read) if len(read) == 2 else None


def write_page(paths: list[Path], read: list[Capture], result: Comparison | None, where: Path) -> None:
    """Write the page for captures that were read from `paths`, whose raw steps lie beside them. Raises UsageError."""
    from eaglediag.analysis.measured import measure
    from eaglediag.cli.progress import TerminalProgress
    from eaglediag.reports import html, step_series, steps_file
    from eaglediag.reports.html.figure import Material, Side

    arms = [result.baseline, result.candidate] if result else [measure(read[0])]
    sides, lacking = [], []
    with TerminalProgress() as progress:
        for path, capture, arm in zip(paths, read, arms, strict=True):
            steps = steps_file.beside(capture, path)
            reading = steps_file.Reading(capture, partial(progress, f"reading the steps of {capture.arm}", ""))
            series = step_series.from_steps(steps, reading) if steps else step_series.from_blocks(capture)
            sides.append(Side(capture, arm, series))
            if steps and reading.lacking:
                lacking.append(f"{steps}: {reading.lacking}")
        progress("drawing")
        material = Material(sides[-1], sides[0] if len(sides) == 2 else None, result)
        write_text(str(where), lambda out: html.render(material, out), "--html")
    for line in ([] if str(where) == "-" else [f"wrote {where}"]) + lacking:
        typer.echo(line, err=True)


def _markdown(read: list[Capture], result: Comparison | None, out: TextIO) -> None:
    from eaglediag.reports import comment

    comment.render(read[-1], result, out)


def _issue(read: list[Capture], result: Comparison | None, where: str, yes: bool) -> None:
    from eaglediag.reports import issue

    text = issue.render(read, result)
    typer.echo(text)
    if where == "-":
        return
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("the bug report is shown above and was not written", "read it, then run again with --yes")
        if not typer.confirm(f"Is nothing in it that must not leave? Write {where}?"):
            typer.echo(f"{where} was not written", err=True)
            return
    write_text(where, lambda out: out.write(text), "--issue")


def _json(read: list[Capture], result: Comparison | None) -> None:
    from eaglediag.reports import results_json, summary

    results_json.write(results_json.comparison(result) if result else summary.as_json(read[0]), sys.stdout)


def _terminal(paths: list[Path], read: list[Capture], result: Comparison | None) -> None:
    from eaglediag.reports import summary, terminal

    if result is not None:
        terminal.render(result, terminal.console())
    else:
        summary.render(read[0], paths[0], terminal.console())


def _watch(paths: list[Path]) -> None:
    """Follow the captures: a probe writes its own again after every window."""
    import time

    from eaglediag.errors import CaptureError
    from eaglediag.reports import terminal

    console = terminal.console()
    seen: list[float] = []
    while True:
        now = [path.stat().st_mtime if path.exists() else 0.0 for path in paths]
        if now != seen and all(now):
            seen = now
            try:
                read, result = _read(paths)
            except CaptureError as error:
                console.print(f"waiting: {error}", style="dim")
            else:
                console.clear()
                _terminal(paths, read, result)
        elif now != seen:
            seen = now
            console.print("waiting for " + ", ".join(str(path) for path in paths if not path.exists()), style="dim")
        time.sleep(1.0)

"""The application: its commands in one table, and the options that all of them share."""

from __future__ import annotations

from typing import Annotated

import typer

from eaglediag import __version__
from eaglediag.cli.lazy import Command, lazy_group

COMMANDS = {
    "probe": Command("probe:probe", "Start a server with instruments in it, load it, write the capture."),
    "compare": Command("compare:compare", "Say which of two captures is faster, by how much, and why."),
    "breakeven": Command("breakeven:breakeven", "Give the accept length at which speculation starts to pay."),
    "check": Command("check:check", "Check a capture against a policy, for CI."),
    "report": Command("report:report", "Show captures as a page, a comment, a bug report, or on the terminal."),
    "export": Command("export:export", "Write the recorded steps as a trace for Perfetto, CSV or Parquet."),
    "demo": Command("demo:demo", "Probe both arms of a tiny model on this machine's CPU, and compare them."),
    "clean": Command("clean:clean", "Remove what a killed probe may have left on a host."),
    "import": Command("import_:import_", "Make a capture from logs, benchmark results, metrics or a trace."),
    "gates": Command("gates:gates", "List what decides between graph and eager in an SGLang installation."),
    "lint": Command("lint:lint", "Say what a launch command will silently not do, before it runs."),
}

app = typer.Typer(
    name="eaglediag",
    cls=lazy_group(COMMANDS),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"eaglediag {__version__}")
        raise typer.Exit


EXIT_CODES = (
    "Exit codes: 0 pass; 1 a gate of `check` failed, or `lint` found what cannot work; 2 usage or unreadable input; "
    "3 inconclusive or not comparable; 4 host unreachable or login refused; 5 instrumentation refused or ranks "
    "missing; 99 interrupted."
)


@app.callback(epilog=EXIT_CODES)
def eaglediag(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_version)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    """Say why speculative decoding makes an SGLang server faster or slower, and what would have to change."""

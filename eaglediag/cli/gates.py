"""`eaglediag gates`: what decides between graph and eager in an installation, read from its source."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eaglediag.cli import options

if TYPE_CHECKING:
    from eaglediag.analysis.gates import Installation
    from eaglediag.probes.progress import Progress


def gates(
    host: Annotated[
        str | None,
        typer.Option(
            "--host", metavar="[USER@]HOST[:PORT]", help="The SGLang installed on this host; `local` is this machine."
        ),
    ] = None,
    python: Annotated[
        str | None, typer.Option(help="With --host: the Python that has SGLang.", show_default="python3")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--source", metavar="DIR", help="An unpacked wheel, a checkout, or the package's folder."),
    ] = None,
    release: Annotated[
        str | None, typer.Option("--release", metavar="X.Y.Z", help="A published release; pip fetches its wheel once.")
    ] = None,
    diff: Annotated[
        tuple[str, str] | None,
        typer.Option("--diff", metavar="OLD NEW", help="What changed between two releases or folders."),
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option(
            "--explain",
            metavar="'NAME=VALUE ...'",
            help="What the conditions would say with phase, batch, max_bs, capture_bs=1,2,4, disable_padding=1, ...",
        ),
    ] = None,
    phase: Annotated[
        str | None, typer.Option(help="Only gates asked in this phase: decode, verify, draft, draft_extend, extend.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
    remote_parent: Annotated[
        str, typer.Option(metavar="DIR", help="With --host: where the finder's folder is made, and removed again.")
    ] = "/tmp",
    accept_new_host_key: options.AcceptHostKey = False,
    identity: options.Identity = None,
    ssh_config: options.SshConfig = None,
    container: options.Container = None,
    container_runtime: options.ContainerRuntime = "docker",
) -> None:
    """List every condition that may deny a CUDA graph, with its place and the options it depends on.

    Nothing is started and no GPU is needed. A release: eaglediag gates --release 0.5.9 --phase verify

    What your host has: eaglediag gates --host gpu1 --python /opt/venv/bin/python

    Would it deny? eaglediag gates --release 0.5.9 --explain 'phase=verify batch=12 max_bs=8'

    What changed? eaglediag gates --diff 0.5.9 0.5.23

    Ends with 3 when --explain's values decide nothing.
    """
    from eaglediag.analysis.gates import answers, difference, parse_question
    from eaglediag.cli.progress import TerminalProgress
    from eaglediag.errors import UsageError
    from eaglediag.reports import gates as report
    from eaglediag.reports import results_json, terminal

    sources = {"--host": host, "--source": source, "--release": release, "--diff": diff}
    named = [name for name, value in sources.items() if value is not None]
    if len(named) != 1:
        raise UsageError(
            f"{' and '.join(named) if named else 'no installation'} given",
            "give one of --host, --source DIR, --release 0.5.9 and --diff 0.5.9 0.5.23",
        )
    if python is not None and host is None:
        raise UsageError("--python needs --host", "give --host local for a Python of this machine")
    if diff is not None and explain is not None:
        raise UsageError("--explain works on one installation", "leave --diff out")
    if phase is not None and phase not in report.PHASES:
        raise UsageError(f"{phase} is no phase", f"take one of {', '.join(report.PHASES)}")

    console = terminal.console()
    with TerminalProgress() as progress:
        if diff is not None:
            found = difference(_named(diff[0], progress), _named(diff[1], progress), phase)
        elif host is not None:
            with options.open_hosts(
                [host],
                accept_new_host_key=accept_new_host_key,
                identities=identity or (),
                ssh_config=ssh_config,
                container=container,
                container_runtime=container_runtime,
            ) as hosts:
                from eaglediag.probes.installation import on_host

                progress("reading", host)
                installation = on_host(hosts[0], python, remote_parent)
        else:
            installation = _named(str(source) if source is not None else release or "", progress, source is not None)
    if diff is not None:
        if as_json:
            results_json.write(report.difference_json(found), sys.stdout)
        else:
            report.render_difference(found, console)
    elif explain is not None:
        asked = parse_question(explain if phase is None else f"{explain} phase={phase}", installation)
        told = answers(installation, asked)
        if as_json:
            results_json.write(report.explained_json(installation, asked, told), sys.stdout)
        else:
            report.render_explained(installation, asked, told, console)
        if not any(one.verdict in ("denies", "allows") for one in told):
            raise typer.Exit(3)
    elif as_json:
        results_json.write(report.as_json(installation, phase), sys.stdout)
    else:
        report.render(installation, phase, console)


def _named(what: str, progress: Progress, folder: bool | None = None) -> Installation:
    """The installation that is called so: a folder where there is one (or `folder` says so), else a release."""
    from eaglediag.probes.installation import in_folder
    from eaglediag.probes.release import release_source

    path = Path(what)
    if folder is None:
        folder = path.is_dir() or "/" in what
    where = path if folder else release_source(what, progress)
    progress("reading", str(what))
    return in_folder(where)

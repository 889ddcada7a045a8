"""`eaglediag demo`: the whole job on this machine's CPU, with the real SGLang and a tiny EAGLE-3 pair."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from eaglediag.errors import InstrumentationError, UsageError


def demo(
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for the captures and reports.")] = Path(
        "demo"
    ),
    host: Annotated[
        str,
        typer.Option(
            help="Where to run it: `local`, or an SSH host that has this repository's embedded_host at the same path."
        ),
    ] = "local",
    port: Annotated[int, typer.Option(help="The port of the demo's server.")] = 31100,
    embedded_host: Annotated[
        Path | None, typer.Option(help="The embedded_host folder.", show_default="the one that comes with eaglediag")
    ] = None,
    accept_new_host_key: Annotated[
        bool, typer.Option("--accept-new-host-key", help="Trust an unknown host key of --host.")
    ] = False,
) -> None:
    """Build the embedded host if need be, probe it with EAGLE-3 and without, and compare.

    The first run downloads SGLang and a CPU build of torch, about 1.5 GB; later runs take two to three minutes.

    Example: eaglediag demo -o demo
    """
    from eaglediag.analysis.comparison import compare
    from eaglediag.cli import options
    from eaglediag.cli.progress import TerminalProgress
    from eaglediag.cli.report import write_page
    from eaglediag.probes.launch import LaunchCommand
    from eaglediag.probes.run import Arm, probe_arms
    from eaglediag.probes.session import Plan
    from eaglediag.probes.workload import Load, built_in_prompts
    from eaglediag.reports import markdown, summary, terminal

    folder = embedded_host or find_embedded_host()
    output.mkdir(parents=True, exist_ok=True)
    command = LaunchCommand.parse(launch_command(folder, "eagle", port))
    arms = [
        Arm("baseline", command.without_speculation(), output / "baseline.json"),
        Arm("eagle", command, output / "eagle.json"),
    ]
    # Generation until the last token: the tiny model's text means nothing, so it must not decide when to stop.
    load = Load(
        built_in_prompts(),
        requests=48,
        max_new_tokens=128,
        endpoint="generate",
        ignore_eos=True,
        source="built-in prompts",
    )

    def plan(arm: Arm, turn: int) -> Plan:
        return Plan(launch=arm.launch, load=load, arm=arm.name, ready_timeout_s=300.0)

    with (
        options.open_hosts([host], accept_new_host_key=accept_new_host_key) as hosts,
        TerminalProgress() as progress,
    ):
        captures = probe_arms(hosts, arms, plan, 1, keep_steps=True, progress=progress)
    console = terminal.console()
    for capture, arm in zip(captures, arms, strict=True):
        summary.render(capture, arm.output, console)
    console.print()
    result = compare(*captures)
    terminal.render(result, console)
    with (output / "comparison.md").open("w", encoding="utf-8") as out:
        markdown.render(result, out)
    write_page([arm.output for arm in arms], captures, result, output / "report.html")
    typer.echo(f"\nIn {output}/: baseline.json, eagle.json, their raw steps, comparison.md, report.html.", err=True)


def find_embedded_host() -> Path:
    """The folder beside the package in a checkout, or inside it when installed. Raises UsageError."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package.parent / "embedded_host", package / "embedded_host"):
        if (folder / "serve.py").is_file():
            return folder
    raise UsageError("the embedded host is not here", "clone the repository, or name the folder with --embedded-host")


def launch_command(folder: Path, arm: str, port: int) -> str:
    """The embedded host's own launch line for an arm; builds what is missing. Raises InstrumentationError."""
    argv = [sys.executable, str(folder / "serve.py"), "--print", "--arm", arm, "--port", str(port)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise InstrumentationError(
            f"the embedded host could not be built (`{shlex.join(argv[1:])}` ended with {done.returncode})",
            "its last line above says why",
        )
    return done.stdout.strip().splitlines()[-1]

"""`eaglediag lint`: a launch command, read before anything runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def lint(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND", help="`python -m sglang.launch_server ...` or `vllm serve ...`, quoted as one."
        ),
    ],
    concurrency: Annotated[
        str, typer.Option("--concurrency", metavar="N,N,...", help="How many requests it will serve at once.")
    ] = "",
    release: Annotated[
        str | None,
        typer.Option("--release", help="The SGLang release to judge by; else the installed or the newest known."),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--source", metavar="FOLDER", help="Judge by the source of the sglang package in this folder."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Say what a launch command will silently not do: graphs, speculation, sizes, widths. Nothing is started.

    Ends with 1 when something in it cannot work, with 0 otherwise.

    Example: eaglediag lint --concurrency 1,4,12 'python -m sglang.launch_server --model-path /m/target
    --cuda-graph-max-bs-decode 8'
    """
    from eaglediag.analysis.launch_lint import Rules
    from eaglediag.analysis.launch_lint import lint as check
    from eaglediag.analysis.launch_lint.command import parse
    from eaglediag.errors import UsageError
    from eaglediag.probes.evidence.release_source import installed_rules, read_rules

    if not all(part.strip().isdigit() and len(part) < 8 for part in concurrency.split(",") if part.strip()):
        raise UsageError(f"--concurrency {concurrency} is not a list of numbers", "give it like 1,4,12")
    asked = [int(part) for part in concurrency.split(",") if part.strip()]
    if source is not None:
        rules = read_rules(source)
    elif release is not None:
        rules = Rules(release)
    else:
        rules = installed_rules() or Rules()
    text = " ".join(command) if len(command) > 1 else command[0]
    judged_as, engine = rules.judged_as, parse(text).engine
    findings = check(text, asked, rules)
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "release": rules.release,
                    "source": rules.source,
                    "judged_as": judged_as,
                    "options_checked": engine == "sglang" and rules.options is not None,
                    "findings": [vars(finding) for finding in findings],
                },
                indent=2,
            )
        )
    else:
        for finding in findings:
            typer.echo(f"{finding.level}: {finding.message}" + (f"; {finding.advice}" if finding.advice else ""))
        basis = rules.basis if engine == "sglang" else "a vLLM command; options are not checked for existence"
        typer.echo(f"{len(findings)} finding{'' if len(findings) == 1 else 's'} ({basis})", err=True)
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(1)

"""`eaglediag probe --url ... --read-only`: its options, and what they start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from eaglediag.errors import UsageError

if TYPE_CHECKING:
    from eaglediag.hosts.base import Host
    from eaglediag.probes.workload import Load

Url = Annotated[
    str | None,
    typer.Option("--url", help="With --read-only: the address of the server that already runs, as the host sees it."),
]
ReadOnlyFlag = Annotated[
    bool,
    typer.Option(
        "--read-only",
        help="Start nothing and put nothing into the server: read its /metrics, /server_info, log and GPUs.",
    ),
]
Log = Annotated[
    str | None, typer.Option("--log", metavar="PATH", help="With --read-only: follow the server's log on the host.")
]
Drive = Annotated[
    bool,
    typer.Option("--drive", help="With --read-only: send the load, too; otherwise the server's own load is watched."),
]
Duration = Annotated[
    float, typer.Option("--duration", min=1.0, max=7200.0, help="With --read-only: seconds to watch without --drive.")
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        envvar="EAGLEDIAG_API_KEY",
        show_envvar=True,
        help="With --read-only: the server's key. It is in no capture.",
    ),
]

#: Options that make no sense for a server that is only read, and those that make none for one that is started.
_OF_LAUNCH = {
    "ab": "--ab",
    "repeat": "--repeat",
    "ready_timeout": "--ready-timeout",
    "overhead_pairs": "--overhead-pairs",
    "profile_steps": "--profile-steps",
    "sweep_accept_length": "--sweep-accept-length",
    "steps": "--steps",
}
_OF_URL = {"log": "--log", "drive": "--drive", "duration": "--duration", "api_key": "--api-key"}
_OF_LOAD = {
    "concurrency": "--concurrency",
    "requests": "--requests",
    "max_new_tokens": "--max-new-tokens",
    "temperature": "--temperature",
    "seed": "--seed",
    "prompts": "--prompts",
    "random_input_len": "--random-input-len",
    "endpoint": "--endpoint",
    "ignore_eos": "--ignore-eos",
}


def check(context: typer.Context, launch: str | None, url: str | None, read_only: bool) -> None:
    """Raises UsageError unless exactly one of --launch and --url is given, with options that go with it."""
    if (launch is None) == (url is None):
        raise UsageError(
            "give --launch or --url, one of them",
            "--launch starts a server and measures inside it, --url with --read-only reads one that runs",
        )
    if read_only != (url is not None):
        raise UsageError(
            "--url and --read-only go together",
            "nothing is put into a server that eaglediag did not start: for that give --launch",
        )
    given = {name for name in context.params if _given(context, name)}
    for name, option in (_OF_URL if launch is not None else _OF_LAUNCH).items():
        if name in given:
            raise UsageError(f"{option} does not go with {'--launch' if launch else '--read-only'}", "leave it out")
    if url is not None and not context.params["drive"]:
        for name, option in _OF_LOAD.items():
            if name in given:
                raise UsageError(f"{option} is for a load, and none is sent", "add --drive, or leave it out")


def _given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def address(url: str) -> tuple[str, int]:
    """Host name and port of --url. Raises UsageError."""
    advice = "write it like http://127.0.0.1:30000, as the host sees it"
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError as error:
        raise UsageError(f"--url {url}: {error}", advice) from error
    if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/") or parts.query or parts.username:
        raise UsageError(f"--url {url} is not the plain HTTP address of a server", advice)
    return parts.hostname, 80 if port is None else port


def run(
    hosts: Sequence[Host],
    url: str,
    output: Path | None,
    *,
    arm: str | None,
    log: str | None,
    load: Load | None,
    duration_s: float,
    api_key: str | None,
    python: str | None,
    gpu_hz: float,
    remote_parent: str,
    as_json: bool,
) -> None:
    """Read the server, write the capture where one is wanted, also of what ended early, and print the summary."""
    from eaglediag.capture import store
    from eaglediag.cli.progress import TerminalProgress
    from eaglediag.probes.read_only.session import ReadOnly, Watch
    from eaglediag.reports import summary, terminal

    if output is not None and (output.is_dir() or not output.parent.is_dir()):
        raise UsageError(f"{output} cannot be written", "name a file in a folder that is there")
    name, port = address(url)
    watch = Watch(
        port=port,
        address=name,
        arm=arm,
        api_key=api_key,
        log=log,
        load=load,
        duration_s=duration_s,
        python=python,
        gpu_hz=gpu_hz,
        remote_parent=remote_parent,
    )
    with TerminalProgress() as progress:
        session = ReadOnly(watch, progress)
        try:
            session.run(hosts)
        finally:
            if output is not None:
                store.write(session.capture(), output)
    capture = session.capture()
    if as_json:
        import json

        typer.echo(json.dumps([summary.as_json(capture)], indent=2))
    else:
        summary.render(capture, output, terminal.console())

"""Options that several commands share, and what they open."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from eaglediag.hosts.base import Host

HostOption = Annotated[
    list[str],
    typer.Option(
        "--host",
        metavar="[USER@]HOST[:PORT]",
        help="Where the server runs, over SSH; `local` is this machine. Repeat it for a server on several nodes.",
    ),
]
AcceptHostKey = Annotated[
    bool,
    typer.Option(
        "--accept-new-host-key", help="Trust an unknown host key and remember it. A changed key is never accepted."
    ),
]
Identity = Annotated[
    list[Path] | None, typer.Option("--identity", "-i", metavar="FILE", help="A private key to try first; repeatable.")
]
SshConfig = Annotated[
    Path | None, typer.Option("--ssh-config", metavar="FILE", help="Use this ssh config instead of your own.")
]
Container = Annotated[
    str | None,
    typer.Option("--container", metavar="NAME", help="Run everything inside this running container on the host."),
]
ContainerRuntime = Annotated[str, typer.Option("--container-runtime", metavar="NAME", help="docker or podman.")]


def ask(prompt: str, secret: bool) -> str:
    """Put a question to the user."""
    return getpass.getpass(prompt + " ") if secret else input(prompt + " ")


@contextmanager
def open_hosts(
    specs: Sequence[str],
    *,
    accept_new_host_key: bool,
    identities: Sequence[Path] = (),
    ssh_config: Path | None = None,
    container: str | None = None,
    container_runtime: str = "docker",
) -> Iterator[list[Host]]:
    """Connect to every host; all are closed at the end."""
    from eaglediag.hosts import open_host

    with ExitStack() as stack:
        yield [
            stack.enter_context(
                open_host(
                    spec,
                    ssh_config=ssh_config,
                    identities=identities,
                    accept_new_host_key=accept_new_host_key,
                    container=container,
                    container_runtime=container_runtime,
                    ask=ask if sys.stdin.isatty() else None,
                )
            )
            for spec in specs
        ]

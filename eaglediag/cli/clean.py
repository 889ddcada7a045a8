"""`eaglediag clean`: remove what a probe that was killed may have left on a host."""

from __future__ import annotations

from typing import Annotated

import typer

from eaglediag.cli import options


def clean(
    host: options.HostOption,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the folders.")] = False,
    remote_parent: Annotated[str, typer.Option(metavar="DIR", help="Where the probe made its folder.")] = "/tmp",
    accept_new_host_key: options.AcceptHostKey = False,
    identity: options.Identity = None,
    ssh_config: options.SshConfig = None,
    container: options.Container = None,
    container_runtime: options.ContainerRuntime = "docker",
) -> None:
    """Remove your eaglediag folders from a host; one whose probe still runs is left alone.

    Example: eaglediag clean --host gpu1
    """
    from eaglediag.probes.folder import leftovers, remove_leftover

    with options.open_hosts(
        host,
        accept_new_host_key=accept_new_host_key,
        identities=identity or (),
        ssh_config=ssh_config,
        container=container,
        container_runtime=container_runtime,
    ) as hosts:
        for one in hosts:
            found = leftovers(one, remote_parent)
            for folder in found:
                if folder.pid is not None:
                    typer.echo(
                        f"{one.label}: {folder.path} belongs to a probe that runs (process {folder.pid}), left alone"
                    )
                elif dry_run:
                    typer.echo(f"{one.label}: {folder.path} would be removed")
                else:
                    remove_leftover(one, folder)
                    typer.echo(f"{one.label}: {folder.path} removed")
            if not found:
                typer.echo(f"{one.label}: nothing to clean")

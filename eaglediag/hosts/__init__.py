"""Machines to probe: this one, one over SSH, a container on either."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eaglediag.hosts.base import Ask, Host


def open_host(
    spec: str,
    *,
    ssh_config: Path | None = None,
    identities: Sequence[Path] = (),
    accept_new_host_key: bool = False,
    container: str | None = None,
    container_runtime: str = "docker",
    ask: Ask | None = None,
) -> Host:
    """Connect to `spec`: "local", or "[user@]host[:port]" with a name, an address or an alias of the ssh config.

    `ssh_config` replaces the user's ssh config, `identities` are key files tried before those it names. `ask` puts a
    prompt to the user and returns the answer; None means that nobody can be asked. With `container`, the host is that
    running container on the machine. Raises UsageError for an unusable spec or key file, HostError for everything that
    keeps us out.
    """
    inner: Host
    if spec == "local":
        from eaglediag.hosts.local import LocalHost

        inner = LocalHost()
    else:
        from eaglediag.hosts.ssh.config import parse_target
        from eaglediag.hosts.ssh.host import SshHost

        inner = SshHost(
            parse_target(spec),
            ssh_config=ssh_config,
            identities=identities,
            accept_new_host_key=accept_new_host_key,
            ask=ask,
        )
    if container is None:
        return inner

    from eaglediag.hosts.container import ContainerHost

    try:
        return ContainerHost(inner, container_runtime, container)
    except BaseException:
        inner.close()
        raise

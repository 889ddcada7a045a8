"""A running container on a host."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from eaglediag.errors import HostError, UsageError
from eaglediag.hosts.base import Host, Process, Stream


class ContainerHost(Host):
    """A running container, entered with `docker exec` or `podman exec`. Closing it closes the host it runs on."""

    def __init__(self, inner: Host, runtime: str, name: str) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
            raise UsageError(f"{name!r} is no container name")
        self.label = f"container {name} on {inner.label}"
        self._inner, self._runtime, self._name = inner, runtime, name
        if not self._state["State"]["Running"]:
            raise HostError(f"{self.label} is not running", f"start it: {runtime} start {name}")

    @cached_property
    def _state(self) -> dict[str, Any]:
        """What the engine's `inspect` says about the container."""
        done = self._inner.run([self._runtime, "inspect", "--type", "container", self._name])
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise HostError(f"{self.label}: {lines[-1] if lines else f'{self._runtime} inspect failed'}")
        try:
            state: dict[str, Any] = json.loads(done.stdout)[0]
            state["State"]["Running"], state["HostConfig"]["NetworkMode"], state["NetworkSettings"]
        except (ValueError, LookupError, TypeError) as error:
            raise HostError(f"{self.label}: cannot read the output of {self._runtime} inspect: {error!r}") from error
        return state

    def popen(self, argv: Sequence[str]) -> Process:
        return self._inner.popen([self._runtime, "exec", "-i", self._name, *argv])

    def connect(self, port: int, address: str = "127.0.0.1", timeout: float = 10.0) -> Stream:
        """Connect to a port of the container, wherever the host can reach it.

        That is on the host's own network, where the port is published, or at the container's address; the last is no
        use for a server that listens on the container's loopback only.
        """
        network = self._state["NetworkSettings"]
        if self._state["HostConfig"]["NetworkMode"] == "host":
            return self._inner.connect(port, address, timeout)
        for published in (network.get("Ports") or {}).get(f"{port}/tcp") or []:
            wildcard = published.get("HostIp") in (None, "", "0.0.0.0", "::")
            return self._inner.connect(
                int(published["HostPort"]), "127.0.0.1" if wildcard else published["HostIp"], timeout
            )
        networks = [network, *(network.get("Networks") or {}).values()]
        for own in filter(None, (entry.get("IPAddress") for entry in networks)):
            return self._inner.connect(port, own, timeout)
        raise ConnectionRefusedError(f"{self.label}: port {port} is not published and the container has no address")

    def close(self) -> None:
        self._inner.close()

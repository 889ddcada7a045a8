"""Talking to the agents in the server's scheduler processes, on every host, and fetching what they recorded."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from typing import Any

from eaglediag.errors import InstrumentationError
from eaglediag.hosts.base import Host
from eaglediag.probes.folder import RemoteFolder


@dataclass
class Rows:
    """One rank's rows of one window, in the payload's columns.

    `hooks_ns` and `gates_ns` are what they took in all, without the `explaining_ns` that denials took once a kind.
    """

    rank: int
    clock: str
    dropped: int
    epoch_minus_perf_ns: int
    columns: list[str]
    rows: list[list[Any]]
    collectives: dict[str, Any] = field(default_factory=dict)
    hooks_ns: int = 0
    gates_ns: int = 0
    explaining_ns: int = 0


@dataclass
class Agents:
    """All agents of one server. `failed` holds, by host and pid, why a process has none."""

    places: list[tuple[Host, RemoteFolder, str]]
    failed: dict[str, str] = field(default_factory=dict)

    def command(self, name: str, **values: Any) -> list[dict[str, Any]]:
        """Send a command to every agent; their replies, each with its host. Raises HostError, InstrumentationError."""
        replies = []
        for place, (host, folder, python) in enumerate(self.places):
            script = f"{folder.path}/lib/eaglediag_payload/control.py"
            done = host.run([python, script, folder.path, json.dumps({"command": name, **values})], timeout=120.0)
            try:
                answer = json.loads(done.stdout)
            except ValueError:
                words = (done.stderr.decode(errors="replace").strip().splitlines() or ["no answer"])[-1]
                raise InstrumentationError(f"{host.label}: the agents cannot be reached: {words[:300]}") from None
            for pid, why in answer["failed"].items():
                self.failed[f"{host.label}/{pid}"] = why
            for pid, reply in sorted(answer["replies"].items()):
                replies.append({"host": host.label, "place": place, "pid": int(pid), **reply})
        return replies

    def collect(self, window: str) -> tuple[list[Rows], list[dict[str, Any]]]:
        """Flush a window on every agent: the rows, and the raw replies (denials, errors)."""
        replies = self.command("flush", file=f"{window}.jsonl.gz")
        return [_read(self.places[reply["place"]][0], reply["file"]) for reply in replies if reply["ok"]], replies


def _read(host: Host, path: str) -> Rows:
    """Fetch one file of rows and remove it on the host, so that a long probe fills no disk."""
    data = host.read_file(path)
    host.run(["rm", "-f", "--", path])
    lines = gzip.decompress(data).decode().splitlines()
    header = json.loads(lines[0])
    return Rows(
        rank=int(header["rank"]),
        clock=str(header["clock"]),
        dropped=int(header["dropped"]),
        epoch_minus_perf_ns=int(header["epoch_minus_perf_ns"]),
        columns=list(header["columns"]),
        rows=[json.loads(line) for line in lines[1:]],
        collectives=header["collectives"],
        hooks_ns=int(header["hooks_ns"]),
        gates_ns=int(header["gates_ns"]),
        explaining_ns=int(header["explaining_ns"]),
    )

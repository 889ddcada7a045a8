"""One or several arms, probed in turn, each written as soon as it is measured."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from eaglediag.capture import store
from eaglediag.capture.model import Capture, Problem
from eaglediag.errors import CaptureError
from eaglediag.hosts.base import Host
from eaglediag.probes.agents import Rows
from eaglediag.probes.launch import LaunchCommand
from eaglediag.probes.progress import Progress
from eaglediag.probes.session import Plan, Session
from eaglediag.probes.turns import merged, order


@dataclass(frozen=True)
class Arm:
    """A server configuration, and where its capture goes."""

    name: str
    launch: LaunchCommand
    output: Path


def probe_arms(
    hosts: Sequence[Host],
    arms: Sequence[Arm],
    plan: Callable[[Arm, int], Plan],
    repeat: int,
    *,
    keep_steps: bool,
    progress: Progress,
) -> list[Capture]:
    """Probe every arm `repeat` times; its capture is written after each window, partial until the arm's turn is over.

    Raises what ended a probe early, after writing what it had.
    """
    captures: dict[int, Capture] = {}
    rows: dict[int, list[tuple[str, Rows]]] = {}
    for position, turn in order(len(arms), repeat):
        arm = arms[position]
        label = arm.name + (f" {turn + 1}/{repeat}" if repeat > 1 else "")

        def told(stage: str, detail: str = "", fraction: float | None = None, label: str = label) -> None:
            progress(f"{label}: {stage}" if len(arms) * repeat > 1 else stage, detail, fraction)

        unfinished = partial(_write_unfinished, captures.get(position), arm.output)
        session = Session(plan(arm, turn), told, on_window=unfinished)
        try:
            session.run(hosts)
        finally:
            capture = merged(captures.get(position), session.capture())
            captures[position] = capture
            rows.setdefault(position, []).extend(session.rows)
            if keep_steps:
                path = arm.output.with_name(arm.output.name.removesuffix(".json") + ".steps.jsonl.gz")
                write_steps(rows[position], path)
                capture.steps_file = path.name
            store.write(capture, arm.output)
    return [captures[position] for position in range(len(arms))]


def _write_unfinished(before: Capture | None, output: Path, session: Session) -> None:
    """What there is while an arm is measured: for whoever watches, and should this process be killed."""
    now = session.capture()
    now.status = "partial"
    now.problems.append(Problem(code="unfinished", message="it was still being measured"))
    store.write(merged(before, now), output)


def write_steps(recorded: Sequence[tuple[str, Rows]], path: Path) -> None:
    """The raw steps as JSON lines: an object with window, rank and columns, then arrays. Raises CaptureError."""
    try:
        with gzip.open(path, "wt", compresslevel=5, encoding="utf-8") as stream:
            for window, rows in recorded:
                header = {"window": window, "rank": rows.rank, "clock": rows.clock, "columns": rows.columns,
                          "epoch_minus_perf_ns": rows.epoch_minus_perf_ns}  # fmt: skip
                stream.write(json.dumps(header) + "\n")
                stream.writelines(json.dumps(row, separators=(",", ":")) + "\n" for row in rows.rows)
    except OSError as error:
        raise CaptureError(f"cannot write {path}: {error.strerror}", "free some space, or leave --steps out") from error

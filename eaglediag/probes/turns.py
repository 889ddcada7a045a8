"""Turns: the arms of a comparison started over and over, each arm's turns as one capture."""

from __future__ import annotations

from collections.abc import Sequence

from eaglediag.capture.model import Capture, HostInfo
from eaglediag.probes.gpu import merged_gpus


def order(arms: int, repeat: int) -> list[tuple[int, int]]:
    """(arm, turn) in the order ABBA ABBA ...: a drift of the machine weighs on all arms alike."""
    turns = []
    for turn in range(repeat):
        sequence = range(arms) if turn % 2 == 0 else reversed(range(arms))
        turns += [(arm, turn) for arm in sequence]
    return turns


def merged(before: Capture | None, now: Capture) -> Capture:
    """Turns of one arm are one capture: windows, denials and GPU samples of all, the description of the first."""
    if before is None:
        return now
    merged = before.model_copy()
    merged.windows = before.windows + now.windows
    merged.denials = before.denials + now.denials
    merged.hosts = _hosts(before.hosts, now.hosts)
    known = {(problem.code, problem.message) for problem in before.problems}
    merged.problems = before.problems + [one for one in now.problems if (one.code, one.message) not in known]
    if now.status == "partial":
        merged.status = "partial"
        ended = {"last_log_lines": now.server.last_log_lines, "exit_code": now.server.exit_code}
        merged.server = before.server.model_copy(update=ended)
    return merged


def _hosts(before: Sequence[HostInfo], now: Sequence[HostInfo]) -> list[HostInfo]:
    found = {host.name: host for host in before}
    for host in now:
        known = found.get(host.name)
        found[host.name] = known.model_copy(update={"gpus": merged_gpus(known.gpus, host.gpus)}) if known else host
    return list(found.values())

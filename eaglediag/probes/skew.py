"""How far apart the ranks of a tensor-parallel group start the same pass, and for whom the others wait.

Every rank's rows carry the host's clock (its own perf_counter, put on the epoch when the window was collected), so
ranks of one host can be laid side by side. A pass of one rank belongs to the pass of another that starts nearest, if
that is less than half a period away. The first collective of a pass cannot end before the last rank has started it:
that rank is waited for, and the others' device time of the pass holds the waiting.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median

from eaglediag.capture.model import Phase, RankSkew
from eaglediag.probes.agents import Rows
from eaglediag.probes.aggregate import distribution

#: The passes that start with all ranks at once; the first of these that a window has is measured.
PHASES: tuple[Phase, ...] = ("verify", "decode")


def rank_skew(recorded: Sequence[Rows], groups: Mapping[int, str]) -> list[RankSkew]:
    """The skew of each group of ranks; `groups` maps a rank to the name of its host and group. Lone ranks have none."""
    members: dict[str, list[Rows]] = defaultdict(list)
    for rows in recorded:
        if rows.rank in groups:
            members[groups[rows.rank]].append(rows)
    found = []
    for _, ranks in sorted(members.items()):
        for phase in PHASES:
            starts = {rows.rank: _starts(rows, phase) for rows in ranks}
            if len(starts) > 1 and all(len(times) > 1 for times in starts.values()):
                if skew := _skew(phase, starts):
                    found.append(skew)
                break
    return found


def _starts(rows: Rows, phase: str) -> list[float]:
    """When this rank started each pass, in ms."""
    kind, name, start = (rows.columns.index(column) for column in ("row", "phase", "start_ns"))
    wanted = "step" if phase == "decode" else "phase"
    return sorted(
        (row[start] + rows.epoch_minus_perf_ns) / 1e6 for row in rows.rows if row[kind] == wanted and row[name] == phase
    )


def _skew(phase: Phase, starts: Mapping[int, list[float]]) -> RankSkew | None:
    reference, *others = sorted(starts)
    times = starts[reference]
    reach = median(after - before for before, after in pairwise(times)) / 2
    apart, last = [], Counter[int]()
    for time in times:
        together = {reference: time}
        for rank in others:
            nearest = _nearest(starts[rank], time)
            if abs(nearest - time) < reach:
                together[rank] = nearest
        if len(together) == len(starts):
            apart.append(max(together.values()) - min(together.values()))
            last[max(together, key=lambda rank: together[rank])] += 1
    if not apart:
        return None
    return RankSkew(phase=phase, skew_ms=distribution(apart, "host_clock"), starts_last=dict(sorted(last.items())))


def _nearest(times: Sequence[float], time: float) -> float:
    at = bisect_left(times, time)
    return min(times[max(0, at - 1) : at + 1], key=lambda one: abs(one - time))

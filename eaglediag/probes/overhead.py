"""What the agent costs: the same requests with it active and dormant, in alternation, and its own time in the steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt
from statistics import mean, stdev

from scipy.stats import t as student

from eaglediag.capture.model import Overhead
from eaglediag.probes.agents import Agents, Rows
from eaglediag.probes.progress import Progress
from eaglediag.probes.workload import Client

REQUESTS = 4


def measure_overhead(
    agents: Agents, client: Client, recorded: Sequence[Rows], pairs: int, progress: Progress
) -> Overhead:
    """The ratio of times per token, active over dormant, at the lowest concurrency, with its 95 % interval.

    `recorded` are the rows of the windows before: what hooks and gates took of a step is read from them. Fewer than
    two pairs give no interval.
    """
    overhead = Overhead(method="not measured")
    if own := own_time(recorded):
        overhead.hook_us_per_step, overhead.gate_us_per_step, overhead.share_of_step = own
    if pairs and recorded:
        concurrency = min(client.load.concurrency)
        count = max(REQUESTS, concurrency)
        ratios = []
        progress("measuring the agent's own cost", f"{pairs} pairs", 0.0)
        for active, dormant in alternated(agents, client, concurrency, count, pairs):
            ratios.append(active / dormant)
            progress("measuring the agent's own cost", f"pair {len(ratios)} of {pairs}", len(ratios) / pairs)
        middle, low, high = interval(ratios)
        overhead.ratio = round(middle, 4)
        overhead.interval = (round(low, 4), round(high, 4)) if pairs > 1 else None
        overhead.method = (
            f"active against dormant, {pairs} alternated pairs of {count} requests at concurrency {concurrency}"
        )
    once_ms = sum(rows.explaining_ns for rows in recorded) / 1e6
    if once_ms >= 1.0:
        overhead.method += f"; putting each kind of denial into words, once a window, took {once_ms:.0f} ms in all"
    return overhead


def alternated(
    agents: Agents, client: Client, concurrency: int, requests: int, pairs: int
) -> Iterator[tuple[float, float]]:
    """(active, dormant) seconds per token, a pair at a time; what was recorded for it is forgotten.

    The order within a pair turns from pair to pair, so that a drift cancels out.
    """
    for pair in range(pairs):
        spent: dict[bool, float] = {}
        for active in (True, False) if pair % 2 == 0 else (False, True):
            agents.command("start" if active else "stop")
            spent[active] = client.run(concurrency, requests).seconds_per_token
        agents.command("stop")
        agents.command("discard")
        yield spent[True], spent[False]


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(mean, low, high): a 95 % interval of Student's t. One value alone has no width to tell: low and high are it."""
    middle = mean(values)
    if len(values) < 2:
        return middle, middle, middle
    half = float(student.ppf(0.975, len(values) - 1)) * stdev(values) / sqrt(len(values))
    return middle, middle - half, middle + half


def own_time(recorded: Sequence[Rows]) -> tuple[float, float, float] | None:
    """(us that hooks took of a step, us that gates took, the share of both in a step) where that share is largest.

    It was measured around each of them, where they ran. None when no window has two steps in a row.
    """
    found = []
    for rows in recorded:
        row, period = rows.columns.index("row"), rows.columns.index("period_ns")
        steps = [one for one in rows.rows if one[row] == "step"]
        periods = [one[period] for one in steps if one[period] is not None]
        if periods:
            hooks, gates = (ns / len(steps) for ns in (rows.hooks_ns, rows.gates_ns))
            found.append(((hooks + gates) / mean(periods), hooks, gates))
    if not found:
        return None
    share, hooks, gates = max(found)
    return round(hooks / 1000, 2), round(gates / 1000, 2), round(share, 5)

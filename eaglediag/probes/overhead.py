"""What the agent costs: the same requests with the agent active and dormant, in alternation."""

from __future__ import annotations

from math import sqrt
from statistics import mean, stdev

from scipy.stats import t as student

from eaglediag.capture.model import Overhead, Window
from eaglediag.probes.agents import Agents
from eaglediag.probes.progress import Progress
from eaglediag.probes.workload import Client, Result

REQUESTS = 4


def measure_overhead(agents: Agents, client: Client, windows: list[Window], pairs: int, progress: Progress) -> Overhead:
    """Alternate active and dormant windows at the lowest concurrency; the ratio of times per token, with its interval.

    The order within a pair turns from pair to pair, so that a drift cancels out. Fewer than two pairs give no interval.
    """
    overhead = Overhead(method="not measured")
    if pairs > 0 and windows:
        concurrency = min(client.load.concurrency)
        ratios = []
        for pair in range(pairs):
            progress("measuring the agent's own cost", f"pair {pair + 1} of {pairs}", pair / pairs)
            spent: dict[bool, float] = {}
            for active in (True, False) if pair % 2 == 0 else (False, True):
                agents.command("start" if active else "stop")
                spent[active] = _time_per_token(client.run(concurrency, max(REQUESTS, concurrency)))
            agents.command("stop")
            ratios.append(spent[True] / spent[False])
        agents.command("discard")
        overhead.ratio = round(mean(ratios), 4)
        count = max(REQUESTS, concurrency)
        overhead.method = (
            f"active against dormant, {pairs} alternated pairs of {count} requests at concurrency {concurrency}"
        )
        if pairs > 1:
            half = float(student.ppf(0.975, pairs - 1)) * stdev(ratios) / sqrt(pairs)
            overhead.interval = (round(overhead.ratio - half, 4), round(overhead.ratio + half, 4))
    replies = agents.command("cost")
    failed = [reply["error"] for reply in replies if not reply["ok"]]
    if failed:
        overhead.method += f"; the cost of a hook could not be measured: {failed[0]}"
    elif replies:
        spans = _spans_per_step(windows)
        overhead.hook_us_per_step = round(max(reply["us_per_span"] for reply in replies) * spans, 2)
        step = _step_ms(windows)
        overhead.share_of_step = round(overhead.hook_us_per_step / 1000 / step, 5) if step else None
    return overhead


def _time_per_token(result: Result) -> float:
    return result.duration_s / max(1, sum(request.completion_tokens for request in result.requests))


def _spans_per_step(windows: list[Window]) -> float:
    """Hooked calls in one step: itself, its phases, and the forward in each."""
    for window in windows:
        for rank in window.ranks:
            for batch in rank.batches:
                return 2.0 + 2.0 * len({part.phase for part in batch.parts if batch.kind == "cycle"})
    return 0.0


def _step_ms(windows: list[Window]) -> float | None:
    """The mean period at the smallest batch size: where a fixed cost weighs most."""
    periods = [
        (batch.batch_size, batch.period_ms.mean)
        for window in windows
        for rank in window.ranks
        for batch in rank.batches
    ]
    return min(periods)[1] if periods else None

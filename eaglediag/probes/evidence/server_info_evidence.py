"""A saved `/server_info` as evidence."""

from __future__ import annotations

from collections.abc import Iterator

from eaglediag.capture.model import Problem, Rank, RankWindow, Window
from eaglediag.probes.evidence.evidence import Evidence, Fact, server_facts
from eaglediag.probes.evidence.server_info import IDLE_FACTOR, ServerInfo


def of_server_info(info: ServerInfo, file: str) -> Evidence:
    """The capture's part: the server, its accept length over its life, and recorded step times if it has them."""
    server = info.server()
    facts = server_facts(server)
    lengths = [state.lifetime_accept_length for state in info.states if state.lifetime_accept_length]
    if lengths:
        facts.append(Fact("the accept length", sum(lengths) / len(lengths), 0.05, "average since the server started"))
    batches = [(rank, batch) for rank, state in enumerate(info.states) for batch in info.batches(state)]
    windows = [
        Window(
            id=f"server_info batch {size}",
            concurrency=size,
            agent="absent",
            started=0.0,
            duration_s=max(b.count * b.period_ms.mean / 1000 for _, b in batches if b.batch_size == size),
            throughput_method="server_info",
            ranks=[RankWindow(rank=rank, batches=[b]) for rank, b in batches if b.batch_size == size],
        )
        for size in sorted({batch.batch_size for _, batch in batches})
    ]
    return Evidence(
        method="server_info",
        files=[file],
        server=server,
        windows=windows,
        ranks=[Rank(rank=number, dp=number) for number in range(len(info.states))] if windows else [],
        problems=list(_problems(info, lengths, bool(windows))),
        facts=facts,
    )


def _problems(info: ServerInfo, lengths: list[float], timed: bool) -> Iterator[Problem]:
    if lengths:
        yield Problem(
            code="lifetime_accept_length",
            message=f"avg_spec_accept_length {sum(lengths) / len(lengths):.2f} is over the server's life, warm-up and "
            "every earlier load included",
            advice="an accept length per load is in the decode lines: give the log too",
        )
    if lengths and len(lengths) < len(info.states):
        yield Problem(
            code="ranks_without_accept_length",
            message=f"{len(info.states) - len(lengths)} of {len(info.states)} DP ranks report no accept length",
        )
    if timed:
        yield Problem(
            code="step_times_hold_idle",
            message="recorded step times are times between decode lines: idle time and prefills are inside; those "
            f"above {IDLE_FACTOR:g} times the median were left out",
            advice="give the log, which shows which lines to trust, or probe the server",
        )

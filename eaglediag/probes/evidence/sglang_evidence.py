"""From an SGLang log that was read to its part of a capture, with what it cannot know said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eaglediag.capture.model import CapturedGraphs, Denial, Phase, PhaseStats, RankWindow, Server, Window
from eaglediag.capture.model import Rank as ServerRank
from eaglediag.probes.evidence import sglang_problems
from eaglediag.probes.evidence.decode_series import Blocked, DecodeSeries, batch_stats, graph_flags
from eaglediag.probes.evidence.evidence import Evidence, Fact, server_facts
from eaglediag.probes.evidence.sglang_import import Launch, SglangLog
from eaglediag.probes.evidence.sglang_log import Rank
from eaglediag.probes.evidence.sglang_server import (
    DEFAULT_DECODE_LOG_INTERVAL,
    decode_log_interval,
    server_from_arguments,
)


def evidence(log: SglangLog, files: list[str]) -> Evidence:
    """The capture's part. Of several servers or launches in one log the one with decode lines, the last, is taken."""
    launch = next((one for one in reversed(log.launches) if one.series), log.launches[-1])
    source = _busiest(launch)
    series = {rank: one for (writer, rank), one in launch.series.items() if writer == source}
    speculative = any(one.speculative for one in series.values())
    server = _server(launch, speculative)
    interval = decode_log_interval(server.arguments) or _seen_interval(series) or DEFAULT_DECODE_LOG_INTERVAL
    numbered = {rank: number for number, rank in enumerate(sorted(series))}
    windows = _windows(series, numbered, interval, speculative)
    denials = list(eager_steps(windows, server))
    problems = [
        *sglang_problems.of_the_log(log, launch, source),
        *sglang_problems.of_the_lines(series, server, interval),
        *sglang_problems.of_the_start(launch, server, speculative),
        *sglang_problems.unknown(server, speculative),
    ]
    facts = server_facts(server)
    if length := _accept_length(windows):
        facts.append(Fact("the accept length", length, 0.05, "over the decode lines used"))
    return Evidence(
        method="log_line",
        files=files,
        server=server,
        windows=windows,
        ranks=[
            ServerRank(rank=number, dp=rank.dp, tp=rank.tp, pp=rank.pp) for rank, number in sorted(numbered.items())
        ],
        denials=denials,
        problems=problems,
        facts=facts,
        unparsed=log.unreadable,
        unparsed_lines=log.unreadable_lines,
    )


def _busiest(launch: Launch) -> str:
    lines: dict[str, int] = {}
    for (source, _), one in launch.series.items():
        lines[source] = lines.get(source, 0) + one.lines
    return max(lines, key=lambda source: lines[source], default="")


def _server(launch: Launch, speculative: bool) -> Server:
    server = server_from_arguments(launch.arguments, "log_line") if launch.arguments else Server()
    captured: dict[Phase, CapturedGraphs] = dict(launch.captured)
    if speculative and "decode" in captured and "verify" not in captured:
        # To 0.5.12 the line does not say what the target's graphs are for; with speculation they are verify's.
        captured["verify"] = captured.pop("decode")
    for phase, told in server.captured.items():
        if phase in captured and not captured[phase].sizes:
            captured[phase].sizes = told.sizes
        captured.setdefault(phase, told)
    server.captured = captured
    if launch.started is not None and launch.ready is not None:
        server.ready_s = launch.ready - launch.started
    if launch.models:
        server.model.architecture = launch.models[0]
    if len(launch.models) > 1 and server.draft_model is not None:
        server.draft_model.architecture = launch.models[1]
    return server


def _seen_interval(series: dict[Rank, DecodeSeries]) -> int | None:
    return next((one.steps_per_line for one in series.values() if one.steps_per_line), None)


def _windows(
    series: dict[Rank, DecodeSeries], numbered: dict[Rank, int], interval: int, speculative: bool
) -> list[Window]:
    """One window a batch size: all stretches of the log at that #running-req, on every rank that logs."""
    by_size: dict[int, list[tuple[int, Blocked]]] = {}
    for rank, one in series.items():
        for size, lines, _ in one.usable():
            by_size.setdefault(size, []).append((numbered[rank], lines))
    windows = []
    for size, found in sorted(by_size.items()):
        ranks = [_rank_window(number, size, lines, interval, speculative) for number, lines in found]
        windows.append(
            Window(
                id=f"log batch {size}",
                concurrency=size if len(series) == 1 else None,
                agent="absent",
                started=min((lines.first for _, lines in found if lines.first is not None), default=0.0),
                duration_s=max(lines.sum_ms * interval / 1000 for _, lines in found),
                throughput_method="log_line",
                ranks=ranks,
            )
        )
    return windows


def _rank_window(number: int, size: int, lines: Blocked, interval: int, speculative: bool) -> RankWindow:
    stats = batch_stats(size, lines, interval, speculative)
    flags: list[PhaseStats] = graph_flags(size, lines, speculative)
    stats.parts = flags
    return RankWindow(rank=number, batches=[stats], phases=flags, steps_recorded=stats.count)


def eager_steps(windows: Sequence[Window], server: Server) -> Iterator[Denial]:
    """Eager steps, as far as a log or a metrics page shows them: that there was no graph, and, where the batch exceeds
    every captured size, why.
    """
    for window in windows:
        for rank in window.ranks:
            for one in rank.phases:
                if one.graph is not False or one.batch_size is None:
                    continue
                sizes = server.captured[one.phase].sizes if one.phase in server.captured else []
                reason = "the server's graph flag is False; which condition said no, it does not tell"
                if sizes and one.batch_size > max(sizes):
                    reason = f"batch size {one.batch_size} is above the largest captured size {max(sizes)}"
                elif one.phase in server.captured and not sizes and server.captured[one.phase].method != "log_line":
                    reason = "the server was told to capture no graphs"
                yield Denial(
                    phase=one.phase,
                    batch_size=one.batch_size,
                    gate="unknown (not probed)",
                    explained=False,
                    reason=reason,
                    counts={rank.rank: one.count},
                    windows={window.id: one.count},
                )


def _accept_length(windows: list[Window]) -> float | None:
    accepted = [batch.accept for window in windows for rank in window.ranks for batch in rank.batches if batch.accept]
    passes = sum(one.passes for one in accepted)
    return sum(one.tokens for one in accepted) / passes if passes else None

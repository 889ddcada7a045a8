"""What a probe that only reads cannot know, each with the command that finds out, and what to know of what it read."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from eaglediag.capture.model import Problem, RankWindow, Server
from eaglediag.probes.evidence.metrics_page import MetricsSnapshot

#: Step times of two sources further apart than this are not of the same server.
APART = 0.3


def unknown(server: Server, hosts: Sequence[str], clocks: bool) -> Iterator[Problem]:
    """What no page and no log says."""
    if server.engine == "vllm":
        yield Problem(
            code="unknown_parts",
            message="the parts of a step and whether it ran as a graph are not among a vLLM server's metrics",
            advice="give a torch profiler trace (`vllm bench serve --profile`) to `eaglediag import`",
        )
    else:
        yield from _of_sglang(server, hosts)
    if not clocks and server.device != "cpu":
        yield Problem(
            code="unknown_clocks",
            message="clocks, power and throttling are not known: a difference to another capture may be just that",
            advice="name a Python that has nvidia-ml-py with --python",
        )


def _of_sglang(server: Server, hosts: Sequence[str]) -> Iterator[Problem]:
    where = " ".join(f"--host {shlex.quote(host)}" for host in hosts)
    probe = f"`eaglediag probe {where} --launch 'the launch command' -o capture.json`"
    if server.speculation is not None:
        yield Problem(
            code="unknown_draft_graphs",
            message="whether draft and draft-extend ran as graphs is neither in /metrics nor in the log: both speak of "
            "verify",
            advice=probe,
        )
    yield Problem(
        code="unknown_gates", message="which condition denied a graph is not known to a probe that reads", advice=probe
    )
    parts = "draft, verify, draft-extend and host gap" if server.speculation else "the forward pass and the host gap"
    yield Problem(
        code="unknown_parts",
        message=f"the parts of a step ({parts}) are not known, only its whole length",
        advice=probe,
    )


def metrics_off(log: bool) -> Problem:
    """The server was started without --enable-metrics."""
    rest = "/server_info and the log" if log else "/server_info"
    return Problem(
        code="metrics_off",
        message=f"the server has no /metrics; this capture is made from {rest} alone",
        advice="start the server with --enable-metrics" + ("" if log else ", or name its log with --log"),
    )


def prefill_in_period(sizes: Sequence[int], window: str) -> Problem:
    """Requests came and went all the time."""
    listed = ", ".join(map(str, sizes[:8]))
    return Problem(
        code="prefill_in_period",
        message=f"{window}: at {listed} running requests one began or ended between any two looks, so the step times "
        "hold prefills",
        advice="use longer answers (--max-new-tokens), or name the log with --log",
    )


def eager_passes(first: MetricsSnapshot, last: MetricsSnapshot) -> Iterator[Problem]:
    """Decode or verify passes without a graph, counted."""
    counts, before = last.graph_passes, first.graph_passes
    eager = counts.get("decode_none", 0) - before.get("decode_none", 0)
    graph = counts.get("decode_cuda_graph", 0) - before.get("decode_cuda_graph", 0)
    if eager > 0:
        yield Problem(
            code="eager_passes",
            message=f"{eager} of {eager + graph} decode or verify passes ran without a graph (cuda_graph_passes_total)",
            advice="`eaglediag probe --launch` shows which condition said no",
        )


def contradictions(log: Sequence[RankWindow], metrics: Sequence[RankWindow], path: str) -> Iterator[Problem]:
    """A log and a page that do not tell the same step time: the log is most likely of another server."""
    told = {(rank.rank, batch.batch_size): batch.period_ms.mean for rank in metrics for batch in rank.batches}
    for rank in log:
        for batch in rank.batches:
            other = told.get((rank.rank, batch.batch_size))
            if other is not None and abs(batch.period_ms.mean - other) > APART * max(batch.period_ms.mean, other):
                yield Problem(
                    code="contradiction",
                    message=f"a step at batch {batch.batch_size} takes {batch.period_ms.mean:.2f} ms by {path} and "
                    f"{other:.2f} ms by /metrics",
                    advice="check that --log is the log of the server at --url",
                )
                return

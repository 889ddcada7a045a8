"""What one probe found, in a screenful: the line after `eaglediag probe`, not yet a judgement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from eaglediag.analysis.denials import Refusals, refusals
from eaglediag.capture.model import BatchStats, Capture, PhaseStats, Window
from eaglediag.reports.untrusted import printable

ENGINES = {"sglang": "SGLang", "vllm": "vLLM"}
PART_NAMES = {"draft_extend": "draft-extend"}


def render(capture: Capture, path: Path | None, out: Console) -> None:
    """Print the summary of a capture that was just written to `path`, if it was written."""
    server, instrumentation = capture.server, capture.instrumentation
    seen = sum(rank.seen for rank in instrumentation.ranks)
    head = f"{capture.arm}: {ENGINES[server.engine]} {server.release}" if server.release else capture.arm
    if server.speculation is not None:
        speculation = server.speculation
        head += f", {speculation.algorithm}, {speculation.num_steps} steps, {speculation.num_draft_tokens} draft tokens"
    status = "" if capture.status == "complete" else " PARTIAL"
    if instrumentation.route != "none":
        head += f", ranks {seen}/{instrumentation.ranks_expected or '?'}"
    out.print(Text(printable(head + ("" if path is None else f", {path}") + status)))
    if capture.windows:
        out.print(_windows(capture))
    again = started_again(capture)
    for window in capture.windows:
        batch = typical(window)
        if batch is not None and batch.kind == "cycle" and any(part.host_ms or part.device_ms for part in batch.parts):
            start = f", start {window.repeat + 1}" if again else ""
            out.print(Text(printable(f"  a cycle at batch {batch.batch_size}{start}, ms: {parts(batch)}")))
    for one in main_refusals(capture):
        out.print(Text(printable(f"  no graph: {one.line}")))
    for problem in capture.problems:
        if problem.code != "preflight":
            out.print(Text(printable(f"  {problem.message}{'; ' + problem.advice if problem.advice else ''}")))


def _windows(capture: Capture) -> Table:
    table = Table(box=None, header_style="bold")
    again = started_again(capture)
    for title in (
        *(("start",) if again else ()),
        *("concur-\nrency", "requests", "tokens/s", "latency\np50 ms"),
        *("batch", "step ms", "accept\nlength", "graph"),
    ):
        table.add_column(title, justify="right")
    for window in capture.windows:
        latencies = sorted(request.latency_ms for request in window.requests if not request.error)
        batch = typical(window)
        steps = ("-",) * 4
        if batch is not None:
            steps = (str(batch.batch_size), f"{batch.period_ms.mean:.2f}", accept_length(batch), graphs(batch))
        table.add_row(
            *((str(window.repeat + 1),) if again else ()),
            "-" if window.concurrency is None else str(window.concurrency),
            str(len(window.requests)),
            "-" if window.throughput is None else f"{window.throughput:.1f}",
            f"{latencies[len(latencies) // 2]:.0f}" if latencies else "-",
            *steps,
        )
    return table


def started_again(capture: Capture) -> bool:
    """Whether the server was started more than once."""
    return any(window.repeat for window in capture.windows)


def typical(window: Window) -> BatchStats | None:
    """The batch size at which most of a window's steps ran, on its first rank."""
    batches = window.ranks[0].batches if window.ranks else []
    return max((batch for batch in batches if batch.count), key=lambda batch: batch.count, default=None)


def parts(batch: BatchStats) -> str:
    """`draft 2.4 + verify 5.0 + draft-extend 1.3 + gap 0.7`, each part's share of the period in ms."""
    shares: dict[str, float] = {}
    for part in batch.parts:
        shares[part.phase] = shares.get(part.phase, 0.0) + share_ms(part, batch)
    order = ["draft", "verify", "draft_extend", "decode"]
    words = [f"{PART_NAMES.get(phase, phase)} {shares[phase]:.2f}" for phase in order if phase in shares]
    if batch.gap_ms is not None:
        words.append(f"gap {batch.gap_ms.mean:.2f}")
    return " + ".join(words)


def share_ms(part: PhaseStats, batch: BatchStats) -> float:
    """A part's share of the mean period, on the period's own clock."""
    measured = part.device_ms if batch.period_ms.method == "cuda_event" and part.device_ms else part.host_ms
    return measured.mean * part.count / batch.count if measured else 0.0


def accept_length(batch: BatchStats) -> str:
    """The mean accept length, bonus token included."""
    accept = batch.accept
    return f"{accept.tokens / accept.passes:.2f}" if accept and accept.passes else "-"


def graphs(batch: BatchStats) -> str:
    """Which phases ran as graphs: `all`, `none`, or their names."""
    known = {part.phase: part.graph for part in batch.parts if part.graph is not None}
    if not known:
        return "?"
    used = [PART_NAMES.get(phase, phase) for phase, graph in known.items() if graph]
    return "none" if not used else "all" if len(used) == len(known) else ", ".join(used)


def main_refusals(capture: Capture) -> list[Refusals]:
    """One refusal a phase of a step: the one that decided most often."""
    chosen: dict[str, Refusals] = {}
    for one in refusals(capture):
        if one.denial.decides and one.denial.phase != "extend":
            chosen.setdefault(one.denial.phase, one)
    return list(chosen.values())


def as_json(capture: Capture) -> dict[str, Any]:
    """The same, for machines."""
    return {
        "arm": capture.arm,
        "status": capture.status,
        "release": capture.server.release,
        "ranks_expected": capture.instrumentation.ranks_expected,
        "ranks_seen": sum(rank.seen for rank in capture.instrumentation.ranks),
        "windows": [
            {
                "start": window.repeat + 1,
                "concurrency": window.concurrency,
                "throughput_tokens_per_s": window.throughput,
                "batches": [
                    {
                        "batch_size": batch.batch_size,
                        "kind": batch.kind,
                        "steps": batch.count,
                        "period_ms": batch.period_ms.mean,
                        "accept_length": batch.accept.tokens / batch.accept.passes
                        if batch.accept and batch.accept.passes
                        else None,
                    }
                    for batch in (window.ranks[0].batches if window.ranks else [])
                ],
            }
            for window in capture.windows
        ],
        "denials": [one.line for one in main_refusals(capture)],
        "problems": [problem.message for problem in capture.problems],
    }

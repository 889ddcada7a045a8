"""Captures with everything a report can show, and the raw steps that belong to one."""

from __future__ import annotations

import random
from pathlib import Path

from eaglediag.capture.model import Capture, CapturedGraphs, Collective, Denial, Frame, Gpu, Phase, Rank
from eaglediag.probes.agents import Rows
from eaglediag.probes.run import write_steps
from eaglediag.reports.steps_file import COLUMNS
from tests.factories import START, capture, cycle, decode, denial, gpu


def full_pair() -> tuple[Capture, Capture]:
    """Two ranks, three batch sizes, a denied graph with its source, throttled GPUs, collectives."""
    eager = {"draft": False, "verify": False, "draft_extend": False}
    baseline = capture(
        "baseline", {1: decode(4.2), 4: decode(4.6), 12: decode(15.1, graph={"decode": False})}, seed=1, tp=2
    )
    eagle = capture(
        "eagle",
        {1: cycle(5.2, accept_length=2.2), 4: cycle(5.9, accept_length=2.2), 12: cycle(45.2, graph=eager)},
        seed=2,
        tp=2,
        denials=[explained(), denial("draft", 12, {0: 300, 1: 300}), denial("draft_extend", 12)],
        gpus=[throttled(0), throttled(1)],
    )
    for one in (baseline, eagle):
        phase: Phase = "verify" if one is eagle else "decode"
        one.server.captured[phase] = CapturedGraphs(sizes=[1, 2, 4, 8], tokens_per_request=3 if one is eagle else 1)
        for number, window in enumerate(one.windows):
            window.started = START + 30 * number
            for rank in window.ranks:
                for stats in rank.batches:
                    stats.blocks.t = [window.started + i for i in range(len(stats.blocks.t))]
                rank.collectives = collectives(in_graph=window.concurrency != 12, speculative=one is eagle)
    return baseline, eagle


def explained() -> Denial:
    """A denial led from the gate's return to the leaf, with the lines around it."""
    one = denial("verify", 12, {0: 1234, 1: 1230})
    leaf = one.frames[0]
    gate = Frame(
        file=leaf.file,
        line=430,
        function=leaf.function,
        text="return is_bs_supported and is_dp_ok",
        shown="False and ?",
    )
    leaf.source = [
        "410         cuda_graph_bs = forward_batch.batch_size",
        "411         is_bs_supported = (",
        "412             cuda_graph_bs <= self.max_bs",
        "413         )",
    ]
    one.frames = [gate, leaf]
    return one


def throttled(index: int) -> Gpu:
    """A GPU at its power cap half of the time."""
    one = gpu(index, samples=90)
    one.series.reasons = [0x4 if 30 <= i < 60 else 0 for i in range(90)]
    one.series.sm_mhz = [1455.0 + 10 * index if 30 <= i < 60 else 1980.0 for i in range(90)]
    return one


def collectives(*, in_graph: bool, speculative: bool) -> list[Collective]:
    """65 all-reduces a target pass, 3 a draft pass."""
    phases = {"verify": 65, "draft": 3, "draft_extend": 3} if speculative else {"decode": 65}
    return [
        Collective.model_validate(
            {"phase": phase, "backend": backend, "operation": operation, "in_graph": in_graph, "calls": calls * 10,
             "steps": 10, "calls_per_step": float(calls), "bytes_per_step": 8192.0}
        )
        for phase, count in phases.items()
        for backend, operation, calls in (("pynccl" if in_graph else "torch.distributed", "all_reduce", count),
                                          ("custom", "all_gather", 1))
    ]  # fmt: skip


def raw_rows(rank: int = 0, steps: int = 50, clock: str = "host_clock", batch: int = 4, window: int = 0) -> Rows:
    """Eager cycles of four requests, as an agent would send them."""
    generator = random.Random(window)
    rows: list[list[object]] = []
    at = 1_000_000_000_000 + window * 60_000_000_000
    on_device = clock == "cuda_event"
    for step in range(1, steps + 1):
        begin, spent = at, 50_000
        for phase, ms in (("draft", 1.0), ("verify", 5.0), ("draft_extend", 0.6)):
            host = int(1e6 * ms * (1 + 0.05 * generator.random()))
            device = round(host / 1e3 * 1.1, 1) if on_device else None
            rows.append(["phase", step, phase, batch, batch * 3, False, at + spent, host, device, None, None, None])
            spent += host + 20_000
            if phase == "verify":
                lengths = [generator.randint(1, 3) for _ in range(batch)]
                rows.append(["accept", step, "verify", batch, None, None, at + spent, None, None, None, None, lengths])
        period = spent + 400_000
        device_period = round(period / 1e3, 1) if on_device else None
        whole = round(spent / 1e3, 1) if on_device else None
        rows.append(
            ["step", step, "cycle", batch, None, False, begin, spent, whole, period if step < steps else None,
             device_period if step < steps else None, None]
        )  # fmt: skip
        at += period
    offset = int(START * 1e9) - 1_000_000_000_000
    return Rows(rank=rank, clock=clock, columns=list(COLUMNS), epoch_minus_perf_ns=offset, rows=rows, dropped=0)


def with_steps(folder: Path, recorded: list[tuple[str, Rows]]) -> tuple[Capture, Path, Path]:
    """(a capture whose windows are those rows summed up, its steps file, where the capture would be written)."""
    from eaglediag.probes.aggregate import rank_window

    _, eagle = full_pair()
    by_window: dict[str, list[Rows]] = {}
    for window, rows in recorded:
        by_window.setdefault(window, []).append(rows)
    eagle.windows = [
        one.model_copy(update={"id": name, "ranks": [rank_window(rows) for rows in found]})
        for one, (name, found) in zip(eagle.windows, by_window.items(), strict=False)
    ]
    eagle.instrumentation.ranks = [Rank(rank=rows.rank) for _, rows in recorded]
    steps = folder / "eagle.steps.jsonl.gz"
    write_steps(recorded, steps)
    eagle.steps_file = steps.name
    return eagle, steps, folder / "eagle.json"

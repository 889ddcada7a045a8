"""Step records of real servers on H200s, turned into captures (tests/data/h200/README.md says what was run).

The records hold both servers, which were loaded in turn: plain decode forwards of the target belong to the baseline,
cycles to EAGLE-3. Parts are GPU times, a period is the time between the ends of two like steps. The runs are short, so
a block is a tenth of a second and not a whole one.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from eaglediag.capture.model import (
    AcceptStats,
    BatchStats,
    Blocks,
    Capture,
    Denial,
    Frame,
    Instrumentation,
    ModelShape,
    Phase,
    PhaseStats,
    Rank,
    RankWindow,
    Server,
    Source,
    Speculation,
    Window,
)
from tests.factories import distribution

STEPS = Path(__file__).parent / "data" / "h200" / "h200x1-eagle3-steps.jsonl.gz"
BLOCK_S = 0.1
#: A longer pause between two steps is idleness, a first compilation, or another batch's turn.
PAUSE_S = 0.1
ACCEPT_LENGTH = 2
PHASES: dict[str, Phase] = {"draft": "draft", "verify": "verify", "_draft_extend_for_decode": "draft_extend"}


@dataclass(frozen=True)
class Step:
    end: float
    batch_size: int
    graph: bool
    parts: dict[Phase, float]


def captures() -> tuple[Capture, Capture]:
    """The baseline and the EAGLE-3 arm of SGLang 0.5.14 on one H200, accept length pinned to 2."""
    with gzip.open(STEPS, "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    timed = sorted((record for record in records if "ts" in record), key=lambda record: record["ts"])
    decode = [
        Step(record["ts"], record["bs"], record["graph"], {"decode": record["gpu_ms"]})
        for record in timed
        if record["ph"] == "forward" and record["mode"] == "2" and not record["draft"]
    ]
    return _capture("baseline", decode, []), _capture("eagle", list(_cycles(timed)), list(_denials(records)))


def _cycles(timed: list[dict[str, Any]]) -> Iterator[Step]:
    parts: dict[Phase, float] = {}
    verify: dict[str, Any] | None = None
    for record in timed:
        if record["ph"] in PHASES:
            parts[PHASES[record["ph"]]] = record["gpu_ms"]
        elif record["ph"] == "forward" and record["mode"] == "5":
            verify = record
        elif record["ph"] == "cycle":
            if verify is not None and len(parts) == len(PHASES):
                yield Step(record["ts"], verify["bs"], verify["graph"], parts)
            parts, verify = {}, None


def _denials(records: list[dict[str, Any]]) -> Iterator[Denial]:
    counts: dict[tuple[str, int], int] = defaultdict(int)
    values: dict[tuple[str, int], dict[str, str]] = {}
    for record in records:
        if record["ph"] == "gate" and record["mode"] == "5":
            counts[record["label"], record["bs"]] += 1
            values[record["label"], record["bs"]] = record["vals"]
    for (label, size), count in counts.items():
        known = values[label, size]
        names = ("cuda_graph_bs", "self.max_bs")
        shown = " <= ".join(known[name] for name in names)
        frame = Frame(
            file=f"sglang/srt/model_executor/runner/{label}.py",
            line=461,
            function="DecodeCudaGraphRunner.can_run_graph",
            text=" <= ".join(names),
            shown=shown,
            values={name: known[name] for name in names},
        )
        yield Denial(phase="verify", batch_size=size, gate=frame.function, frames=[frame], counts={0: count})


def _capture(arm: str, steps: list[Step], denials: list[Denial]) -> Capture:
    speculative = arm == "eagle"
    by_size: dict[int, list[tuple[float, Step]]] = defaultdict(list)
    for before, step in pairwise(steps):
        if step.batch_size == before.batch_size and step.end - before.end < PAUSE_S:
            by_size[step.batch_size].append((1000 * (step.end - before.end), step))
    windows = [
        Window(
            id=f"c{size}",
            concurrency=size,
            started=periods[0][1].end,
            duration_s=periods[-1][1].end - periods[0][1].end,
            ranks=[RankWindow(rank=0, batches=[stats], phases=list(stats.parts))],
        )
        for size, periods in sorted(by_size.items())
        if len(periods) > 30
        for stats in [_batch(size, periods, speculative)]
    ]
    return Capture(
        tool_version="0.1.0",
        created=steps[0].end,
        arm=arm,
        source=Source(kind="import", files=[STEPS.name]),
        server=Server(
            release="0.5.14",
            model=ModelShape(architecture="LlamaForCausalLM", layers=32),
            speculation=Speculation(
                algorithm="EAGLE3", num_steps=2, topk=1, num_draft_tokens=3, simulated_accept_length=2.0
            )
            if speculative
            else None,
            device="cuda",
        ),
        instrumentation=Instrumentation(route="none", ranks_expected=1, ranks=[Rank(rank=0, clock="cuda_event")]),
        windows=windows,
        denials=denials,
    )


def _batch(size: int, periods: list[tuple[float, Step]], speculative: bool) -> BatchStats:
    phases = list(periods[0][1].parts)
    blocks = Blocks(parts_ms={phase: [] for phase in phases})
    rows: dict[int, list[tuple[float, Step]]] = defaultdict(list)
    for period, step in periods:
        rows[int(step.end / BLOCK_S)].append((period, step))
    for number, row in sorted(rows.items()):
        blocks.t.append(number * BLOCK_S)
        blocks.steps.append(len(row))
        blocks.period_ms.append(sum(period for period, _ in row))
        blocks.passes.append(size * len(row) if speculative else 0)
        blocks.tokens.append(ACCEPT_LENGTH * size * len(row) if speculative else 0)
        for phase in phases:
            blocks.parts_ms[phase].append(sum(step.parts[phase] for _, step in row))
    count = len(periods)
    graph = periods[0][1].graph
    passes = sum(blocks.passes)
    return BatchStats(
        batch_size=size,
        kind="cycle" if speculative else "decode",
        count=count,
        period_ms=distribution(sum(blocks.period_ms) / count, count),
        parts=[
            PhaseStats(
                phase=phase,
                batch_size=size,
                graph=graph,
                count=count,
                device_ms=distribution(sum(blocks.parts_ms[phase]) / count, count),
            )
            for phase in phases
        ],
        accept=AcceptStats(passes=passes, tokens=ACCEPT_LENGTH * passes, histogram=[0, passes, 0])
        if speculative
        else None,
        blocks=blocks,
    )

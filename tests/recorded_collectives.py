"""Collectives of a real EAGLE-3 server on two H200s (TP 2, NCCL forced) as a capture: launched ones and in graphs."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from eaglediag.capture.model import (
    Capture,
    Collective,
    Instrumentation,
    ModelShape,
    Phase,
    Rank,
    RankWindow,
    Server,
    Source,
    Speculation,
    Window,
)

STEPS = Path(__file__).parent / "data" / "h200" / "h200x2-eagle3-nccl-steps.jsonl.gz"
PHASES: dict[str, Phase] = {"draft": "draft", "verify": "verify", "_draft_extend_for_decode": "draft_extend"}
RUNNERS: dict[str, Phase] = {
    "EAGLEDraftExtendCudaGraphRunner": "draft_extend",
    "EAGLEDraftCudaGraphRunner": "draft",
    "DecodeCudaGraphRunner": "verify",
}
#: A capture runs its function three times; two are warm-ups and not recorded in the graph.
RUNS = 3


def capture() -> Capture:
    """Two windows: batch 1 with graphs, batch 12 without."""
    with gzip.open(STEPS, "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    captured = {_runner(record): record["coll"] for record in records if record["ph"] == "capture"}
    launched: dict[Phase, list[dict[str, int]]] = defaultdict(list)
    for record in records:
        if record["ph"] in PHASES and record.get("coll"):
            launched[PHASES[record["ph"]]].append(record["coll"])
    inside = [
        _collective(phase, 1, kind, calls // RUNS, 1, in_graph=True)
        for phase, counts in captured.items()
        for kind, calls in _backends(counts)
    ]
    eager = [
        _collective(phase, 12, kind, sum(one.get(kind, 0) for one in passes), len(passes), in_graph=False)
        for phase, passes in launched.items()
        for kind, _ in _backends(passes[0])
    ]
    start = min(record["ts"] for record in records if "ts" in record)
    return Capture(
        tool_version="0.1.0",
        created=start,
        arm="eagle",
        source=Source(kind="import", files=[STEPS.name]),
        server=Server(
            release="0.5.14",
            model=ModelShape(architecture="LlamaForCausalLM", layers=32),
            speculation=Speculation(algorithm="EAGLE3", num_steps=2, topk=1, num_draft_tokens=3),
            device="cuda",
            tp=2,
        ),
        instrumentation=Instrumentation(
            route="none", ranks_expected=2, ranks=[Rank(rank=rank, tp=rank, clock="cuda_event") for rank in range(2)]
        ),
        windows=[
            Window(
                id=f"c{size}",
                concurrency=size,
                started=start + 10 * number,
                duration_s=10.0,
                ranks=[RankWindow(rank=0, collectives=collectives)],
            )
            for number, (size, collectives) in enumerate(((1, inside), (12, eager)))
        ],
    )


def _runner(record: dict[str, Any]) -> Phase:
    return next(phase for name, phase in RUNNERS.items() if name in record["args"])


def _backends(counts: dict[str, int]) -> list[tuple[str, int]]:
    """Without the group's own wrappers, which count every call a second time."""
    return [(kind, calls) for kind, calls in counts.items() if not kind.startswith("group.")]


def _collective(phase: Phase, size: int, kind: str, calls: int, steps: int, *, in_graph: bool) -> Collective:
    backend, _, operation = kind.partition(".")
    return Collective(
        phase=phase,
        batch_size=size,
        backend=backend,
        operation=operation,
        in_graph=in_graph,
        calls=calls,
        steps=steps,
        calls_per_step=calls / steps,
    )

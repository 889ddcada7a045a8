"""Ten minutes on eight ranks fit into a capture of less than 5 MB."""

from __future__ import annotations

import random
from pathlib import Path

from eaglediag.capture import store
from eaglediag.capture.model import Capture, Instrumentation, Request, Source, Window
from eaglediag.probes.agents import Rows
from eaglediag.probes.aggregate import rank_window
from eaglediag.probes.payload.recorder import COLUMNS

CYCLE_NS = 30_000_000
SECONDS = 200


def rows(rank: int, batches: int) -> Rows:
    """Cycles of 30 ms for 200 s at batch sizes that wander, as at the end of a window."""
    generator = random.Random(rank)
    recorded: list[list[object]] = []
    now, batch = 0, batches
    for step in range(SECONDS * 1_000_000_000 // CYCLE_NS):
        if step % 40 == 0:
            batch = max(1, min(batches, batch + generator.choice((-1, 0, 1))))
        for phase, share, tokens in (
            ("draft", 0.2, batch),
            ("verify", 0.5, 3 * batch),
            ("draft_extend", 0.1, 3 * batch),
        ):
            host = int(CYCLE_NS * share * generator.uniform(0.9, 1.1))
            recorded.append(["phase", step, phase, batch, tokens, batch <= 8, now, host, host / 1000, None, None, None])
        recorded.append(
            ["step", step, "cycle", batch, None, None, now, CYCLE_NS, CYCLE_NS / 1000, CYCLE_NS, CYCLE_NS / 1000, None]
        )
        lengths = [generator.randint(1, 3) for _ in range(batch)]
        recorded.append(["accept", step, "verify", batch, None, None, now, None, None, None, None, lengths])
        now += CYCLE_NS
    return Rows(rank, "cuda_event", 0, 0, list(COLUMNS), recorded)


def test_ten_minutes_on_eight_ranks(tmp_path: Path) -> None:
    windows = []
    for concurrency in (1, 4, 12):
        ranks = [rank_window(rows(rank, concurrency)) for rank in range(8)]
        requests = [Request(completion_tokens=128, latency_ms=1234.567, prompt_tokens=64, verify_passes=60)] * 400
        windows.append(
            Window(
                id=f"c{concurrency}",
                concurrency=concurrency,
                started=0.0,
                duration_s=SECONDS,
                ranks=ranks,
                requests=requests,
            )
        )
    capture = Capture(
        tool_version="0",
        created=0.0,
        arm="eagle",
        source=Source(kind="probe"),
        instrumentation=Instrumentation(route="plugin"),
        windows=windows,
    )
    path = tmp_path / "eagle.json"
    store.write(capture, path)
    assert path.stat().st_size < 5_000_000
    assert store.read(path) == capture

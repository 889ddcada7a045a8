"""Rows of one rank and window, summed up as the capture holds them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, cast

from eaglediag.capture.model import (
    AcceptStats,
    BatchStats,
    Blocks,
    Distribution,
    Method,
    Phase,
    PhaseStats,
    RankWindow,
)
from eaglediag.probes.agents import Rows
from eaglediag.probes.collectives import add_collectives

#: Steps of about this long are summed into one block, the unit of resampling; in a short window less, so that there
#: are enough blocks to resample.
BLOCK_S = 1.0
SHORTEST_BLOCK_S = 0.2
BLOCKS = 16
PHASES = ("decode", "verify", "draft", "draft_extend", "extend", "idle")


@dataclass
class _Step:
    kind: str
    batch: int
    start_s: float
    graph: bool | None
    host_ms: float
    device_ms: float | None
    period_ms: float | None
    period_device_ms: float | None
    phases: list[dict[str, Any]] = field(default_factory=list)
    accept: list[int] = field(default_factory=list)


def distribution(values: Sequence[float], method: Method) -> Distribution:
    """Summarise at least one value, in milliseconds."""
    ordered = sorted(values)
    count = len(ordered)
    mean = sum(ordered) / count
    variance = sum((value - mean) ** 2 for value in ordered) / (count - 1) if count > 1 else 0.0

    def quantile(share: float) -> float:
        return ordered[min(count - 1, int(share * count))]

    return Distribution(
        count=count,
        mean=round(mean, 5),
        sd=round(sqrt(variance), 5),
        min=round(ordered[0], 5),
        p50=round(quantile(0.5), 5),
        p90=round(quantile(0.9), 5),
        p99=round(quantile(0.99), 5),
        max=round(ordered[-1], 5),
        method=method,
    )


def rank_window(recorded: Rows) -> RankWindow:
    """Sum up one rank's rows of one window."""
    steps = _steps(recorded)
    method: Method = "cuda_event" if recorded.clock == "cuda_event" else "host_clock"
    groups: dict[tuple[str, int], list[_Step]] = defaultdict(list)
    for step in steps.values():
        if step.kind in ("decode", "cycle"):
            groups[step.kind, step.batch].append(step)
    batches = [
        stats for (kind, batch), members in sorted(groups.items()) if (stats := _batch(kind, batch, members, method))
    ]
    window = RankWindow(
        rank=recorded.rank,
        batches=batches,
        phases=_phases(steps.values()),
        steps_recorded=len(steps),
        steps_dropped=recorded.dropped,
    )
    if recorded.collectives:
        add_collectives(window, recorded.collectives)
    return window


def _steps(recorded: Rows) -> dict[int, _Step]:
    """Rows joined by their step's number; parts whose step was cut off by the window's edge are left out."""
    steps: dict[int, _Step] = {}
    parts: dict[int, list[dict[str, Any]]] = defaultdict(list)
    accepted: dict[int, list[int]] = {}
    for values in recorded.rows:
        row = dict(zip(recorded.columns, values, strict=True))
        if row["row"] == "step":
            steps[row["step"]] = _Step(
                kind=row["phase"],
                batch=row["batch"] or 0,
                start_s=(row["start_ns"] + recorded.epoch_minus_perf_ns) / 1e9,
                graph=row["graph"],
                host_ms=row["host_ns"] / 1e6,
                device_ms=_scaled(row["device_us"], 1e3),
                period_ms=_scaled(row["period_ns"], 1e6),
                period_device_ms=_scaled(row["period_device_us"], 1e3),
            )
        elif row["row"] == "accept":
            accepted[row["step"]] = row["accept"]
        else:
            parts[row["step"]].append(row)
    for number, step in steps.items():
        step.phases = parts.get(number, [])
        step.accept = accepted.get(number, [])
        if step.kind == "decode":  # the step is its own only phase
            step.phases = [
                {"phase": "decode", "batch": step.batch, "tokens": step.batch, "graph": step.graph,
                 "host_ns": step.host_ms * 1e6, "device_us": None if step.device_ms is None else step.device_ms * 1e3}
            ]  # fmt: skip
    return steps


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _period(step: _Step, method: Method) -> float | None:
    return step.period_device_ms if method == "cuda_event" else step.period_ms


def _part_ms(row: dict[str, Any], method: Method) -> float | None:
    return _scaled(row["device_us"], 1e3) if method == "cuda_event" else float(row["host_ns"]) / 1e6


def _batch(kind: str, batch: int, members: list[_Step], method: Method) -> BatchStats | None:
    """Steps that have a period, at one batch size; None when there is none."""
    timed = [
        step for step in members
        if _period(step, method) is not None and all(_part_ms(row, method) is not None for row in step.phases)
    ]  # fmt: skip
    if not timed:
        return None
    periods = [cast(float, _period(step, method)) for step in timed]
    gaps = [
        period - sum(cast(float, _part_ms(row, method)) for row in step.phases)
        for period, step in zip(periods, timed, strict=True)
    ]
    lengths = [length for step in members for length in step.accept]
    return BatchStats(
        batch_size=batch,
        kind="cycle" if kind == "cycle" else "decode",
        count=len(timed),
        period_ms=distribution(periods, method),
        parts=_phase_stats(row for step in timed for row in step.phases),
        gap_ms=distribution(gaps, "derived"),
        accept=_accept(lengths) if kind == "cycle" and lengths else None,
        blocks=_blocks(timed, periods, method),
    )


def _accept(lengths: list[int]) -> AcceptStats:
    counts = Counter(lengths)
    return AcceptStats(
        passes=len(lengths),
        tokens=sum(lengths),
        histogram=[counts.get(length, 0) for length in range(1, max(counts) + 1)],
    )


def _blocks(timed: list[_Step], periods: list[float], method: Method) -> Blocks:
    blocks = Blocks()
    columns: dict[Phase, list[float]] = blocks.parts_ms
    origin: float | None = None
    span = sum(periods) / 1000
    length = min(BLOCK_S, max(SHORTEST_BLOCK_S, span / BLOCKS))
    for step, period in zip(timed, periods, strict=True):
        if origin is None or step.start_s - origin >= length:
            origin = step.start_s
            blocks.t.append(round(origin, 3))
            blocks.steps.append(0)
            blocks.period_ms.append(0.0)
            blocks.passes.append(0)
            blocks.tokens.append(0)
            for column in columns.values():
                column.append(0.0)
        blocks.steps[-1] += 1
        blocks.period_ms[-1] += period
        blocks.passes[-1] += len(step.accept)
        blocks.tokens[-1] += sum(step.accept)
        for row in step.phases:
            column = columns.setdefault(row["phase"], [0.0] * len(blocks.t))
            column[-1] += cast(float, _part_ms(row, method))
    blocks.period_ms = [round(value, 4) for value in blocks.period_ms]
    for phase, column in columns.items():
        columns[phase] = [round(value, 4) for value in column]
    return blocks


def _phases(steps: Iterable[_Step]) -> list[PhaseStats]:
    rows: list[dict[str, Any]] = []
    for step in steps:
        rows += step.phases
        if step.kind in ("extend", "idle") and not any(row["phase"] == step.kind for row in step.phases):
            rows.append(
                {"phase": step.kind, "batch": step.batch, "tokens": None, "graph": step.graph,
                 "host_ns": step.host_ms * 1e6, "device_us": None if step.device_ms is None else step.device_ms * 1e3}
            )  # fmt: skip
    return _phase_stats(rows)


def _phase_stats(rows: Iterable[dict[str, Any]]) -> list[PhaseStats]:
    groups: dict[tuple[str, int, bool | None], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["phase"] in PHASES:
            groups[row["phase"], row["batch"] or 0, row["graph"]].append(row)
    found = []
    for (phase, batch, graph), members in sorted(groups.items(), key=lambda item: (*item[0][:2], item[0][2] is True)):
        tokens = {row["tokens"] for row in members}
        device = [row["device_us"] / 1e3 for row in members if row["device_us"] is not None]
        found.append(
            PhaseStats(
                phase=cast(Phase, phase),
                batch_size=batch,
                tokens=tokens.pop() if len(tokens) == 1 else None,
                graph=graph,
                count=len(members),
                host_ms=distribution([row["host_ns"] / 1e6 for row in members], "host_clock"),
                device_ms=distribution(device, "cuda_event") if device else None,
            )
        )
    return found

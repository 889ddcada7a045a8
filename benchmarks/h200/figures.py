"""What the experiment's captures say, in tables that fit a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from eaglediag.capture.model import BatchStats, Capture, Gpu, Phase, PhaseStats, Window

PHASES: tuple[Phase, ...] = ("decode", "draft", "verify", "draft_extend")


def typical(window: Window) -> BatchStats | None:
    """The batch size that most steps of the lowest rank ran at."""
    batches = window.ranks[0].batches if window.ranks else []
    return max(batches, key=lambda batch: batch.count, default=None)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned, the first to the left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if not at else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def steps(captures: Iterable[Capture]) -> str:
    """By arm and window: tokens/s, the period and its parts on the device, the accept length, graph or eager."""
    rows = [
        [
            "arm",
            "window",
            "tokens/s",
            "batch",
            "period ms",
            *(f"{phase} ms" for phase in PHASES),
            "gap ms",
            "accept",
            "graph",
        ]
    ]
    for capture in captures:
        for window in capture.windows:
            batch = typical(window)
            if batch is None:
                rows.append([capture.arm, window.id, _number(window.throughput), *["-"] * (len(rows[0]) - 3)])
                continue
            parts = {part.phase: part for part in batch.parts}
            rows.append(
                [
                    capture.arm,
                    window.id,
                    _number(window.throughput),
                    str(batch.batch_size),
                    f"{batch.period_ms.mean:.3f}",
                    *(_time(parts.get(phase)) for phase in PHASES),
                    f"{batch.gap_ms.mean:.3f}" if batch.gap_ms else "-",
                    f"{batch.accept.tokens / batch.accept.passes:.2f}" if batch.accept else "-",
                    _graphs(batch.parts),
                ]
            )
    return table(rows)


def denials(captures: Iterable[Capture]) -> str:
    """Which condition denied which phase, with its values."""
    lines = []
    for capture in captures:
        for denial in capture.denials:
            if denial.decides and denial.phase in PHASES:
                why = denial.reason
                if denial.frames:
                    leaf = denial.frames[-1]
                    why = f"{leaf.text} ({leaf.shown}), {leaf.file.rsplit('/', 1)[-1]}:{leaf.line}"
                times = sum(denial.counts.values())
                lines.append(f"{capture.arm}: {denial.phase} at batch {denial.batch_size}, {times} times: {why}")
    return "\n".join(lines) or "no phase was denied a graph"


def collectives(captures: Iterable[Capture]) -> str:
    """Calls per pass by backend, as counted; beside them what the profiler saw of the same phase and batch size."""
    rows = [["arm", "window", "phase", "batch", "counted per pass", "profiler per pass"]]
    for capture in captures:
        profiled = {(profile.phase, profile.batch_size): profile for profile in capture.profiles}
        for window in capture.windows:
            batch = typical(window)
            for rank in window.ranks[:1]:
                for phase in PHASES:
                    size = batch.batch_size if batch else None
                    if phase not in {stats.phase for stats in rank.phases}:
                        continue
                    found = [one for one in rank.collectives if one.phase == phase and one.batch_size == size]
                    counted = ", ".join(
                        f"{one.calls_per_step:g} {one.backend} {one.operation}{' in graph' if one.in_graph else ''}"
                        for one in found
                    )
                    silent = "0" if phase in rank.collectives_counted else "not counted"
                    seen = profiled.get((phase, size))
                    kernels = (
                        "-"
                        if seen is None
                        else ", ".join(f"{n:g} {name}" for name, n in seen.collectives_per_step.items()) or "0"
                    )
                    rows.append([capture.arm, window.id, phase, str(size), counted or silent, kernels])
    return table(rows)


def profiles(captures: Iterable[Capture]) -> str:
    """Launches, busy time and idle gaps by phase, and the two ways to time a phase on the device."""
    rows = [
        [
            "arm",
            "phase",
            "batch",
            "passes",
            "kernels",
            "launches",
            "graphs",
            "busy ms",
            "span ms",
            "idle",
            "events ms",
            "kernels ms",
            "apart",
        ]
    ]
    for capture in captures:
        for profile in capture.profiles:
            events, kernels = profile.device_ms, profile.device_ms_by_kernels
            rows.append(
                [
                    capture.arm,
                    profile.phase,
                    str(profile.batch_size),
                    str(profile.steps),
                    f"{profile.kernels_per_step:.1f}",
                    f"{profile.launches_per_step:.1f}",
                    f"{profile.graph_launches_per_step:.1f}",
                    f"{profile.device_busy_ms:.3f}",
                    f"{profile.span_ms:.3f}",
                    f"{100 * (1 - profile.device_busy_ms / profile.span_ms):.0f} %" if profile.span_ms else "-",
                    "-" if events is None else f"{events:.3f}",
                    "-" if kernels is None else f"{kernels:.3f}",
                    "-" if not events or not kernels else f"{100 * (events / kernels - 1):+.1f} %",
                ]
            )
    return table(rows) if len(rows) > 1 else "no profiles"


def gpus(captures: Iterable[Capture]) -> str:
    """Clocks within the windows, what held them down, and the sampler's cost."""
    lines = []
    for capture in captures:
        for host in capture.hosts:
            for gpu in host.gpus:
                lines += [
                    f"{capture.arm} {window.id} GPU {gpu.index}: {_state(gpu, window)}" for window in capture.windows
                ]
                if gpu.unsupported:
                    lines.append(f"{capture.arm} GPU {gpu.index} does not offer: {', '.join(gpu.unsupported)}")
            cost = host.gpu_sampling
            if cost is not None:
                times = (
                    f"{cost.ms_per_sample} ms a sample, the first {cost.first_ms} ms, {cost.share_of_a_core} of a core"
                )
                lines.append(f"{capture.arm}: sampler at {cost.hz:g} Hz: {times}, {cost.samples} samples")
    return "\n".join(lines) or "no GPU samples"


def _state(gpu: Gpu, window: Window) -> str:
    end = window.started + window.duration_s
    inside = [at for at, t in enumerate(gpu.series.t) if window.started <= t <= end]
    clocks = sorted(mhz for at in inside if (mhz := gpu.series.sm_mhz[at]) is not None)
    watts = [power for at in inside if (power := gpu.series.power_w[at]) is not None]
    held = {name: ms for name, ms in gpu.throttled_ms.get(window.id, {}).items() if ms}
    state = "SM clock unknown"
    if clocks:
        state = f"SM clock {clocks[0]:.0f} to {clocks[-1]:.0f}, median {clocks[len(clocks) // 2]:.0f} MHz"
    return state + (f", at most {max(watts):.0f} W" if watts else "") + (f", held down, ms: {held}" if held else "")


def skew(captures: Iterable[Capture]) -> str:
    """How far apart ranks start a pass, and which starts last."""
    lines = []
    for capture in captures:
        for window in capture.windows:
            for one in window.rank_skew:
                last = ", ".join(f"rank {rank} {count}x" for rank, count in one.starts_last.items())
                apart = f"{one.skew_ms.p50:.3f} ms apart (median; p99 {one.skew_ms.p99:.3f})"
                lines.append(f"{capture.arm} {window.id}: {one.phase} starts {apart}, last to start: {last}")
    return "\n".join(lines) or "one rank: nothing to compare"


def _time(part: PhaseStats | None) -> str:
    time = None if part is None else part.device_ms or part.host_ms
    return "-" if time is None else f"{time.mean:.3f}"


def _graphs(parts: Sequence[PhaseStats]) -> str:
    return "".join(
        {True: "G", False: "e", None: "?"}[part.graph]
        for part in sorted(parts, key=lambda one: PHASES.index(one.phase) if one.phase in PHASES else 9)
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"

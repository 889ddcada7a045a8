"""The GPUs during a probe: a sampler on the host, started once the server is ready, and its rows for the capture."""

from __future__ import annotations

import json
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from eaglediag.capture.model import Gpu, GpuProcess, GpuSampling, GpuSeries, Window
from eaglediag.errors import HostError
from eaglediag.hosts.base import Host, Process
from eaglediag.probes.folder import RemoteFolder

#: Samples of all GPUs together that a capture holds; more are summed up in even stretches.
MAX_SAMPLES = 20_000
START_WITHIN_S = 15.0
STOP_WITHIN_S = 15.0


@dataclass
class Samples:
    """What one host's sampler wrote: its GPUs, and for each position in that list the rows and counters."""

    gpus: list[dict[str, Any]]
    rows: list[list[list[Any]]] = field(default_factory=list)
    counters: list[list[tuple[float, dict[str, float]]]] = field(default_factory=list)
    cost: dict[str, Any] | None = None
    unfinished: bool = True


@dataclass
class Sampling:
    """A host's GPUs as the capture has them; `refused` says why there are none."""

    gpus: list[Gpu] = field(default_factory=list)
    cost: GpuSampling | None = None
    refused: str = ""


class GpuSampler:
    """The sampler on one host. It ends with the connection, and what it cannot do it says in `stop`."""

    def __init__(self, host: Host, folder: RemoteFolder, python: str) -> None:
        self.host = host
        self.python = python
        self.script = f"{folder.path}/lib/eaglediag_payload/gpu_sampler.py"
        self.file = f"{folder.path}/gpu.jsonl"
        self._refused = ""
        self._process: Process | None = None

    def start(self, hz: float, ranks: Sequence[Mapping[str, Any]], environment: Mapping[str, str]) -> None:
        """Begin to sample the GPUs that these ranks (their agents' markers) work on; all GPUs when they do not say.

        `environment` is the launch command's. Raises HostError when the host is gone.
        """
        visible = next((rank["visible_gpus"] for rank in ranks if rank.get("visible_gpus") is not None), None)
        spec = {
            "hz": hz,
            "visible": visible if visible is not None else environment.get("CUDA_VISIBLE_DEVICES"),
            "used": [int(rank["gpu"]) for rank in ranks if rank.get("gpu") is not None] or None,
            "pids": [int(rank["pid"]) for rank in ranks],
            "path": environment.get("PYTHONPATH", ""),
        }
        process = self.host.popen([self.python, self.script, self.file, json.dumps(spec)])
        answer = _line(process, START_WITHIN_S)
        if answer.get("event") == "sampling":
            self._process = process
            return
        self._refused = str(answer.get("why") or f"the sampler said nothing: {_last_words(process)}")
        process.kill()
        process.__exit__(None, None, None)

    def stop(self, windows: Sequence[Window]) -> Sampling:
        """End sampling; the GPUs' state over time and in these windows, or why it is not known. Never raises."""
        process, self._process = self._process, None
        if process is None:
            return Sampling(refused=self._refused)
        try:
            with process:
                with suppress(OSError):
                    process.stdin.write(b"stop\n")
                    process.stdin.flush()
                try:
                    process.wait(STOP_WITHIN_S)
                except TimeoutError:
                    process.kill()
            samples = read(self.host.read_file(self.file).decode(errors="replace"))
        except HostError as error:
            return Sampling(refused=error.message)
        return sampled(samples, windows, self.host.label)


def read(text: str) -> Samples:
    """The sampler's file. One that was cut off keeps what it has."""
    lines = []
    for line in text.splitlines():
        with suppress(ValueError):
            lines.append(json.loads(line))
    samples = Samples(lines[0]["gpus"] if lines else [])
    samples.rows = [[] for _ in samples.gpus]
    samples.counters = [[] for _ in samples.gpus]
    for line in lines[1:]:
        if isinstance(line, list):
            samples.rows[line[0]].append(line[1:])
        elif "counters" in line:
            samples.counters[line["gpu"]].append((line["t"], line["counters"]))
        elif "cost" in line:
            samples.cost, samples.unfinished = line["cost"], False
            for gpu, closing in zip(samples.gpus, line["gpus"], strict=True):
                gpu.update(closing)
    return samples


def sampled(samples: Samples, windows: Sequence[Window], host: str) -> Sampling:
    """The capture's GPUs of one host, with their state over time and what held their clocks down in each window."""
    limit = MAX_SAMPLES // max(1, len(samples.gpus))
    gpus = []
    for known, rows, counters in zip(samples.gpus, samples.rows, samples.counters, strict=True):
        fields = {name: value for name, value in known.items() if name not in ("errors", "processes", "unsupported")}
        failed = [f"{what}: {why}" for what, why in known.get("errors", {}).items()]
        gpus.append(
            Gpu(
                **fields,
                host=host,
                processes=[GpuProcess(**process) for process in known.get("processes", [])],
                series=_series(rows, limit),
                throttled_ms={window.id: held for window in windows if (held := _held(counters, window))},
                unsupported=[*known.get("unsupported", []), *failed][:200],
            )
        )
    return Sampling(gpus, GpuSampling(**samples.cost) if samples.cost else None)


def merged_gpus(before: Sequence[Gpu], now: Sequence[Gpu]) -> list[Gpu]:
    """A host's GPUs over two turns: samples, throttled time and company of both, the description of the first."""
    found = {gpu.index: gpu for gpu in before}
    limit = MAX_SAMPLES // max(1, len(found.keys() | {gpu.index for gpu in now}))
    for gpu in now:
        known = found.get(gpu.index)
        if known is None:
            found[gpu.index] = gpu
            continue
        company = {process.pid: process for process in (*gpu.processes, *known.processes)}
        update = {
            "series": _series([*_rows(known.series), *_rows(gpu.series)], limit),
            "throttled_ms": known.throttled_ms | gpu.throttled_ms,
            "processes": list(company.values()),
            "unsupported": list(dict.fromkeys([*known.unsupported, *gpu.unsupported]))[:200],
        }
        found[gpu.index] = known.model_copy(update=update)
    return list(found.values())


def _rows(series: GpuSeries) -> Iterator[tuple[Any, ...]]:
    return zip(*(getattr(series, column) for column in GpuSeries.model_fields), strict=True)


def _series(rows: Sequence[Sequence[Any]], limit: int) -> GpuSeries:
    """Rows as columns, at most `limit`: a stretch becomes its mean, its worst P-state and all its reasons together."""
    stretch = -(-len(rows) // limit) if rows else 1
    series = GpuSeries()
    for start in range(0, len(rows), stretch):
        t, sm, memory, power, temperature, utilisation, pstate, reasons = zip(
            *rows[start : start + stretch], strict=True
        )
        series.t.append(round(sum(t) / len(t), 4))
        series.sm_mhz.append(_mean(sm))
        series.memory_mhz.append(_mean(memory))
        series.power_w.append(_mean(power))
        series.temperature_c.append(_mean(temperature))
        series.utilisation_percent.append(_mean(utilisation))
        series.pstate.append(max((value for value in pstate if value is not None), default=None))
        known = [value for value in reasons if value is not None]
        mask = 0
        for value in known:
            mask |= value
        series.reasons.append(mask if known else None)
    return series


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 2) if known else None


def _held(counters: list[tuple[float, dict[str, float]]], window: Window) -> dict[str, float]:
    """How far each cumulative counter rose within the window, in ms, between readings half a second apart.

    Empty when the counters do not cover the window: a rise that was not seen is not a rise of 0.
    """
    start, end = window.started, window.started + window.duration_s
    if len(counters) < 2 or not window.duration_s or counters[0][0] > start or counters[-1][0] < end:
        return {}
    names = set(counters[0][1]) & set(counters[-1][1])
    held = {name: _at(counters, name, end) - _at(counters, name, start) for name in sorted(names)}
    return {name: round(max(0.0, value), 2) for name, value in held.items()}


def _at(counters: list[tuple[float, dict[str, float]]], name: str, t: float) -> float:
    """A counter's value at `t`, on a straight line between the readings around it."""
    known = [(at, values[name]) for at, values in counters if name in values]
    position = bisect_left(known, (t,))
    if position == 0:
        return known[0][1]
    if position == len(known):
        return known[-1][1]
    (before, low), (after, high) = known[position - 1], known[position]
    return low + (high - low) * (t - before) / (after - before) if after > before else high


def _line(process: Process, timeout: float) -> dict[str, Any]:
    """The sampler's first answer; empty when there is none."""
    answer: dict[str, Any] = {}

    def wait() -> None:
        with suppress(ValueError, OSError, HostError):
            answer.update(json.loads(process.stdout.readline()))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(timeout)
    return answer


def _last_words(process: Process) -> str:
    try:
        process.wait(1.0)
    except (TimeoutError, HostError):
        return "it does not answer"
    lines = process.stderr.read().decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it printed nothing"

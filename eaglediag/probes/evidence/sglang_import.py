"""A whole SGLang server log as evidence: streams it through `sglang_log` and keeps bounded sums of what it says."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pydantic import JsonValue

from eaglediag.capture.model import CapturedGraphs, Phase
from eaglediag.probes.evidence.decode_series import DecodeSeries
from eaglediag.probes.evidence.sglang_log import (
    DECODE,
    PREFILL,
    CaptureBegin,
    CaptureEnd,
    CaptureSizes,
    DecodeLine,
    Event,
    GraphDisabled,
    PrefillLine,
    Rank,
    Ready,
    ServerArgs,
    SpeculationChanged,
    StartupTimings,
    Trouble,
    Unreadable,
    WeightsLoaded,
    decode_fields,
    parse_line,
    prefill_running,
    prefix,
)

#: Unreadable lines kept to be shown; the rest are counted.
KEPT_LINES = 1000


@dataclass
class SglangLog:
    """What a log said. `series` is by writer (a container or process named before the prefix) and rank."""

    series: dict[tuple[str, Rank], DecodeSeries] = field(default_factory=dict)
    arguments: list[dict[str, JsonValue]] = field(default_factory=list)
    captured: dict[Phase, CapturedGraphs] = field(default_factory=dict)
    startup: StartupTimings | None = None
    models: list[str] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)
    started: float | None = None
    remarks: Counter[str] = field(default_factory=Counter)
    trouble: Counter[str] = field(default_factory=Counter)
    lines: int = 0
    unreadable: int = 0
    unreadable_lines: list[str] = field(default_factory=list)
    _writers: dict[tuple[str, str], DecodeSeries] = field(default_factory=dict)

    def feed(self, text: str) -> None:
        """Take a piece of the log that ends where a line ends."""
        lines = text.split("\n")
        self.lines += len(lines) - (not lines[-1])
        for line in lines:
            # Almost every line is one of these two or of no use: keep what is done for each of them small.
            start = line.find(DECODE)
            if start >= 0:
                found = decode_fields(line, start)
                if found is not None and (found[1] == len(line) or line.find("[", found[1]) < 0):
                    running, token, accept_len, accept_rate, graph, throughput, _ = found[0]
                    self._writer(line, start).decode(
                        line[:start],
                        int(running),
                        int(token),
                        None if accept_len is None else float(accept_len),
                        None if accept_rate is None else float(accept_rate),
                        graph,
                        float(throughput),
                    )
                    continue
            elif (start := line.find(PREFILL)) >= 0:
                beside = prefill_running(line, start)
                if beside is not None:
                    self._writer(line, start).prefill(beside)
                    continue
            elif ' HTTP/1.1" ' in line:
                continue
            for event in parse_line(line):
                self.take(event)

    def _writer(self, line: str, start: int) -> DecodeSeries:
        """The series of the rank that wrote a line; found by what its prefix holds beside the time to the second."""
        bracket = line.rfind("[", 0, start)
        key = (line[:bracket], line[bracket + 20 : start]) if bracket >= 0 else ("", line[:start])
        found = self._writers.get(key)
        if found is None:
            stamp, source = prefix(line, start)
            found = self._series(source, stamp.rank)
            if len(self._writers) > 4096:
                self._writers.clear()
            self._writers[key] = found
        return found

    def finish(self) -> None:
        """The log is over."""
        for series in self.series.values():
            series.finish()

    def take(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, DecodeLine):
            self._series(event.source, event.stamp.rank).decode(
                event.stamp.time,
                event.running,
                event.token,
                event.accept_len,
                event.accept_rate,
                None if event.graph is None else str(event.graph),
                event.gen_throughput,
            )
        elif isinstance(event, PrefillLine):
            self._series(event.source, event.stamp.rank).prefill(event.running)
        elif isinstance(event, Unreadable):
            self.unreadable += 1
            if len(self.unreadable_lines) < KEPT_LINES:
                self.unreadable_lines.append(event.text[:2000])
        elif isinstance(event, ServerArgs):
            self.started = event.stamp.time if self.started is None else self.started
            if len(self.arguments) < 16:
                self.arguments.append(event.arguments)
        elif isinstance(event, (CaptureBegin, CaptureSizes, CaptureEnd)):
            self._capture(event)
        elif isinstance(event, StartupTimings):
            self.startup = event
        elif isinstance(event, Ready):
            if event.stamp.time is not None and len(self.ready) < 16:
                self.ready.append(event.stamp.time)
        elif isinstance(event, WeightsLoaded):
            if event.model and event.model not in self.models and len(self.models) < 16:
                self.models.append(event.model)
        elif isinstance(event, (GraphDisabled, SpeculationChanged)):
            if len(self.remarks) < 200 or event.text in self.remarks:
                self.remarks[event.text[:1000]] += 1
        elif isinstance(event, Trouble) and (len(self.trouble) < 200 or event.text in self.trouble):
            self.trouble[event.text[:1000]] += 1

    def _series(self, source: str, rank: Rank) -> DecodeSeries:
        return self.series.setdefault((source, rank), DecodeSeries())

    def _capture(self, event: CaptureBegin | CaptureSizes | CaptureEnd) -> None:
        if event.stamp.rank.tp or event.stamp.rank.dp:
            return
        if isinstance(event, CaptureSizes):
            phase: Phase = "decode" if event.unit == "requests" else "extend"
            self.captured.setdefault(phase, CapturedGraphs()).sizes = event.sizes
            self.captured[phase].unit = "tokens" if event.unit == "tokens" else "requests"
            return
        if event.phase == "extend" and event.draft:
            return
        graphs = self.captured.setdefault(event.phase, CapturedGraphs())
        if isinstance(event, CaptureBegin):
            graphs.sizes = event.sizes if event.sizes is not None else graphs.sizes
            graphs.unit = "tokens" if event.unit == "tokens" else "requests"
            graphs.backend, graphs.tokens_per_request = event.backend, event.tokens_per_request
        else:
            graphs.sizes = event.sizes if event.sizes is not None else graphs.sizes
            graphs.seconds, graphs.memory_gb = event.seconds, event.memory_gb

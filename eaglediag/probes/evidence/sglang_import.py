"""A whole SGLang server log as evidence: streams it through `sglang_log` and keeps bounded sums of what it says."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pydantic import JsonValue

from eaglediag.capture.model import CapturedGraphs, Phase
from eaglediag.probes.evidence.decode_series import DecodeSeries
from eaglediag.probes.evidence.exceptions import OPENING, Exceptions
from eaglediag.probes.evidence.sglang_log import (
    DECODE,
    PREFILL,
    USUAL_DECODE_LINE,
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
    parse_line,
    prefill_running,
    prefix,
)

#: Unreadable lines kept to be shown; the rest are counted.
KEPT_LINES = 1000
#: Earlier launches that are remembered.
MAX_LAUNCHES = 20
#: Prefixes remembered. A log with milliseconds has a new one on every line, and then this is of no use.
MAX_WRITERS = 4096
_PER_START = frozenset(
    ("node_rank", "random_seed", "host", "port", "nccl_port", "dist_init_addr", "grpc_port", "numa_node")
)


@dataclass
class Launch:
    """One start of the server. `series` is by writer (a container or process named before the prefix) and rank."""

    arguments: dict[str, JsonValue] = field(default_factory=dict)
    started: float | None = None
    ready: float | None = None
    models: list[str] = field(default_factory=list)
    captured: dict[Phase, CapturedGraphs] = field(default_factory=dict)
    startup: StartupTimings | None = None
    series: dict[tuple[str, Rank], DecodeSeries] = field(default_factory=dict)
    remarks: Counter[str] = field(default_factory=Counter)
    trouble: Counter[str] = field(default_factory=Counter)

    def finish(self) -> None:
        """No more lines of this launch will come."""
        for one in self.series.values():
            one.finish()
        self.series = {key: one for key, one in self.series.items() if one.lines}


@dataclass
class SglangLog:
    """A log that is being read, launch by launch: a restart with other arguments begins a new one."""

    launches: list[Launch] = field(default_factory=lambda: [Launch()])
    lines: int = 0
    unreadable: int = 0
    unreadable_lines: list[str] = field(default_factory=list)
    _writers: dict[str, DecodeSeries] = field(default_factory=dict)
    _exceptions: Exceptions = field(default_factory=Exceptions)

    def feed(self, text: str) -> None:
        """Take a piece of the log that ends where a line ends."""
        lines = text.split("\n")
        self.lines += len(lines) - (not lines[-1])
        usual, writers = USUAL_DECODE_LINE.match, self._writers
        for line in lines:
            # Almost every line is one of these two or of no use: what is done for each decides how long a log takes.
            start = line.find(DECODE)
            if start >= 0:
                found = usual(line, start)
                if found is not None and (len(line) - found.end() < 24 or line.find("[", found.end()) < 0):
                    running, token, accept_len, accept_rate, graph, throughput = found.groups()
                    series = writers.get(line[20:start]) if line[:3] == "[20" else None
                    (series or self._writer(line, start)).decode(
                        line[:start],
                        int(running),
                        int(token),
                        None if accept_len is None else float(accept_len),
                        accept_rate,
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
            if raised := self._exceptions.take(line):
                _count(self.launches[-1].trouble, raised)
                continue
            for event in parse_line(line):
                self.take(event)

    def _writer(self, line: str, start: int) -> DecodeSeries:
        """The series of the rank that wrote a line, by its prefix behind the time where nothing stands before it."""
        key = line[20:start] if line[:3] == "[20" else ""
        found = self._writers.get(key) if key else None
        if found is None:
            stamp, source = prefix(line, start)
            found = self._series(source, stamp.rank)
            if key and len(self._writers) < MAX_WRITERS:
                self._writers[key] = found
        return found

    def finish(self) -> None:
        """The log is over."""
        if cut_off := self._exceptions.cut_off:
            _count(self.launches[-1].trouble, cut_off)
        self.launches[-1].finish()

    def take(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, DecodeLine):
            self._series(event.source, event.stamp.rank).decode(
                event.stamp.time,
                event.running,
                event.token,
                event.accept_len,
                None if event.accept_rate is None else str(event.accept_rate),
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
            self._launched(event)
        elif isinstance(event, (CaptureBegin, CaptureSizes, CaptureEnd)):
            self._capture(event)
        else:
            _start_up(self.launches[-1], event)

    def _launched(self, event: ServerArgs) -> None:
        launch = self.launches[-1]
        if launch.arguments and identity(launch.arguments) != identity(event.arguments):
            launch.finish()
            # What matters is the last launch that served, and how many there were.
            self.launches = [*self.launches[-MAX_LAUNCHES:], Launch()]
            self._writers.clear()
            launch = self.launches[-1]
        elif launch.arguments:
            for one in launch.series.values():
                one.prefill(0)
        launch.arguments, launch.started, launch.ready = event.arguments, event.stamp.time, None

    def _series(self, source: str, rank: Rank) -> DecodeSeries:
        return self.launches[-1].series.setdefault((source, rank), DecodeSeries())

    def _capture(self, event: CaptureBegin | CaptureSizes | CaptureEnd) -> None:
        # Every rank captures the same; one speaks for all. A draft model's own prefill graphs are not a phase of ours.
        if event.stamp.rank.tp or event.stamp.rank.dp:
            return
        captured = self.launches[-1].captured
        if isinstance(event, CaptureSizes):
            phase: Phase = "decode" if event.unit == "requests" else "extend"
            captured.setdefault(phase, CapturedGraphs()).sizes = event.sizes
            captured[phase].unit = "tokens" if event.unit == "tokens" else "requests"
            return
        if event.phase == "extend" and event.draft:
            return
        graphs = captured.setdefault(event.phase, CapturedGraphs())
        graphs.sizes = event.sizes if event.sizes is not None else graphs.sizes
        if isinstance(event, CaptureBegin):
            graphs.unit = "tokens" if event.unit == "tokens" else "requests"
            graphs.backend, graphs.tokens_per_request = event.backend, event.tokens_per_request
        else:
            graphs.seconds, graphs.memory_gb = event.seconds, event.memory_gb


def _start_up(launch: Launch, event: Event) -> None:
    if isinstance(event, StartupTimings):
        launch.startup = event
    elif isinstance(event, Ready):
        launch.ready = event.stamp.time if event.stamp.time is not None else launch.ready
    elif isinstance(event, WeightsLoaded):
        if event.model and event.model not in launch.models and len(launch.models) < 16:
            launch.models.append(event.model)
    elif isinstance(event, (GraphDisabled, SpeculationChanged)):
        _count(launch.remarks, event.text)
    elif isinstance(event, Trouble) and not event.text.endswith(OPENING):
        _count(launch.trouble, event.text)


def _count(texts: Counter[str], text: str) -> None:
    text = text[:1000]
    if len(texts) < 200 or text in texts:
        texts[text] += 1


def identity(arguments: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """The arguments without those that differ from node to node and from start to start of one server."""
    return {name: value for name, value in arguments.items() if name not in _PER_START}

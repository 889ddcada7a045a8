"""A whole vLLM server log as evidence."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from pydantic import JsonValue

from eaglediag.capture.model import (
    CapturedGraphs,
    Denial,
    ModelShape,
    Phase,
    Problem,
    RankWindow,
    Server,
    Speculation,
    Window,
)
from eaglediag.capture.model import Rank as ServerRank
from eaglediag.probes.evidence.evidence import Evidence, Fact, server_facts
from eaglediag.probes.evidence.exceptions import Exceptions
from eaglediag.probes.evidence.stretches import Stretch, batch_stats
from eaglediag.probes.evidence.vllm_log import (
    MARK,
    EngineLine,
    SpecLine,
    VllmServer,
    parse_engine_line,
    parse_spec_line,
)

#: Seconds between two engine lines (VLLM_LOG_STATS_INTERVAL).
LOG_INTERVAL_S = 10.0
#: An engine configuration takes a few thousand characters; beyond this nothing is looked at.
LONGEST_LINE = 100_000
#: Lines kept for one batch size: the last ones, enough for a day at one load.
KEPT = 10_000

_ALGORITHMS = {"eagle": "EAGLE", "eagle3": "EAGLE3", "ngram": "NGRAM", "draft_model": "STANDALONE", "mtp": "NEXTN"}


@dataclass
class VllmLog:
    """A log that is being read. `steady[engine][running]` are intervals without prefill, `mixed` those with."""

    server: VllmServer = field(default_factory=VllmServer)
    steady: dict[tuple[int, int], deque[Stretch]] = field(default_factory=dict)
    mixed: dict[tuple[int, int], deque[Stretch]] = field(default_factory=dict)
    accepted: int = 0
    drafts: float = 0.0
    speculative: bool = False
    without_bonus: bool = False
    engine_lines: int = 0
    left_out: int = 0
    lines: int = 0
    unreadable: int = 0
    unreadable_lines: list[str] = field(default_factory=list)
    _running: dict[int, int] = field(default_factory=dict)
    _open: EngineLine | None = None
    _exceptions: Exceptions = field(default_factory=Exceptions)

    def feed(self, text: str) -> None:
        """Take a piece of the log that ends where a line ends."""
        lines = text.split("\n")
        self.lines += len(lines) - (not lines[-1])
        for line in lines:
            line = line[:LONGEST_LINE]
            if ' HTTP/1.1" ' in line:
                continue
            if raised := self._exceptions.take(line):
                self.server.note_trouble(raised)
                continue
            if not MARK.search(line):
                continue
            if "Avg generation throughput:" in line:
                engine = parse_engine_line(line)
                if engine is None:
                    self._unreadable(line)
                    continue
                self._close(None)
                self._open = engine
            elif "SpecDecoding metrics:" in line:
                spec = parse_spec_line(line, self.server.positions)
                if spec is None:
                    self._unreadable(line)
                    continue
                self._speculated(spec)
            else:
                self.server.take(line)

    def finish(self) -> None:
        """The log is over."""
        if cut_off := self._exceptions.cut_off:
            self.server.note_trouble(cut_off)
        self._close(None)

    def _unreadable(self, line: str) -> None:
        self.unreadable += 1
        if len(self.unreadable_lines) < 1000:
            self.unreadable_lines.append(line[:2000])

    def _speculated(self, spec: SpecLine) -> None:
        if not self.speculative:
            # Intervals before the first draft were not decoding.
            self.steady.clear()
            self.mixed.clear()
        self.speculative = True
        self.without_bonus |= bool(spec.printed_without_bonus)
        if spec.drafts:
            self.accepted += spec.accepted
            self.drafts += spec.drafts
        self._close(spec)

    def _close(self, spec: SpecLine | None) -> None:
        """Turn the engine line that is waiting, with the SpecDecoding line that followed it, into an interval."""
        line, self._open = self._open, None
        if line is None:
            return
        self.engine_lines += 1
        before = self._running.get(line.engine)
        self._running[line.engine] = line.running
        length = spec.accept_length if spec else None
        if self.speculative and length is None:
            self.left_out += 1
            return
        if line.running == 0 or before != line.running or line.gen_throughput <= 0:
            self.left_out += 1
            return
        tau = length or 1.0
        steps = line.gen_throughput * LOG_INTERVAL_S / (line.running * tau)
        kind = self.steady if line.prompt_throughput == 0 and line.waiting == 0 else self.mixed
        kind.setdefault((line.engine, line.running), deque(maxlen=KEPT)).append(
            Stretch(
                time=line.time or 0.0,
                steps=max(1, round(steps)),
                period_ms=1000 * line.running * tau / line.gen_throughput,
                passes=round(spec.drafts) if spec and spec.drafts else 0,
                tokens=round(spec.drafts) + spec.accepted if spec and spec.drafts else 0,
            )
        )


def evidence(log: VllmLog, files: list[str]) -> Evidence:
    """The capture's part."""
    server = _server(log)
    keys = sorted(log.steady.keys() | log.mixed.keys())
    engines = sorted({engine for engine, _ in keys})
    windows = [
        _window(
            size,
            [(engine, log.steady.get((engine, size)) or log.mixed[engine, size]) for engine, n in keys if n == size],
            log,
            len(engines),
        )
        for size in sorted({size for _, size in keys})
    ]
    facts = server_facts(server)
    if log.drafts:
        facts.append(Fact("the accept length", 1 + log.accepted / log.drafts, 0.05, "over the log's drafts"))
    return Evidence(
        method="log_line",
        files=files,
        server=server,
        windows=windows,
        ranks=[ServerRank(rank=engine, dp=engine) for engine in engines],
        denials=list(_denials(windows, server, log)),
        problems=list(_problems(log, server, windows)),
        facts=facts,
        unparsed=log.unreadable,
        unparsed_lines=log.unreadable_lines,
    )


def _server(log: VllmLog) -> Server:
    told, config = log.server, log.server.config
    settings = None
    method = config.get("speculative_method", "")
    if method or log.speculative:
        settings = Speculation(
            algorithm=_ALGORITHMS.get(method, method or "unknown"),
            num_steps=told.positions,
            num_draft_tokens=None if told.positions is None else told.positions + 1,
        )
    phase: Phase = "verify" if settings else "decode"
    sizes = told.capture_sizes
    arguments: dict[str, JsonValue] = {name: _plain(value) for name, value in told.arguments.items()}
    arguments |= dict(config)
    return Server(
        engine="vllm",
        release=told.release,
        arguments=arguments,
        model=ModelShape(path=config.get("model", "")),
        draft_model=ModelShape(path=config["speculative_model"]) if config.get("speculative_model") else None,
        speculation=settings,
        tp=int(config.get("tensor_parallel_size", 1)),
        pp=int(config.get("pipeline_parallel_size", 1)),
        dp=int(config.get("data_parallel_size", 1)),
        captured={}
        if sizes is None
        else {phase: CapturedGraphs(sizes=sizes, unit="tokens", backend=config.get("cudagraph_mode", ""))},
    )


def _window(size: int, found: list[tuple[int, deque[Stretch]]], log: VllmLog, engines: int) -> Window:
    return Window(
        id=f"log batch {size}",
        concurrency=size if engines == 1 else None,
        agent="absent",
        started=min(stretches[0].time for _, stretches in found),
        duration_s=max(LOG_INTERVAL_S * len(stretches) for _, stretches in found),
        throughput_method="log_line",
        ranks=[
            RankWindow(rank=engine, batches=[batch_stats(size, stretches, log.speculative, "log_line")])
            for engine, stretches in found
        ],
    )


def _denials(windows: list[Window], server: Server, log: VllmLog) -> Iterator[Denial]:
    """Batch sizes that no captured graph covers: vLLM's sizes count tokens, so a request takes 1 + k of them."""
    phase: Phase = "verify" if server.speculation else "decode"
    sizes = server.captured[phase].sizes if phase in server.captured else None
    if sizes is None:
        return
    width = 1 + (log.server.positions or 0) if server.speculation else 1
    largest = max(sizes, default=0)
    for window in windows:
        for rank in window.ranks:
            for batch in rank.batches:
                if batch.batch_size * width > largest:
                    reason = (
                        f"{batch.batch_size} requests x {width} tokens are above the largest captured size, {largest}"
                        if sizes
                        else "the engine captured no graphs"
                    )
                    yield Denial(
                        phase=phase,
                        batch_size=batch.batch_size,
                        gate="unknown (not probed)",
                        explained=False,
                        reason=reason,
                        counts={rank.rank: batch.count},
                        windows={window.id: batch.count},
                    )


def _problems(log: VllmLog, server: Server, windows: list[Window]) -> Iterator[Problem]:
    if not windows:
        yield Problem(
            code="no_decode_lines",
            message="the log holds no two engine lines in a row at one batch size, so no step times",
            advice="hold the load for half a minute, or give a benchmark result",
        )
    if log.left_out and windows:
        yield Problem(
            code="first_lines_left_out",
            message=f"{log.left_out} of {log.engine_lines} engine lines were left out: idle, or after a change "
            "of running requests",
        )
    mixed = sorted({size for engine, size in log.mixed if (engine, size) not in log.steady})
    if mixed:
        yield Problem(
            code="prefill_in_period",
            message=f"at {', '.join(map(str, mixed[:8]))} running requests every interval holds prefills",
            advice="measure under a steady load",
        )
    if windows:
        yield Problem(
            code="running_is_a_snapshot",
            message="#running in an engine line is that of its moment: step times assume that it held for ten seconds",
            advice="hold one concurrency for a minute, or give a benchmark result with --max-concurrency",
        )
    if log.without_bonus:
        yield Problem(
            code="bonus_token_left_out",
            message="the printed mean acceptance length leaves the bonus token out, as vLLM did before 2025-05; "
            "here it is counted",
        )
    width = 1 + (log.server.positions or 0)
    if server.speculation and log.server.capture_sizes:
        largest = max(log.server.capture_sizes)
        yield Problem(
            code="token_sized_graphs",
            message=f"vLLM's captured sizes count tokens: {largest} are {largest // width} requests of {width} tokens",
            advice="compare with SGLang's sizes, which count requests, only after dividing",
        )
    for text in log.server.remarks[:20]:
        yield Problem(code="server_remark", message=f"the server says: {text[:300]}")
    for text in log.server.trouble[:5]:
        yield Problem(code="trouble", message=f"the log reports trouble: {text[:300]}")
    if log.unreadable:
        yield Problem(
            code="unreadable_lines",
            message=f"{log.unreadable} of {log.lines} lines could not be read, torn or in a new format",
            advice="see them with `eaglediag import --show-unparsed`",
        )
    yield Problem(
        code="unknown_parts",
        message="the parts of a step, whether it ran as a graph, and the clocks are not in a vLLM log",
        advice="give a torch profiler trace (`vllm bench serve --profile`) to `eaglediag import` too",
    )


def _plain(value: object) -> JsonValue:
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items() if not re.search("api_key|token$", str(name))}
    if isinstance(value, (list, tuple, set)):
        return [_plain(one) for one in value]
    return str(value)

"""Windows of a probe that only reads: what the log, the metrics pages and /server_info say of one stretch of time.

The log is believed first (its lines are of an exact number of steps), then the metrics, then recorded step times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from eaglediag.capture.model import Denial, Problem, Rank, RankWindow, Server, Window
from eaglediag.probes.evidence import sglang_evidence, vllm_evidence
from eaglediag.probes.evidence.evidence import Evidence
from eaglediag.probes.evidence.metrics_page import drafting, verified
from eaglediag.probes.evidence.metrics_series import Measured, Poll, busy, emitted, measured, running
from eaglediag.probes.evidence.server_info import EngineState, ServerInfo
from eaglediag.probes.evidence.sglang_import import SglangLog
from eaglediag.probes.evidence.sglang_server import DEFAULT_DECODE_LOG_INTERVAL, decode_log_interval
from eaglediag.probes.evidence.vllm_evidence import VllmLog
from eaglediag.probes.read_only import problems
from eaglediag.probes.read_only.log_tail import LogTail
from eaglediag.probes.workload import Result

#: How long a line may take from the server to here.
LINE_WITHIN_S = 1.5
QUARTER_HOUR_S = 900


@dataclass
class Span:
    """A stretch of time that becomes a window. `result` is what the client saw, of a load of ours."""

    id: str
    started: float
    ended: float
    concurrency: int | None = None
    result: Result | None = None
    before: ServerInfo | None = None
    after: ServerInfo | None = None


@dataclass
class Observed:
    """All that was read. `windows` makes it a capture's, and notes `problems`, `ranks` and `denials` on the way."""

    server: Server = field(default_factory=Server)
    info: ServerInfo | None = None
    polls: list[Poll] = field(default_factory=list)
    tail: LogTail | None = None
    problems: list[Problem] = field(default_factory=list)
    ranks: dict[int, Rank] = field(default_factory=dict)
    denials: list[Denial] = field(default_factory=list)

    @property
    def log_interval(self) -> int:
        """The steps of one decode line."""
        known = decode_log_interval(self.info.arguments) if self.info else None
        return known or DEFAULT_DECODE_LOG_INTERVAL

    def spans(self, started: float, ended: float) -> list[Span]:
        """What ran by itself: each stretch in which the server worked; the whole time where no page tells."""
        if len(self.polls) < 2:
            return [Span("watch", started, ended)]
        found = []
        for number, (first, last) in enumerate(busy(self.polls), 1):
            polls = self.polls[first : last + 1]
            found.append(Span(f"w{number}", polls[0].time, polls[-1].time, running(polls)))
        return found

    def windows(self, spans: Sequence[Span]) -> list[Window]:
        """One window a span."""
        found = [self._window(span) for span in spans]
        if not spans:
            return found
        start, end = spans[0].started, spans[-1].ended
        polls = [poll for poll in self.polls if start <= poll.time <= end]
        if len(polls) > 1:
            self.problems += problems.eager_passes(polls[0].page, polls[-1].page)
        if self.tail is not None:
            log = self._log(self.tail, start, end + LINE_WITHIN_S)
            # What is unknown is said once, for all that was read.
            self.problems += [one for one in log.problems if not one.code.startswith("unknown_")]
        return found

    def _window(self, span: Span) -> Window:
        polls = [poll for poll in self.polls if span.started <= poll.time <= span.ended]
        by_metrics = measured(polls, self.log_interval, self.server.speculation is not None) if polls else None
        ranks = self._ranks(span, by_metrics)
        result, duration = span.result, span.ended - span.started
        throughput = result.throughput if result else None
        if throughput is None and len(polls) > 1:
            tokens = emitted(polls[0].page, polls[-1].page)
            throughput = tokens / (polls[-1].time - polls[0].time) if tokens else None
        requests = result.requests if result else []
        window = Window(
            id=span.id,
            concurrency=span.concurrency,
            agent="absent",
            started=result.started if result else span.started,
            duration_s=round(result.duration_s if result else duration, 4),
            throughput=None if throughput is None else round(throughput, 4),
            throughput_method="host_clock" if result else "metrics",
            accept_length=None if any(one.verify_passes for one in requests) else _accept_length(polls),
            requests=requests,
            failed_requests=len(result.failed) if result else 0,
            ranks=ranks,
        )
        self.denials += sglang_evidence.eager_steps([window], self.server) if self.server.engine == "sglang" else ()
        return window

    def _ranks(self, span: Span, by_metrics: Measured | None) -> list[RankWindow]:
        counted = by_metrics.ranks if by_metrics else []
        for rank in counted:
            self.ranks.setdefault(rank.rank, Rank(rank=rank.rank, dp=rank.rank))
        if self.tail is not None:
            evidence = self._log(self.tail, span.started, span.ended + LINE_WITHIN_S)
            logged = _by_rank(evidence.windows, span.started)
            if logged:
                self.ranks.update({rank.rank: rank for rank in evidence.ranks})
                self.problems += problems.contradictions(logged, counted, self.tail.path)
                return logged
        if counted:
            if by_metrics is not None and by_metrics.mixed:
                self.problems.append(problems.prefill_in_period(by_metrics.mixed, span.id))
            return counted
        return _recorded(span)

    def _log(self, tail: LogTail, start: float, end: float) -> Evidence:
        text = tail.between(start, end)
        if self.server.engine == "vllm":
            vllm = VllmLog()
            vllm.feed(text)
            vllm.finish()
            return vllm_evidence.evidence(vllm, [tail.path])
        log = SglangLog()
        # The lines came in behind the one that shows the arguments; /server_info has the same.
        log.launches[0].arguments = dict(self.info.arguments) if self.info else {}
        log.feed(text)
        log.finish()
        return sglang_evidence.evidence(log, [tail.path])


def _by_rank(windows: Sequence[Window], started: float) -> list[RankWindow]:
    """A log's windows are one a batch size; here a rank has all its batch sizes, in epoch seconds."""
    found: dict[int, RankWindow] = defaultdict(lambda: RankWindow(rank=0))
    for window in windows:
        for rank in window.ranks:
            one = found[rank.rank]
            one.rank = rank.rank
            one.batches += rank.batches
            one.phases += rank.phases
            one.steps_recorded += rank.steps_recorded
            for batch in rank.batches:
                times = batch.blocks.t
                # A log's time is the host's local one: off by whole quarters of an hour.
                away = QUARTER_HOUR_S * round((times[0] - started) / QUARTER_HOUR_S) if times else 0
                batch.blocks.t = [time - away for time in times]
    return [found[rank] for rank in sorted(found)]


def _accept_length(polls: Sequence[Poll]) -> float | None:
    """Counted over a window: vLLM by draft, SGLang (0.5.14 on) over the requests that ended in it."""
    if len(polls) < 2:
        return None
    first, last = polls[0].page, polls[-1].page
    drafts = drafting(last, first)
    if drafts is not None:
        return drafts.tokens / drafts.passes if drafts.passes > 0 else None
    pairs = verified(last, first)
    return pairs[1] / pairs[0] if pairs is not None and pairs[1] >= pairs[0] else None


def _recorded(span: Span) -> list[RankWindow]:
    """Step times that the server recorded meanwhile (SGLANG_RECORD_STEP_TIME=1)."""
    if span.after is None:
        return []
    found = []
    for rank, state in enumerate(span.after.states):
        known = span.before.states[rank] if span.before and rank < len(span.before.states) else EngineState()
        times = {
            size: new
            for size, all_times in state.step_times_s.items()
            if (new := all_times[len(known.step_times_s.get(size, [])) :])
        }
        batches = span.after.batches(replace(state, step_times_s=times))
        if batches:
            found.append(RankWindow(rank=rank, batches=batches, steps_recorded=sum(one.count for one in batches)))
    return found

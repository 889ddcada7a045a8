"""A saved or polled Prometheus page of an SGLang or vLLM server.

Gauges speak of the moment (SGLang refreshes them with each decode line), counters of the server's whole life: only the
difference of two pages says what happened between them.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from eaglediag.errors import UsageError

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+\S+)?$")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Sample:
    """One sample; `value` is finite."""

    labels: dict[str, str]
    value: float


@dataclass(frozen=True)
class MetricsSnapshot:
    """One page. `samples[name]` are all samples of one metric, NaN and infinities left out."""

    engine: Literal["sglang", "vllm"]
    model: str
    samples: dict[str, list[Sample]]
    unreadable: list[str] = field(default_factory=list)

    def total(self, name: str, **labels: str) -> float | None:
        """The sum of a metric's samples that bear these labels, over all ranks; None when there is none."""
        values = [
            sample.value
            for sample in self.samples.get(name, ())
            if all(sample.labels.get(label) == value for label, value in labels.items())
        ]
        return math.fsum(values) if values else None

    def by_dp_rank(self, name: str) -> dict[int, float]:
        """A gauge by DP rank (label dp_rank, absent without data parallelism); of TP and PP ranks the first."""
        found: dict[int, float] = {}
        for sample in self.samples.get(name, ()):
            found.setdefault(int(rank) if (rank := sample.labels.get("dp_rank", "0")).isdigit() else 0, sample.value)
        return found

    @property
    def accept_length(self) -> float | None:
        """SGLang: the gauge of the last decode line, bonus token included; None without speculation or before any."""
        values = [value for value in self.by_dp_rank("sglang:spec_accept_length").values() if value > 0]
        return math.fsum(values) / len(values) if values else None

    @property
    def graph_passes(self) -> dict[str, int]:
        """Passes since the server started, by mode: decode_cuda_graph, decode_none, prefill_... (SGLang from 0.5.8)."""
        found: dict[str, int] = {}
        for sample in self.samples.get("sglang:cuda_graph_passes_total", ()):
            mode = sample.labels.get("mode", "")
            found[mode] = found.get(mode, 0) + int(sample.value)
        return found


@dataclass(frozen=True)
class RankGauges:
    """What one DP rank's gauges say: the same as the decode line they were set with, the same trust and the same traps.

    `graph` is of that line's last step, and with speculation of its verify alone.
    """

    dp_rank: int
    running: int
    gen_throughput: float
    accept_length: float | None
    graph: bool | None

    @property
    def period_ms(self) -> float | None:
        """The decode step or cycle that the throughput comes from; None while nothing runs.

        Meaningless when the server was idle since the last decode line: use it between two pages under one steady load.
        """
        if self.running <= 0 or self.gen_throughput <= 0:
            return None
        return 1000 * self.running * (self.accept_length or 1.0) / self.gen_throughput


def rank_gauges(page: MetricsSnapshot) -> list[RankGauges]:
    """SGLang's gauges by DP rank."""
    throughputs = page.by_dp_rank("sglang:gen_throughput")
    running = page.by_dp_rank("sglang:num_running_reqs")
    lengths = page.by_dp_rank("sglang:spec_accept_length")
    graphs = page.by_dp_rank("sglang:is_cuda_graph")
    return [
        RankGauges(
            dp_rank=rank,
            running=int(running.get(rank, 0)),
            gen_throughput=throughput,
            accept_length=lengths.get(rank) or None,
            graph=None if rank not in graphs else graphs[rank] > 0,
        )
        for rank, throughput in sorted(throughputs.items())
    ]


@dataclass(frozen=True)
class Drafting:
    """Counted drafts, as vLLM's counters have them, over the server's life or between two pages.

    `passes` are (request, verify) pairs; `accepted_by_position[i]` says how often the draft at position i was accepted.
    """

    passes: int
    drafted: int
    accepted: int
    accepted_by_position: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Tokens emitted: the accepted drafts and one bonus token a pass."""
        return self.accepted + self.passes

    @property
    def histogram(self) -> list[int]:
        """How many passes emitted exactly i + 1 tokens. Empty when the positions were not counted.

        Position i is accepted only if all before it were, so the counts by position are those of "at least i + 1".
        """
        at_least = [self.passes, *self.accepted_by_position]
        if len(at_least) == 1 or any(low < high for low, high in itertools.pairwise(at_least)):
            return []
        return [low - high for low, high in zip(at_least, [*at_least[1:], 0], strict=True)]


def parse_metrics(text: str) -> MetricsSnapshot:
    """Read a page. Raises UsageError when it holds no metric of either engine."""
    samples: dict[str, list[Sample]] = {}
    unreadable: list[str] = []
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        found = _SAMPLE.match(line)
        try:
            value = float(found.group(3)) if found else math.nan
        except ValueError:
            found = None
        if found is None:
            unreadable.append(line)
        elif math.isfinite(value):
            labels = {name: re.sub(r"\\(.)", r"\1", text) for name, text in _LABEL.findall(found.group(2) or "")}
            samples.setdefault(found.group(1), []).append(Sample(labels, value))
    engine = _engine(samples)
    if engine is None:
        raise UsageError(
            "this page holds no metrics of SGLang or vLLM",
            "start the server with --enable-metrics and save it with `curl http://HOST:PORT/metrics > metrics.txt`",
        )
    return MetricsSnapshot(engine, _model(samples.values()), samples, unreadable)


def drafting(page: MetricsSnapshot, earlier: MetricsSnapshot | None = None) -> Drafting | None:
    """vLLM's draft counters, less those of an earlier page of the same server. None when it does not speculate."""
    passes = _counter(page, "vllm:spec_decode_num_drafts")
    if passes is None:
        return None
    drafted = _counter(page, "vllm:spec_decode_num_draft_tokens") or 0
    accepted = _counter(page, "vllm:spec_decode_num_accepted_tokens") or 0
    positions = _positions(page)
    before = drafting(earlier) if earlier else None
    if before is None:
        return Drafting(passes, drafted, accepted, positions)
    old = before.accepted_by_position + (0,) * (len(positions) - len(before.accepted_by_position))
    return Drafting(
        passes - before.passes,
        drafted - before.drafted,
        accepted - before.accepted,
        tuple(new - past for new, past in zip(positions, old, strict=False)),
    )


def verified(page: MetricsSnapshot, earlier: MetricsSnapshot | None = None) -> tuple[int, int] | None:
    """SGLang from 0.5.14: ((request, verify) pairs, tokens) of the requests finished, or finished since `earlier`.

    One token of each request comes out of its prefill and is not counted. None when the counters are not there.
    """
    counts = []
    for name in ("sglang:spec_verify_calls_total", "sglang:generation_tokens_total", "sglang:num_requests_total"):
        now = page.total(name)
        if now is None:
            return None
        counts.append(round(now - ((earlier.total(name) or 0.0) if earlier else 0.0)))
    passes, tokens, requests = counts
    return (passes, tokens - requests) if passes > 0 else None


def _counter(page: MetricsSnapshot, name: str) -> int | None:
    value = page.total(name + "_total")
    value = page.total(name) if value is None else value
    return None if value is None else round(value)


def _positions(page: MetricsSnapshot) -> tuple[int, ...]:
    name = "vllm:spec_decode_num_accepted_tokens_per_pos"
    counts: dict[int, int] = {}
    for sample in page.samples.get(name + "_total") or page.samples.get(name) or []:
        position = sample.labels.get("position", "")
        if position.isdigit() and len(position) < 5:
            counts[int(position)] = counts.get(int(position), 0) + round(sample.value)
    return tuple(counts.get(i, 0) for i in range(max(counts) + 1)) if counts else ()


def _engine(names: Iterable[str]) -> Literal["sglang", "vllm"] | None:
    for name in names:
        if name.startswith(("sglang:", "sglang_")):
            return "sglang"
        if name.startswith(("vllm:", "vllm_")):
            return "vllm"
    return None


def _model(metrics: Iterable[list[Sample]]) -> str:
    return next((sample.labels["model_name"] for one in metrics for sample in one if "model_name" in sample.labels), "")

"""From the decode lines of one scheduler to step times and accept lengths by batch size, in bounded memory.

A decode line speaks of the `decode_log_interval` steps since the line before it, so what it says belongs to one batch
size only if the batch did not change in between. Lines are sorted into three kinds:

- steady: the same #running-req as the line before, no prefill line and no drop in KV tokens between them. A request
  cannot leave and another take its place without a prefill, so all its steps ran at that batch size.
- mixed: the batch size is the same, but prefills ran in between and their time is inside. Used only for a batch size
  that has no steady line, and then said.
- unusable: the first line, the first after idle, after a change of batch size, or without a throughput. Its time holds
  idling, or steps at another batch size.

cycle_ms = 1000 x running x accept_len / gen_throughput (accept_len 1 without speculation). One line is one block:
`interval` steps, `interval` x running passes, and as many tokens as its accept length (two decimals) makes of them.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from eaglediag.capture.model import AcceptStats, BatchStats, Blocks, Distribution, PhaseStats
from eaglediag.probes.evidence.sglang_log import DecodeLine, PrefillLine

#: Blocks kept for one batch size; beyond it neighbours are merged two by two.
MAX_BLOCKS = 512
#: Values kept for the quantiles; beyond it every second is dropped, and then every second of the new ones is kept.
MAX_SAMPLE = 4096


class Blocked:
    """Lines at one batch size: running sums, a bounded row of blocks and a bounded sample of the periods."""

    def __init__(self) -> None:
        self.lines = 0
        self.first: float | None = None
        self.last: float | None = None
        self.sum_ms = self.sum_ms2 = self.sum_accept = 0.0
        self.min_ms, self.max_ms = math.inf, 0.0
        self.graphs: Counter[bool | None] = Counter()
        self._columns = (array("d"), array("d"), array("d"), array("d"))  # t, lines, ms, accept: sums over the block
        self._per_block = 1
        self._open = [0.0, 0.0, 0.0]
        self._sample = array("d")
        self._stride = 1

    def add(self, time: float | None, period_ms: float, accept_len: float, graph: bool | None) -> None:
        """Take one line."""
        if time is not None:
            self.first = time if self.first is None else self.first
            self.last = time
        if self.lines % self._stride == 0:
            self._sample.append(period_ms)
            if len(self._sample) >= MAX_SAMPLE:
                self._sample = self._sample[::2]
                self._stride *= 2
        self.lines += 1
        self.sum_ms += period_ms
        self.sum_ms2 += period_ms * period_ms
        self.sum_accept += accept_len
        self.min_ms = min(self.min_ms, period_ms)
        self.max_ms = max(self.max_ms, period_ms)
        self.graphs[graph] += 1
        block = self._open
        block[0] += 1
        block[1] += period_ms
        block[2] += accept_len
        if block[0] >= self._per_block:
            self._close(time or 0.0)

    def distribution(self) -> Distribution:
        """The periods of the lines. Quantiles are of an evenly spaced sample when there are many lines."""
        ordered = sorted(self._sample)
        mean = self.sum_ms / self.lines
        spread = max(0.0, self.sum_ms2 - self.lines * mean * mean)

        def quantile(share: float) -> float:
            return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

        return Distribution(
            count=self.lines,
            mean=mean,
            sd=math.sqrt(spread / (self.lines - 1)) if self.lines > 1 else 0.0,
            min=self.min_ms,
            p50=quantile(0.5),
            p90=quantile(0.9),
            p99=quantile(0.99),
            max=self.max_ms,
            method="log_line",
        )

    def blocks(self, batch_size: int, interval: int, speculative: bool) -> Blocks:
        """The blocks, each of `interval` steps a line."""
        if self._open[0]:
            self._close(self.last or 0.0)
        times, lines, periods, accepts = self._columns
        steps = [round(count) * interval for count in lines]
        return Blocks(
            t=list(times),
            steps=steps,
            period_ms=[interval * ms for ms in periods],
            passes=[count * batch_size if speculative else 0 for count in steps],
            tokens=[round(interval * batch_size * accept) if speculative else 0 for accept in accepts],
        )

    def _close(self, time: float) -> None:
        for column, value in zip(self._columns, (time, *self._open), strict=True):
            column.append(value)
        self._open = [0.0, 0.0, 0.0]
        if len(self._columns[0]) >= MAX_BLOCKS:
            times, *sums = self._columns
            merged = [array("d", (a + b for a, b in zip(one[::2], one[1::2], strict=True))) for one in sums]
            self._columns = (times[::2], merged[0], merged[1], merged[2])
            self._per_block *= 2


@dataclass
class DecodeSeries:
    """The decode lines of one scheduler, in the order in which they were written."""

    steady: dict[int, Blocked] = field(default_factory=dict)
    mixed: dict[int, Blocked] = field(default_factory=dict)
    lines: int = 0
    unusable: int = 0
    speculative: int = 0
    steps_seen: Counter[int] = field(default_factory=Counter)
    accept_lengths: Counter[float] = field(default_factory=Counter)
    rates: Counter[tuple[float, float]] = field(default_factory=Counter)
    _running: int = -1
    _token: int = 0
    _prefilled: bool = False
    _idle: bool = True

    def prefill(self, line: PrefillLine) -> None:
        """Take a prefill line."""
        self._prefilled = True
        if line.running == 0:
            self._idle = True

    def decode(self, line: DecodeLine) -> None:
        """Take a decode line."""
        self.lines += 1
        running, token, accept_len = line.running, line.token, line.accept_len
        if accept_len is not None:
            self.speculative += 1
            if len(self.accept_lengths) < 1000:
                self.accept_lengths[accept_len] += 1
            if line.accept_rate is not None and len(self.rates) < 1000:
                self.rates[accept_len, line.accept_rate] += 1
        accept = 1.0 if accept_len is None else accept_len
        emitted = token - self._token
        same = running == self._running and not self._idle
        if not same or line.gen_throughput <= 0 or running <= 0 or accept <= 0:
            self.unusable += 1
        else:
            period_ms = 1000 * running * accept / line.gen_throughput
            unbroken = not self._prefilled and emitted > 0
            kind = self.steady if unbroken else self.mixed
            series = kind.get(running)
            if series is None:
                series = kind[running] = Blocked()
            series.add(line.stamp.time, period_ms, accept, line.graph)
            if unbroken:
                self.steps_seen[round(emitted / (running * accept))] += 1
        self._running, self._token, self._prefilled, self._idle = running, token, False, False

    def usable(self) -> Iterator[tuple[int, Blocked, bool]]:
        """(batch size, lines, whether they are steady), the mixed ones only where there is no steady one."""
        for size in sorted(self.steady.keys() | self.mixed.keys()):
            if size in self.steady:
                yield size, self.steady[size], True
            else:
                yield size, self.mixed[size], False

    @property
    def steps_per_line(self) -> int | None:
        """`decode_log_interval` as the growth of the KV cache shows it; None when the lines do not agree on one."""
        if not self.steps_seen:
            return None
        steps, lines = self.steps_seen.most_common(1)[0]
        return steps if steps > 0 and 2 * lines > self.steps_seen.total() else None


def batch_stats(size: int, lines: Blocked, interval: int, speculative: bool) -> BatchStats:
    """One batch size's lines as the capture has them."""
    kind: Literal["decode", "cycle"] = "cycle" if speculative else "decode"
    blocks = lines.blocks(size, interval, speculative)
    return BatchStats(
        batch_size=size,
        kind=kind,
        count=lines.lines * interval,
        period_ms=lines.distribution(),
        accept=AcceptStats(passes=sum(blocks.passes), tokens=sum(blocks.tokens), method="log_line")
        if speculative
        else None,
        blocks=blocks,
    )


def graph_flags(size: int, lines: Blocked, speculative: bool) -> list[PhaseStats]:
    """What the lines' graph flag says: of the last step of each line, and with speculation of its verify alone."""
    return [
        PhaseStats(phase="verify" if speculative else "decode", batch_size=size, graph=flag, count=count)
        for flag, count in sorted(lines.graphs.items(), key=str)
        if flag is not None
    ]


def accept_rate_counts_bonus(accept_len: float, accept_rate: float, num_draft_tokens: int) -> bool | None:
    """Which of its two meanings a line's `accept rate` has; None when it has neither, or both fit.

    To 0.5.10 accept length / draft tokens; from 0.5.12 accepted drafts / (draft tokens - 1).
    """
    if num_draft_tokens < 2:
        return None
    with_bonus = abs(accept_rate - accept_len / num_draft_tokens) <= 0.011
    drafts_only = abs(accept_rate - (accept_len - 1) / (num_draft_tokens - 1)) <= 0.011
    return with_bonus if with_bonus != drafts_only else None

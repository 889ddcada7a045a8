"""From the decode lines of one scheduler to step times and accept lengths by batch size, in bounded memory.

A decode line speaks of the `decode_log_interval` steps since the line before it, so what it says belongs to one batch
size only if the batch did not change in between. Lines are sorted into three kinds:

- steady: the same #running-req as the line before, no prefill line and no drop in KV tokens between them. A request
  cannot leave and another take its place without a prefill, so all its steps ran at that batch size.
- mixed: the batch size is the same, but prefills ran in between and their time is inside. Used only for a batch size
  that has no steady line, and then said.
- unusable: the first line, the first after idle, after a change of batch size, or without a throughput. Its time holds
  idling, or steps at another batch size. In a log without prefill lines (somebody kept the decode lines alone) idling
  shows only in that the KV cache did not grow as it does between other lines.

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
from eaglediag.probes.evidence.sglang_log import prefix

#: Blocks kept for one batch size; beyond it neighbours are merged two by two.
MAX_BLOCKS = 512
#: Values kept for the quantiles; beyond it every second is dropped, and then every second of the new ones is kept.
MAX_SAMPLE = 4096
#: How many lines are looked at for what does not change within a log.
FIRST_LINES = 2000


class Blocked:
    """Lines at one batch size: running sums, a bounded row of blocks and a bounded sample of the periods."""

    __slots__ = (
        "_accepts", "_columns", "_per_block", "_periods", "_sample", "_stride", "first", "graphs", "last", "lines",
        "max_accept", "max_ms", "min_accept", "min_ms", "sum_accept", "sum_ms", "sum_ms2",
    )  # fmt: skip

    def __init__(self) -> None:
        self.lines = 0
        self.first: float | None = None
        self.last: float | None = None
        self.sum_ms = self.sum_ms2 = self.sum_accept = 0.0
        self.min_ms = self.min_accept = math.inf
        self.max_ms = self.max_accept = 0.0
        self.graphs: dict[str | None, int] = {None: 0, "True": 0, "False": 0}
        self._columns = (array("d"), array("d"), array("d"), array("d"))  # t, lines, ms, accept: sums over the block
        self._per_block = 1
        self._periods: list[float] = []
        self._accepts: list[float] = []
        self._sample = array("d")
        self._stride = 1

    def add(self, when: str | float | None, period_ms: float, accept_len: float, graph: str | None) -> None:
        """Take one line. `when` is its time, or the text before its mark, read only where a block ends."""
        self.graphs[graph] += 1
        self._accepts.append(accept_len)
        self._periods.append(period_ms)
        if len(self._periods) >= self._per_block:
            self.close(when)

    def close(self, when: str | float | None) -> None:
        """End the open block, if it holds anything."""
        periods, accepts = self._periods, self._accepts
        if not periods:
            return
        time = prefix(when, len(when))[0].time if isinstance(when, str) else when
        if time is not None:
            self.first = time if self.first is None else self.first
            self.last = time
        ms, accept = math.fsum(periods), math.fsum(accepts)
        for column, value in zip(self._columns, (time or self.last or 0.0, len(periods), ms, accept), strict=True):
            column.append(value)
        self.sum_ms += ms
        self.sum_ms2 += math.fsum(period * period for period in periods)
        self.sum_accept += accept
        self.min_ms, self.max_ms = min(self.min_ms, *periods), max(self.max_ms, *periods)
        self.min_accept, self.max_accept = min(self.min_accept, *accepts), max(self.max_accept, *accepts)
        self._sample.extend(periods[-self.lines % self._stride :: self._stride])
        self.lines += len(periods)
        self._periods, self._accepts = [], []
        while len(self._sample) >= MAX_SAMPLE:
            self._sample = self._sample[::2]
            self._stride *= 2
        if len(self._columns[0]) >= MAX_BLOCKS:
            times, *sums = self._columns
            merged = [array("d", (a + b for a, b in zip(one[::2], one[1::2], strict=True))) for one in sums]
            self._columns = (times[::2], merged[0], merged[1], merged[2])
            self._per_block *= 2

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
        times, lines, periods, accepts = self._columns
        steps = [round(count) * interval for count in lines]
        return Blocks(
            t=list(times),
            steps=steps,
            period_ms=[interval * ms for ms in periods],
            passes=[count * batch_size if speculative else 0 for count in steps],
            tokens=[round(interval * batch_size * accept) if speculative else 0 for accept in accepts],
        )


@dataclass(slots=True)
class DecodeSeries:
    """The decode lines of one scheduler, in the order in which they were written.

    `steps_seen` counts the steps of a line as the KV cache grew by them, `rates` the (accept len, accept rate) pairs,
    both over the first lines only.
    """

    steady: dict[int, Blocked] = field(default_factory=dict)
    mixed: dict[int, Blocked] = field(default_factory=dict)
    lines: int = 0
    unusable: int = 0
    speculative: int = 0
    steps_seen: Counter[int] = field(default_factory=Counter)
    rates: Counter[tuple[float, float]] = field(default_factory=Counter)
    _running: int = -1
    _token: int = 0
    _prefilled: bool = False
    _prefills: int = 0
    _usual: int | None = None
    _idle: bool = True

    def prefill(self, running: int | None) -> None:
        """Take a prefill line, with the requests that were decoding beside it (0: the server was idle)."""
        self._prefilled = True
        self._prefills += 1
        if running == 0:
            self._idle = True

    def decode(
        self,
        when: str | float | None,
        running: int,
        token: int,
        accept_len: float | None,
        accept_rate: str | None,
        graph: str | None,
        throughput: float,
    ) -> None:
        """Take a decode line. `when` and `graph` are as in `Blocked.add`; `accept_rate` is still text."""
        self.lines += 1
        if accept_len is None:
            accept = 1.0
        else:
            accept = accept_len
            self.speculative += 1
            if accept_rate is not None and self.speculative <= FIRST_LINES:
                self.rates[accept_len, float(accept_rate)] += 1
        emitted = token - self._token
        kind = self.mixed
        usable = running == self._running and not self._idle and throughput > 0 and running > 0 and accept > 0
        if usable and emitted > 0 and not self._prefilled:
            steps = emitted / (running * accept)
            if self._prefills or self._like_the_others(steps):
                kind = self.steady
                if self.lines <= FIRST_LINES:
                    self.steps_seen[round(steps)] += 1
        if not usable or (kind is self.mixed and not self._prefills):
            self.unusable += 1
        else:
            found = kind.get(running)
            if found is None:
                found = kind[running] = Blocked()
            found.add(when, 1000 * running * accept / throughput, accept, graph)
        self._running, self._token, self._prefilled, self._idle = running, token, False, False

    def _like_the_others(self, steps: float) -> bool:
        """In a log without prefill lines: whether the KV cache grew by as many steps as between other lines.

        If it did not, requests came and went unseen, and the line may hold prefills or idle time.
        """
        if self.lines <= FIRST_LINES:
            self._usual = self.steps_per_line
        usual = self._usual
        return usual is None or abs(steps - usual) <= max(1.0, 0.1 * usual)

    def finish(self) -> None:
        """End every open block: the log is over."""
        for kind in (self.steady, self.mixed):
            for found in kind.values():
                found.close(None)

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
        PhaseStats(phase="verify" if speculative else "decode", batch_size=size, graph=flag == "True", count=count)
        for flag, count in lines.graphs.items()
        if flag is not None and count
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

"""Denials that are alike, made one: over ranks and batch sizes, with their share of the passes and what would help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eaglediag.analysis.advice import Advice, advise, alone_on_gpus, room_for
from eaglediag.analysis.figures import percent
from eaglediag.analysis.sentences import PHASE_NAMES, condition
from eaglediag.capture.model import Capture, Denial, Method, Phase, Server

#: What speaks for several steps at once, and where a count that is not the agent's is from.
_SAMPLES: dict[Method, str] = {"log_line": "log line", "metrics": "metrics page"}
_SOURCES: dict[Method, str] = {"log_line": "the server's log", "metrics": "/metrics"}


@dataclass(frozen=True)
class Refusals:
    """Denials of one phase by one gate, with the same leaf and values. `denial` is the most frequent of them.

    `counts` are by rank, all batch sizes together. `share` is theirs of the phase's passes at these batch sizes, None
    when the passes were not counted or the gate does not decide. `advice` is None for a condition that is not known.
    `method` is how they were counted; with `sampled`, not every pass was: a line or a page spoke for several steps, and
    of `sampled` of them `total` told of the refusal.
    """

    denial: Denial
    batch_sizes: tuple[int, ...]
    counts: Mapping[int, int]
    share: float | None
    advice: Advice | None
    method: Method = "host_clock"
    sampled: int | None = None

    @property
    def total(self) -> int:
        """How often, on all ranks."""
        return sum(self.counts.values())

    @property
    def times(self) -> str:
        """`504 times on each of 8 ranks (all of its passes)`, or `seen in 4 of 4 log lines`."""
        if self.sampled:
            return f"seen in {self.total} of {self.sampled} {_SAMPLES[self.method]}{'s' if self.sampled > 1 else ''}"
        share = "" if self.share is None else f" ({'all' if self.share >= 1 else percent(self.share)} of its passes)"
        return times(self.counts) + (share if self.counts else "")

    @property
    def source(self) -> str:
        """Where the counts are from."""
        return _SOURCES.get(self.method, "counted")

    @property
    def line(self) -> str:
        """The whole story: phase, batch sizes, how often, the condition with its values and place, what would help."""
        phase = PHASE_NAMES[self.denial.phase]
        sizes = _sizes(self.batch_sizes)
        where = f"{phase}, batch {sizes}" if sizes else phase
        return f"{where}, {self.times}: {self.why}"

    @property
    def why(self) -> str:
        """The condition, and what would have allowed it; no advice about a gate that decides nothing."""
        said = condition(self.denial)
        if not self.denial.explained and self.denial.reason and self.denial.reason not in said:
            said += f"; unexplained: {self.denial.reason}"
        return said if self.advice is None or not self.denial.decides else f"{said}; {self.advice.short}"


def times(by_rank: Mapping[int, int]) -> str:
    """`504 times on each of 8 ranks`."""
    counts = sorted(by_rank.values())
    if not counts:
        return "0 times"
    often = f"{counts[0]} times" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]} times"
    return often + ("" if len(counts) == 1 else f" on each of {len(counts)} ranks")


def refusals(capture: Capture) -> list[Refusals]:
    """The capture's denials, grouped; those that decide first, the most frequent first."""
    alike: dict[tuple[object, ...], list[Denial]] = {}
    for denial in capture.denials:
        leaf = denial.frames[-1] if denial.frames else None
        what = (leaf.file, leaf.line, leaf.text, leaf.shown) if leaf else (denial.reason,)
        alike.setdefault((denial.phase, denial.gate, denial.decides, denial.explained, *what), []).append(denial)
    found = [_merged(denials, capture) for denials in alike.values()]
    return sorted(found, key=lambda one: (not one.denial.decides, -one.total))


def denial_line(denial: Denial, server: Server | None = None) -> str:
    """One denial's story; with advice where the server is known."""
    sizes = () if denial.batch_size is None else (denial.batch_size,)
    advice = None if server is None else _advice(denial, server)
    return Refusals(denial, sizes, denial.counts, None, advice).line


def _merged(denials: Sequence[Denial], capture: Capture) -> Refusals:
    most = max(denials, key=lambda one: sum(one.counts.values()))
    counts: dict[int, int] = {}
    for denial in denials:
        for rank, count in denial.counts.items():
            counts[rank] = counts.get(rank, 0) + count
    sizes = tuple(sorted({one.batch_size for one in denials if one.batch_size is not None}))
    passes = _passes(capture, most.phase, sizes) if most.decides else 0
    total = sum(counts.values())
    # A gate asked more often than once a pass has no share of passes.
    share = total / passes if passes and total <= passes else None
    method, steps = _steps(capture, sizes)
    sampled = passes if share is not None and method in _SAMPLES and passes < steps else None
    advice = _advice(most, capture.server, alone_on_gpus(capture))
    return Refusals(most, sizes, counts, share, advice, method, sampled)


def _advice(denial: Denial, server: Server, alone: bool | None = None) -> Advice | None:
    """What would have allowed it; where the condition was not seen, by the size alone."""
    if denial.frames or server.engine != "sglang":
        return advise(denial, server, alone)
    graphs = server.captured.get(denial.phase)
    if graphs is None or not graphs.sizes or denial.batch_size is None:
        return None
    largest = max(graphs.requests)
    return room_for(denial.batch_size, largest, denial.phase, server, alone) if denial.batch_size > largest else None


def _steps(capture: Capture, sizes: Sequence[int]) -> tuple[Method, int]:
    """How the steps at these batch sizes (at any, without sizes) were measured, and how many there were."""
    batches = [
        batch
        for window in capture.windows
        for rank in window.ranks
        for batch in rank.batches
        if not sizes or batch.batch_size in sizes
    ]
    return (batches[0].period_ms.method if batches else "host_clock"), sum(batch.count for batch in batches)


def _passes(capture: Capture, phase: Phase, sizes: Sequence[int]) -> int:
    """How many passes of the phase ran at these batch sizes (at any, without sizes), on all ranks that recorded."""
    total = 0
    for window in capture.windows:
        for rank in window.ranks:
            counted = [one for one in rank.phases if one.phase == phase]
            counted = counted or [one for batch in rank.batches for one in batch.parts if one.phase == phase]
            total += sum(one.count for one in counted if not sizes or one.batch_size in sizes)
    return total


def _sizes(sizes: Sequence[int]) -> str:
    """`12`, `1 to 4` for consecutive ones, `1, 4 and 12`."""
    if len(sizes) > 2 and sizes[-1] - sizes[0] == len(sizes) - 1:
        return f"{sizes[0]} to {sizes[-1]}"
    shown = [str(size) for size in sizes]
    if len(shown) > 6:
        return f"{', '.join(shown[:5])} and {len(shown) - 5} more up to {shown[-1]}"
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}" if shown else ""

"""Break-even arithmetic: pure functions of times, throughputs and accept lengths.

One speculative cycle takes as long as tau* plain decode steps, so it must emit tau* tokens to break even:
tau* = cycle / step, and as speed-up = tau x step / cycle, also tau* = tau / speed-up.
The expected accept length of a chain is Leviathan, Kalman and Matias, "Fast Inference from Transformers via
Speculative Decoding" (ICML 2023), equation 1; the bonus token is counted everywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from eaglediag.errors import UsageError

Interval = tuple[float, float]
Verdict = Literal["win", "lose", "break_even", "impossible", "inconsistent"]

#: Without an interval, speed-ups this close to 1 are called break-even: two published digits support no more.
RESOLUTION = 0.005


@dataclass(frozen=True)
class CycleTime:
    """One speculative cycle, in ms. A part that was not measured is None, and the sum is then a lower bound."""

    verify_ms: float
    draft_ms: float | None = None
    draft_extend_ms: float | None = None
    host_ms: float | None = None

    @property
    def total_ms(self) -> float:
        """The parts that are known, added up."""
        return sum(
            part for part in (self.verify_ms, self.draft_ms, self.draft_extend_ms, self.host_ms) if part is not None
        )

    @property
    def missing(self) -> tuple[str, ...]:
        """The parts that are not in the sum."""
        parts = {"draft": self.draft_ms, "draft-extend": self.draft_extend_ms, "host": self.host_ms}
        return tuple(name for name, value in parts.items() if value is None)


@dataclass(frozen=True)
class BreakEven:
    """The answer. Times in ms; intervals are 95 %; None means that it does not follow from what was given.

    With `missing` parts, `break_even_accept_length` is a lower bound and `speedup` an upper bound; `headroom_ms` is
    the time that the missing parts may take before speculation loses (negative: it loses without them). `chain` is
    False for trees, whose acceptance does not follow from the accept length. `unexplained_ms` is what a cycle
    known from its throughput takes beyond the parts that were given.
    """

    break_even_accept_length: float
    accept_length: float | None = None
    speedup: float | None = None
    max_accept_length: int | None = None
    verdict: Verdict | None = None
    break_even_interval: Interval | None = None
    accept_length_interval: Interval | None = None
    speedup_interval: Interval | None = None
    step_ms: float | None = None
    cycle_ms: float | None = None
    missing: tuple[str, ...] = ()
    chain: bool = True
    unexplained_ms: float | None = None

    @property
    def required_acceptance_rate(self) -> float | None:
        """The per-token acceptance with which this chain breaks even; None when no rate does, and for trees."""
        return self._acceptance(self.break_even_accept_length)

    @property
    def acceptance_rate(self) -> float | None:
        """The per-token acceptance that a chain of this length must have had to reach the accept length."""
        return None if self.accept_length is None else self._acceptance(self.accept_length)

    @property
    def headroom_ms(self) -> float | None:
        """How much longer the cycle may get before it stops paying; negative: how much it must shrink."""
        if self.accept_length is None or self.step_ms is None or self.cycle_ms is None:
            return None
        return self.accept_length * self.step_ms - self.cycle_ms

    def _acceptance(self, accept_length: float) -> float | None:
        if not self.chain or self.max_accept_length is None or not 1.0 <= accept_length <= self.max_accept_length:
            return None
        return required_acceptance(accept_length, self.max_accept_length - 1)


def from_times(
    step_ms: float, cycle: CycleTime, *, accept_length: float | None = None, draft_tokens: int | None = None
) -> BreakEven:
    """Break-even from the time of a plain decode step and the parts of a cycle, at the same batch size.

    `draft_tokens` is the length of the drafted chain, so that at most draft_tokens + 1 tokens come out of a cycle.
    Raises UsageError for times that are not positive and accept lengths that no engine can report.
    """
    _positive("the decode step", step_ms, "ms")
    _positive("verify", cycle.verify_ms, "ms")
    for name, part in (("draft", cycle.draft_ms), ("draft-extend", cycle.draft_extend_ms), ("host", cycle.host_ms)):
        if part is not None and not (math.isfinite(part) and part >= 0):
            raise UsageError(f"{name} time must be 0 ms or more, not {part:g}")
    _plausible(accept_length, draft_tokens)
    total = cycle.total_ms
    return judged(
        break_even=total / step_ms,
        accept_length=accept_length,
        speedup=None if accept_length is None else accept_length * step_ms / total,
        draft_tokens=draft_tokens,
        step_ms=step_ms,
        cycle_ms=total,
        missing=cycle.missing,
    )


def from_throughputs(
    base: float, speculative: float, *, accept_length: float, draft_tokens: int | None = None
) -> BreakEven:
    """Break-even from both arms' tokens/s under the same load, and the accept length reached. Raises UsageError."""
    _positive("the base throughput", base, "tokens/s")
    _positive("the speculative throughput", speculative, "tokens/s")
    _plausible(accept_length, draft_tokens)
    speedup = speculative / base
    return judged(
        break_even=accept_length / speedup, accept_length=accept_length, speedup=speedup, draft_tokens=draft_tokens
    )


def from_both(
    step_ms: float,
    cycle: CycleTime,
    base: float,
    speculative: float,
    *,
    accept_length: float,
    draft_tokens: int | None = None,
) -> BreakEven:
    """Break-even from the throughputs of one request at a time, held against the times of the parts.

    A cycle takes accept length / throughput; what the parts do not account for is `unexplained_ms`. Raises UsageError
    when the parts do not fit into the cycle, as the two sets of figures cannot then be of the same run.
    """
    parts = from_times(step_ms, cycle, accept_length=accept_length, draft_tokens=draft_tokens)
    whole = from_throughputs(base, speculative, accept_length=accept_length, draft_tokens=draft_tokens)
    cycle_ms = 1000 * accept_length / speculative
    unexplained = cycle_ms - cycle.total_ms
    if unexplained < -RESOLUTION * cycle_ms:
        raise UsageError(
            f"the parts take {cycle.total_ms:g} ms, but {accept_length:g} tokens at {speculative:g} tokens/s are a "
            f"cycle of {cycle_ms:.1f} ms",
            "give times and throughputs of the same run, with one request at a time",
        )
    return replace(whole, step_ms=parts.step_ms, cycle_ms=cycle_ms, unexplained_ms=unexplained)


def judged(
    break_even: float,
    accept_length: float | None,
    speedup: float | None,
    *,
    draft_tokens: int | None = None,
    break_even_interval: Interval | None = None,
    accept_length_interval: Interval | None = None,
    speedup_interval: Interval | None = None,
    step_ms: float | None = None,
    cycle_ms: float | None = None,
    missing: tuple[str, ...] = (),
    chain: bool = True,
) -> BreakEven:
    """Put the verdict to figures that were derived elsewhere."""
    maximum = None if draft_tokens is None else draft_tokens + 1
    return BreakEven(
        break_even_accept_length=break_even,
        accept_length=accept_length,
        speedup=speedup,
        max_accept_length=maximum,
        verdict=_verdict(break_even, break_even_interval, speedup, speedup_interval, maximum),
        break_even_interval=break_even_interval,
        accept_length_interval=accept_length_interval,
        speedup_interval=speedup_interval,
        step_ms=step_ms,
        cycle_ms=cycle_ms,
        missing=missing,
        chain=chain,
    )


def expected_accept_length(acceptance: float, draft_tokens: int) -> float:
    """Expected accept length of a chain: (1 - a^(k+1)) / (1 - a) = 1 + a + ... + a^k, exact at a = 1 too."""
    total = 1.0
    for _ in range(draft_tokens):
        total = 1.0 + acceptance * total
    return total


def required_acceptance(accept_length: float, draft_tokens: int) -> float:
    """The per-token acceptance with which a chain of `draft_tokens` expects `accept_length` tokens.

    Raises ValueError outside [1, draft_tokens + 1], where no acceptance does.
    """
    if not 1.0 <= accept_length <= draft_tokens + 1:
        raise ValueError(
            f"a chain of {draft_tokens} emits between 1 and {draft_tokens + 1} tokens, not {accept_length}"
        )
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        if expected_accept_length(middle, draft_tokens) < accept_length:
            low = middle
        else:
            high = middle
    return high if accept_length > 1.0 else 0.0


def chain_speedup(acceptance: float, draft_tokens: int, draft_ratio: float, verify_ratio: float = 1.0) -> float:
    """Speed-up of a chain whose draft step costs `draft_ratio` and whose verify costs `verify_ratio` decode steps."""
    return expected_accept_length(acceptance, draft_tokens) / (draft_tokens * draft_ratio + verify_ratio)


def _verdict(
    break_even: float,
    break_even_interval: Interval | None,
    speedup: float | None,
    speedup_interval: Interval | None,
    maximum: int | None,
) -> Verdict | None:
    low, high = break_even_interval or (break_even, break_even)
    if high < 1.0:
        return "inconsistent"
    if maximum is not None and low > maximum:
        return "impossible"
    if speedup is None:
        return None
    slow, fast = speedup_interval or (speedup - RESOLUTION, speedup + RESOLUTION)
    if slow > 1.0:
        return "win"
    return "lose" if fast < 1.0 else "break_even"


def _positive(name: str, value: float, unit: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{name} must be more than 0 {unit}, not {value:g}")


def _plausible(accept_length: float | None, draft_tokens: int | None) -> None:
    if draft_tokens is not None and draft_tokens < 1:
        raise UsageError(f"a chain has at least 1 drafted token, not {draft_tokens}")
    if accept_length is None:
        return
    if not (math.isfinite(accept_length) and accept_length >= 1.0):
        raise UsageError(
            f"an accept length of {accept_length:g} leaves the bonus token out",
            "give it with the bonus token, as SGLang's log prints it: 1 or more",
        )
    if draft_tokens is not None and accept_length > draft_tokens + 1:
        raise UsageError(
            f"{draft_tokens} drafted tokens give an accept length of at most {draft_tokens + 1}, not {accept_length:g}",
            "--draft-tokens is the drafted chain: SGLang's --speculative-num-steps, not its num-draft-tokens",
        )

"""Stretches of time at one batch size, each counted or derived as a whole, as the capture's BatchStats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eaglediag.capture.model import AcceptStats, BatchStats, Blocks, Method
from eaglediag.probes.evidence.server_info import distribution


@dataclass(frozen=True)
class Stretch:
    """`steps` periods of `period_ms` in the mean. `passes` and `tokens` are 0 without speculation.

    `histogram` is as in AcceptStats, empty where accepted positions are not counted.
    """

    time: float
    steps: int
    period_ms: float
    passes: int
    tokens: int
    histogram: tuple[int, ...] = ()


def batch_stats(size: int, stretches: Sequence[Stretch], speculative: bool, method: Method) -> BatchStats:
    """One batch size's stretches, of which there is at least one. Each is a block."""
    summary = distribution([one.period_ms for one in stretches])
    summary.method = method
    # The mean over steps, as everywhere: the summary's own is over stretches of equal length in time.
    steps = sum(one.steps for one in stretches)
    summary.mean = sum(one.steps * one.period_ms for one in stretches) / steps
    return BatchStats(
        batch_size=size,
        kind="cycle" if speculative else "decode",
        count=steps,
        period_ms=summary,
        accept=AcceptStats(
            passes=sum(one.passes for one in stretches),
            tokens=sum(one.tokens for one in stretches),
            histogram=_histogram(stretches),
            method=method,
        )
        if speculative
        else None,
        blocks=Blocks(
            t=[one.time for one in stretches],
            steps=[one.steps for one in stretches],
            period_ms=[one.steps * one.period_ms for one in stretches],
            passes=[one.passes for one in stretches],
            tokens=[one.tokens for one in stretches],
        ),
    )


def _histogram(stretches: Sequence[Stretch]) -> list[int]:
    """The sum; empty when one stretch was not counted by position, as the sum must be of all passes."""
    if not all(one.histogram or not one.passes for one in stretches):
        return []
    longest = max((len(one.histogram) for one in stretches), default=0)
    return [sum(one.histogram[i] for one in stretches if i < len(one.histogram)) for i in range(longest)]

"""Time as it is drawn: seconds from the first window, without the pauses in which the server was started anew."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from eaglediag.capture.model import Window
from eaglediag.reports.step_series import Series

#: What is drawn of a pause between two starts of the server, as a share of the time measured.
PAUSE = 0.04
#: The longest block of steps, and how exact a server's log is about time.
BLOCK_S = 1.0


class TimeAxis:
    """Seconds from the first window. Of the pauses in which the server was started anew, next to nothing is drawn."""

    def __init__(self, series: Series, windows: Sequence[Window]) -> None:
        measured = [window for window in windows if window.ranks]
        begins: dict[int, float] = {}
        for window in measured:
            begins[window.repeat] = min(window.started, begins.get(window.repeat, math.inf))
        self.begins = sorted(begins.values()) or [math.inf]
        # A bucket may begin before the window whose steps it holds.
        self._slack = series.width_s
        for t, _ in series.buckets:
            start = self.start(t)
            self.begins[start] = min(self.begins[start], t)
        ends = list(self.begins)
        for begin, end in (
            *(stretch for window in measured for stretch in stretches(window)),
            *((t, t + series.width_s) for t, _ in series.buckets),
        ):
            start = self.start(begin)
            ends[start] = max(ends[start], end)
        self.lengths = [end - begin for begin, end in zip(self.begins, ends, strict=True)]
        self.pause = PAUSE * sum(self.lengths)
        self.shown = [sum(self.lengths[:i]) + i * self.pause for i in range(len(self.lengths))]
        self.end = self.shown[-1] + self.lengths[-1]

    def __call__(self, t: float) -> float:
        start = self.start(t)
        return self.shown[start] + min(t - self.begins[start], self.lengths[start] + self.pause)

    def holds(self, t: float) -> bool:
        """Whether it lies between the first and the last thing measured of a start."""
        start = self.start(t)
        return 0 <= t - self.begins[start] <= self.lengths[start]

    def start(self, t: float) -> int:
        """Which start of the server it was, the first being 0."""
        return max(0, bisect_right(self.begins, t + self._slack) - 1)


def stretches(window: Window) -> list[tuple[float, float]]:
    """(from, to) in Unix seconds, in order: when the window's load ran.

    Steps out of a server's log are put together by batch size from all over it: then it is when they were taken.
    """
    steps = sorted(
        (t, t + ms / 1000)
        for rank in window.ranks
        for batch in rank.batches
        for t, ms in zip(batch.blocks.t, batch.blocks.period_ms, strict=False)
    )
    end = window.started + window.duration_s
    if all(window.started - BLOCK_S <= begin <= end for begin, _ in steps):
        return [(window.started, end)]
    found = [steps[0]]
    for begin, stop in steps[1:]:
        if begin <= found[-1][1] + BLOCK_S:
            found[-1] = (found[-1][0], max(found[-1][1], stop))
        else:
            found.append((begin, stop))
    return found

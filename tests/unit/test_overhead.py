"""What the agent says that it costs."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from eaglediag.probes.agents import Rows
from eaglediag.probes.overhead import interval, own_time
from eaglediag.probes.payload.clock import CudaClock
from tests.report_material import raw_rows


def test_an_interval_of_students_t() -> None:
    # t(0.975, 3) = 3.182446, sd of 1, 2, 3, 4 = 1.290994
    assert interval([1.0, 2.0, 3.0, 4.0]) == pytest.approx((2.5, 2.5 - 2.054260, 2.5 + 2.054260), rel=1e-6)
    assert interval([1.2]) == (1.2, 1.2, 1.2)


def test_own_time_is_told_where_its_share_is_largest() -> None:
    assert own_time([]) is None
    few, many = raw_rows(steps=50), raw_rows(steps=50)
    few.hooks_ns, many.hooks_ns, many.gates_ns = 50 * 7_000, 50 * 60_000, 50 * 10_000
    told = own_time([few, many])
    assert told is not None
    hooks, gates, share = told
    assert (hooks, gates) == (60.0, 10.0)
    assert share == pytest.approx(0.070 / 7.3, rel=0.05)  # a step of raw_rows takes some 7.3 ms
    assert own_time([Rows(0, "host_clock", 0, 0, few.columns, few.rows[-5:])]) is None


class Event:
    """Notes which stream it was recorded on, as torch.cuda.Event would be."""

    def __init__(self, enable_timing: bool) -> None:
        self.stream: Any = None

    def record(self, stream: Any) -> None:
        self.stream = stream


def fake_torch(current: list[str], asked: list[str], quick: bool) -> SimpleNamespace:
    def current_stream() -> str:
        asked.append(current[0])
        return f"stream {current[0]}"

    cuda = SimpleNamespace(Event=Event, current_device=lambda: 1, current_stream=current_stream)
    private = {"_cuda_getCurrentStream": lambda device: (current[0], device)} if quick else {}
    return SimpleNamespace(cuda=cuda, _C=SimpleNamespace(**private))


@pytest.mark.parametrize("quick", [True, False])
def test_a_mark_is_on_the_stream_that_is_current(monkeypatch: pytest.MonkeyPatch, quick: bool) -> None:
    """And the stream's object is made once, where torch lets its current stream be named cheaply."""
    current, asked = ["a"], []  # type: list[str], list[str]
    monkeypatch.setitem(sys.modules, "torch", fake_torch(current, asked, quick))
    clock = CudaClock()
    found = []
    for current[0] in ("a", "a", "b", "a", "b"):
        event = clock.mark()
        found.append(event.stream)
        clock.release(event)
    assert found == ["stream a", "stream a", "stream b", "stream a", "stream b"]
    assert asked == ["a", "b"] if quick else len(asked) >= 5

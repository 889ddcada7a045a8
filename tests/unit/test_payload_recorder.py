"""Rows for steps, phases and accept lengths, from hooks on workers shaped like SGLang's."""

from __future__ import annotations

from enum import Enum, auto
from types import SimpleNamespace
from typing import Any

import pytest

from eaglediag.probes.agents import Rows
from eaglediag.probes.aggregate import rank_window
from eaglediag.probes.payload import recorder as recording
from eaglediag.probes.payload.hooks import MAX_ERRORS, Accept, Forward, Guarded, PhaseOf, Replay, Step, accept_lengths
from eaglediag.probes.payload.recorder import ACCEPT, COLUMNS, GRAPH, PERIOD, PHASE, ROW, TOKENS, Recorder
from eaglediag.probes.payload.wrap import Hook, innermost, wrap


class Mode(Enum):
    EXTEND = auto()
    DECODE = auto()
    TARGET_VERIFY = auto()
    IDLE = auto()


class Tensor:
    """Has a shape and would tell if anybody looked inside."""

    def __init__(self, length: int) -> None:
        self.shape = (length,)

    def __bool__(self) -> bool:
        raise AssertionError("a tensor was forced")

    __repr__ = __len__ = __iter__ = __bool__  # type: ignore[assignment]


def request(ended: bool = False) -> SimpleNamespace:
    return SimpleNamespace(finished=lambda: ended, is_retracted=False)


def batch(mode: Mode, size: int) -> SimpleNamespace:
    return SimpleNamespace(forward_mode=mode, reqs=[request() for _ in range(size)])


class ModelRunner:
    def forward(self, forward_batch: Any) -> Any:
        return SimpleNamespace(can_run_graph=forward_batch.graph)


class TpModelWorker:
    def __init__(self) -> None:
        self.runner = ModelRunner()

    def forward_batch_generation(self, batch: Any, forward_batch: Any = None) -> Any:
        self.runner.forward(forward_batch or SimpleNamespace(input_ids=Tensor(len(batch.reqs)), graph=True))
        return SimpleNamespace(next_token_ids=Tensor(1))


class DraftRunner:
    def execute(self) -> None:
        pass


class EagleWorker:
    """A cycle: draft as a graph, an eager verify, a draft-extend that says nothing."""

    def __init__(self) -> None:
        self.target = TpModelWorker()
        self.draft_runner = DraftRunner()

    def forward_batch_generation(self, batch: Any) -> Any:
        if batch.forward_mode is Mode.EXTEND:
            return self.target.forward_batch_generation(batch)
        self.draft(batch)
        result = self.verify(batch)
        self.extend(batch)
        return result

    def draft(self, batch: Any) -> None:
        self.draft_runner.execute()

    def verify(self, batch: Any) -> Any:
        wide = SimpleNamespace(input_ids=Tensor(3 * len(batch.reqs)), graph=False, forward_mode=Mode.TARGET_VERIFY)
        self.target.forward_batch_generation(None, wide)
        return SimpleNamespace(next_token_ids=Tensor(1))

    def extend(self, batch: Any) -> None:
        pass


def process_batch_result_decode(scheduler: Any, batch: Any, result: Any) -> None:
    result.num_correct_drafts_per_req_cpu = [1] * len(batch.reqs)


@pytest.fixture
def failures() -> list[str]:
    return []


@pytest.fixture
def recorder(failures: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    recorder = Recorder()

    def failed(hook: Hook, why: str) -> None:
        failures.append(why)

    patches = [
        wrap(innermost(TpModelWorker.forward_batch_generation), Step(recorder, failed, "decode")),
        wrap(innermost(EagleWorker.forward_batch_generation), Step(recorder, failed, "cycle")),
        wrap(innermost(EagleWorker.draft), PhaseOf(recorder, failed, "draft")),
        wrap(innermost(EagleWorker.verify), PhaseOf(recorder, failed, "verify")),
        wrap(innermost(EagleWorker.extend), PhaseOf(recorder, failed, "draft_extend")),
        wrap(innermost(ModelRunner.forward), Forward(recorder, failed)),
        wrap(innermost(DraftRunner.execute), Replay(recorder, failed)),
        wrap(innermost(process_batch_result_decode), Accept(recorder, failed)),
    ]
    recorder.start()
    for patch in patches:
        patch.on()
    yield recorder
    for patch in patches:
        patch.off()


def shown(rows: list[list[Any]]) -> list[tuple[Any, ...]]:
    return [(row[ROW], row[PHASE], row[TOKENS], row[GRAPH]) for row in rows]


def test_a_plain_decode_step(recorder: Recorder, failures: list[str]) -> None:
    worker = TpModelWorker()
    for _ in range(3):
        worker.forward_batch_generation(batch(Mode.DECODE, 2))
    rows = recorder.drain()
    assert shown(rows) == [("step", "decode", 2, True)] * 3
    assert [row[PERIOD] is not None for row in rows] == [True, True, False]
    assert failures == []


def test_a_cycle_and_its_parts(recorder: Recorder, failures: list[str]) -> None:
    worker = EagleWorker()
    results = [worker.forward_batch_generation(batch(Mode.DECODE, 2)) for _ in range(2)]
    for result in results:
        process_batch_result_decode(None, batch(Mode.DECODE, 2), result)
    rows = recorder.drain()
    assert shown(rows[:4]) == [
        ("phase", "draft", None, True),
        ("phase", "verify", 6, False),
        ("phase", "draft_extend", None, False),
        ("step", "cycle", None, True),
    ]
    assert [row[ACCEPT] for row in rows if row[ROW] == "accept"] == [[2, 2], [2, 2]]
    assert failures == []


def test_a_request_that_had_ended_accepts_nothing(recorder: Recorder, failures: list[str]) -> None:
    two = batch(Mode.DECODE, 2)
    result = EagleWorker().forward_batch_generation(two)
    two.reqs[0] = request(ended=True)
    process_batch_result_decode(None, two, result)
    assert [row[ACCEPT] for row in recorder.drain() if row[ROW] == "accept"] == [[2]]
    assert failures == []


def test_a_prefill_between_two_steps_leaves_no_period(recorder: Recorder) -> None:
    worker = EagleWorker()
    for mode in (Mode.DECODE, Mode.EXTEND, Mode.DECODE, Mode.DECODE):
        worker.forward_batch_generation(batch(mode, 1))
    steps = [row for row in recorder.drain() if row[ROW] == "step"]
    assert [row[PHASE] for row in steps] == ["cycle", "extend", "cycle", "cycle"]
    assert [row[PERIOD] is not None for row in steps] == [False, False, True, False]


def test_a_step_that_raises_is_forgotten(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(DraftRunner, "execute", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        EagleWorker().forward_batch_generation(batch(Mode.DECODE, 1))
    assert recorder.current() is None
    assert recorder.drain() == []


def test_memory_is_bounded_and_what_is_dropped_is_counted(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_ROWS", 5)
    worker = TpModelWorker()
    for _ in range(9):
        worker.forward_batch_generation(batch(Mode.DECODE, 1))
    assert recorder.dropped == 4
    assert len(recorder.drain()) == 5


def test_rows_sum_up(recorder: Recorder) -> None:
    worker = EagleWorker()
    for _ in range(20):
        result = worker.forward_batch_generation(batch(Mode.DECODE, 3))
        process_batch_result_decode(None, batch(Mode.DECODE, 3), result)
    window = rank_window(Rows(0, "host_clock", 0, 0, list(COLUMNS), recorder.drain()))
    [stats] = window.batches
    assert (stats.batch_size, stats.kind, stats.count) == (3, "cycle", 19)
    assert {part.phase: part.graph for part in stats.parts} == {"draft": True, "verify": False, "draft_extend": False}
    assert stats.accept is not None
    assert (stats.accept.passes, stats.accept.tokens, stats.accept.histogram) == (60, 120, [0, 60])
    assert stats.gap_ms is not None
    assert sum(part.host_ms.mean for part in stats.parts if part.host_ms) + stats.gap_ms.mean == pytest.approx(
        stats.period_ms.mean, abs=1e-4
    )


class Broken(Guarded):
    def before(self, arguments: tuple[Any, ...]) -> Any:
        raise KeyError("gone in this release")

    def after(self, token: Any, result: Any) -> None:
        raise AssertionError


def test_a_hook_that_fails_never_reaches_the_engine_and_is_given_up(failures: list[str]) -> None:
    hook = Broken(Recorder(), lambda hook, why: failures.append(why))
    for _ in range(MAX_ERRORS + 5):
        assert hook.enter((None,)) is None
    assert failures == [
        "KeyError: 'gone in this release'",
        f"removed after {MAX_ERRORS} errors, the last: KeyError: 'gone in this release'",
    ]


def test_accept_lengths_of_every_release() -> None:
    assert accept_lengths(SimpleNamespace(num_correct_drafts_per_req_cpu=[0, 2])) == [1, 3]
    assert accept_lengths(SimpleNamespace(accept_length_per_req_cpu=[0, 2])) == [1, 3]
    on_cpu = SimpleNamespace(is_cpu=True, tolist=lambda: [1, 3])
    assert accept_lengths(SimpleNamespace(accept_lens=on_cpu)) == [1, 3]
    assert accept_lengths(SimpleNamespace(accept_lens=SimpleNamespace(is_cpu=False))) is None
    assert accept_lengths((None, None)) is None

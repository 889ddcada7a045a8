"""Counting collectives: stand-ins for the backends, real hooks; and what the laptop makes of the counts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from eaglediag.capture.model import PhaseStats, RankWindow
from eaglediag.probes.collectives import add_collectives
from eaglediag.probes.payload.collectives import TORCH, Collectives, operation_of
from eaglediag.probes.payload.probe_points import ProbePoint
from eaglediag.probes.payload.recorder import Recorder
from eaglediag.probes.payload.wrap import innermost

SOURCE = """
class PyNcclCommunicator:
    disabled = False
    def all_reduce(self, tensor, op="sum"):
        if self.disabled:
            return
        return tensor
    def all_gather(self, output_tensor, input_tensor, sizes=None): pass

class CustomAllreduce:
    disabled = False
    def custom_all_reduce(self, input): return self.deterministic_all_reduce(input)
    def deterministic_all_reduce(self, inp, registered=False): return inp

class GroupCoordinator:
    def __init__(self, lower): self.lower = lower
    def _all_reduce_in_place(self, input_): self.lower(input_)
    def _all_gather_into_tensor(self, output, input): self.lower(output, input)

class DecodeCudaGraphRunner:
    def __init__(self, mode, drafting=False):
        self.capture_forward_mode = mode
        self.model_runner = Namespace(is_draft_worker=drafting)
    def capture_one_shape(self, size, forward, stream_idx=None):
        for run in ("warm up", "warm up", "capture"):
            forward(run)

class DraftRunner(DecodeCudaGraphRunner):
    def capture_one_shape(self, size, forward):
        super().capture_one_shape(size, forward)

def all_reduce(tensor, op="sum", group=None, async_op=False):
    if op == "fail":
        raise RuntimeError("nccl")
def isend(tensor, dst, group=None): pass
def batch_isend_irecv(p2p_op_list):
    for op in p2p_op_list: op.op(op.tensor, 1)
def all_gather(tensor_list, tensor, group=None, async_op=False): pass
def barrier(group=None, async_op=False): pass
def get_backend(group): return group or "nccl"
"""


class Tensor:
    """A contiguous tensor, as far as counting looks."""

    def __init__(self, count: int = 100, itemsize: int = 2, cuda: bool = True) -> None:
        self.count, self.itemsize, self.is_cuda = count, itemsize, cuda

    def numel(self) -> int:
        return self.count

    def element_size(self) -> int:
        return self.itemsize


POINTS = [
    *(
        ProbePoint("collective", "", "fake_backends", f"{owner}.{name}", "", 1, backend)
        for owner, name, backend in (
            ("PyNcclCommunicator", "all_reduce", "nccl (pynccl)"),
            ("PyNcclCommunicator", "all_gather", "nccl (pynccl)"),
            ("CustomAllreduce", "custom_all_reduce", "custom"),
            ("CustomAllreduce", "deterministic_all_reduce", "custom"),
            ("GroupCoordinator", "_all_reduce_in_place", "other"),
            ("GroupCoordinator", "_all_gather_into_tensor", "other"),
        )
    ),
    ProbePoint("capture", "", "fake_backends", "DecodeCudaGraphRunner.capture_one_shape", "", 1),
    ProbePoint("capture", "draft", "fake_backends", "DraftRunner.capture_one_shape", "", 1),
]
MODES = {name: SimpleNamespace(name=name) for name in ("DECODE", "TARGET_VERIFY")}


class Process:
    """A process with the stand-ins imported and counting on."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.recorder = Recorder()
        self.capturing = False
        self.refused: list[tuple[str, str]] = []
        self.collectives = Collectives(
            self.recorder, lambda target: None, lambda *why: self.refused.append(why), lambda: self.capturing
        )
        self.collectives.on()
        self.collectives.install(POINTS)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def capture(self, runner: Any, size: int, calls: int, call: Any) -> None:
        """Capture a graph whose forward makes `calls` calls, twice to warm up and once while the stream captures."""

        def forward(run: str) -> None:
            self.capturing = run == "capture"
            for _ in range(calls):
                call()
            self.capturing = False

        runner.capture_one_shape(size, forward)

    def eager(self) -> list[list[Any]]:
        rows: list[list[Any]] = self.collectives.report()["eager"]
        return rows

    def captured(self) -> dict[tuple[str, int], list[list[Any]]]:
        return {(phase, size): counts for phase, size, counts in self.collectives.report()["captured"]}


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    module = ModuleType("fake_backends")
    vars(module)["Namespace"] = SimpleNamespace
    exec(compile(SOURCE, "fake_backends.py", "exec"), vars(module))
    for name in ("fake_backends", TORCH):
        monkeypatch.setitem(sys.modules, name, module)
    made = Process(module)
    yield made
    made.collectives.off()


@pytest.fixture
def verifying(process: Process) -> Iterator[Process]:
    process.recorder.start()
    step = process.recorder.open("step", "cycle", 12)
    phase = process.recorder.open("phase", "verify", 12)
    yield process
    process.recorder.close(phase)
    process.recorder.close(step)


def test_every_point_of_the_stand_ins_is_hooked(process: Process) -> None:
    assert process.refused == []


class TestEager:
    def test_once_by_phase_batch_backend_and_operation(self, verifying: Process) -> None:
        for _ in range(65):
            verifying.all_reduce(Tensor(count=49152))
        verifying.all_gather([Tensor(), Tensor()], Tensor(count=16000))
        assert verifying.eager() == [
            ["verify", 12, "nccl (torch)", "all_reduce", 65, 65 * 98304],
            ["verify", 12, "nccl (torch)", "all_gather", 1, 32000],
        ]

    def test_one_layer_calling_the_next_is_one_collective(self, verifying: Process) -> None:
        verifying.GroupCoordinator(verifying.all_reduce)._all_reduce_in_place(Tensor())
        verifying.GroupCoordinator(verifying.PyNcclCommunicator().all_reduce)._all_reduce_in_place(Tensor())
        verifying.CustomAllreduce().custom_all_reduce(Tensor())
        assert [row[2:5] for row in verifying.eager()] == [
            ["nccl (torch)", "all_reduce", 1],
            ["nccl (pynccl)", "all_reduce", 1],
            ["custom", "all_reduce", 1],
        ]

    def test_a_backend_nobody_knows_is_still_a_collective(self, verifying: Process) -> None:
        verifying.GroupCoordinator(lambda tensor: None)._all_reduce_in_place(Tensor())
        verifying.GroupCoordinator(lambda *tensors: None)._all_gather_into_tensor(Tensor(count=400), Tensor())
        assert [row[2:] for row in verifying.eager()] == [
            ["other", "all_reduce", 1, 200],
            ["other", "all_gather", 1, 200],
        ]

    def test_a_communicator_that_is_off_launches_nothing(self, verifying: Process) -> None:
        communicator = verifying.PyNcclCommunicator()
        communicator.disabled = True
        communicator.all_reduce(Tensor())
        assert verifying.eager() == []

    def test_what_each_rank_contributes(self, verifying: Process) -> None:
        verifying.PyNcclCommunicator().all_gather(Tensor(count=800), Tensor(count=100))
        assert verifying.eager()[0][-1] == 200

    def test_on_a_cpu_tensor_the_group_says_which_backend(self, verifying: Process) -> None:
        verifying.all_reduce(Tensor(cuda=False), group="gloo")
        verifying.barrier(group="gloo")
        verifying.barrier()
        assert [row[2:5] for row in verifying.eager()] == [
            ["gloo", "all_reduce", 1],
            ["gloo", "barrier", 1],
            ["nccl (torch)", "barrier", 1],
        ]

    def test_a_batch_of_sends_is_one_launch(self, verifying: Process) -> None:
        one = SimpleNamespace(op=verifying.isend, tensor=Tensor(), group=None)
        verifying.batch_isend_irecv([one, one])
        assert [row[3:5] for row in verifying.eager()] == [["send_recv", 1]]

    def test_outside_any_phase(self, process: Process) -> None:
        process.recorder.start()
        process.all_reduce(Tensor())
        step = process.recorder.open("step", "cycle", 3)
        process.all_reduce(Tensor())
        process.recorder.close(step)
        assert process.eager() == [["", None, "nccl (torch)", "all_reduce", 2, 400]]

    def test_a_call_that_raises_does_not_hide_the_next(self, verifying: Process) -> None:
        with pytest.raises(RuntimeError):
            verifying.all_reduce(Tensor(), "fail")
        verifying.all_reduce(Tensor())
        assert verifying.eager()[0][4] == 2

    def test_a_call_that_cannot_be_read_is_named_and_the_counts_are_incomplete(self, verifying: Process) -> None:
        verifying.PyNcclCommunicator().all_reduce("no tensor")
        assert verifying.collectives.report()["complete"] is False
        assert "AttributeError" in verifying.refused[0][1]


class TestDormant:
    def test_sglangs_own_code_runs(self, process: Process) -> None:
        hooked = innermost(process.all_reduce).__code__
        process.collectives.off()
        assert innermost(process.all_reduce).__code__ is not hooked
        assert innermost(process.all_reduce).__code__.co_filename == "fake_backends.py"
        process.recorder.start()
        process.all_reduce(Tensor())
        assert process.eager() == []


class TestCaptured:
    def test_only_the_run_that_the_stream_captures(self, process: Process) -> None:
        runner = process.DecodeCudaGraphRunner(MODES["TARGET_VERIFY"])
        for size in (1, 8):
            process.capture(runner, size, 65, lambda: process.PyNcclCommunicator().all_reduce(Tensor()))
        assert process.captured() == {("verify", size): [["nccl (pynccl)", "all_reduce", 65, 13000]] for size in (1, 8)}
        assert process.eager() == []

    def test_a_graph_without_any_is_on_record(self, process: Process) -> None:
        process.capture(process.DecodeCudaGraphRunner(MODES["DECODE"]), 4, 0, lambda: None)
        assert process.captured() == {("decode", 4): []}

    def test_a_later_capture_of_the_same_graph_takes_its_place(self, process: Process) -> None:
        runner = process.DecodeCudaGraphRunner(MODES["DECODE"])
        for calls in (65, 33):
            process.capture(runner, 4, calls, lambda: process.all_reduce(Tensor()))
        assert process.captured()["decode", 4][0][2] == 33

    def test_runners_of_a_draft_of_several_layers_add_up(self, process: Process) -> None:
        runners = [process.DraftRunner(MODES["DECODE"]) for _ in range(3)]
        for runner in runners:
            process.capture(runner, 2, 3, lambda: process.all_reduce(Tensor()))
        assert process.captured()["draft", 2][0][2] == 9

    def test_a_runner_inside_a_runner_captures_one_graph(self, process: Process) -> None:
        process.capture(process.DraftRunner(MODES["DECODE"], drafting=True), 2, 3, lambda: process.all_reduce(Tensor()))
        assert list(process.captured()) == [("draft", 2)]

    def test_a_capture_that_fails_leaves_nothing_open(self, process: Process) -> None:
        runner = process.DecodeCudaGraphRunner(MODES["DECODE"])
        with pytest.raises(RuntimeError):
            process.capture(runner, 2, 1, lambda: process.all_reduce(Tensor(), "fail"))
        process.capture(runner, 4, 1, lambda: process.all_reduce(Tensor()))
        assert process.captured()["decode", 4][0][2] == 1

    def test_a_window_begins_without_eager_calls_and_with_all_graphs(self, verifying: Process) -> None:
        verifying.capture(
            verifying.DecodeCudaGraphRunner(MODES["DECODE"]), 4, 2, lambda: verifying.all_reduce(Tensor())
        )
        verifying.all_reduce(Tensor())
        verifying.collectives.clear()
        assert verifying.eager() == []
        assert ("decode", 4) in verifying.captured()


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("outplace_all_reduce", "all_reduce"), ("_all_reduce_in_place", "all_reduce"),
        ("cp_all_gather_into_tensor", "all_gather"), ("_reduce_scatter_tensor", "reduce_scatter"), ("irecv", "recv"),
        ("_push_stacked", "all_gather"), ("batch_isend_irecv", "send_recv"), ("gather", "gather"), ("reduce", "reduce"),
    ],
)  # fmt: skip
def test_the_operation_in_a_name(name: str, operation: str) -> None:
    assert operation_of(name) == operation


def window(*phases: tuple[str, int, bool | None, int]) -> RankWindow:
    """(phase, batch size, graph, passes)"""
    return RankWindow(
        rank=0,
        phases=[
            PhaseStats.model_validate({"phase": phase, "batch_size": batch, "graph": graph, "count": count})
            for phase, batch, graph, count in phases
        ],
    )


def report(eager: Any = (), captured: Any = (), complete: bool = True) -> dict[str, Any]:
    return {"complete": complete, "eager": list(eager), "captured": list(captured)}


class TestInTheCapture:
    def test_replays_multiply_what_was_captured_for_the_next_size_up(self) -> None:
        one = window(("verify", 3, True, 19))
        graph = [["nccl (pynccl)", "all_reduce", 65, 6500], ["nccl (pynccl)", "all_gather", 1, 50]]
        add_collectives(one, report(captured=[["verify", 1, []], ["verify", 4, graph], ["verify", 8, []]]))
        assert [(c.operation, c.calls, c.steps, c.calls_per_step, c.bytes_per_step) for c in one.collectives] == [
            ("all_reduce", 1235, 19, 65.0, 6500.0),
            ("all_gather", 19, 19, 1.0, 50.0),
        ]
        assert all(c.in_graph for c in one.collectives)
        assert one.collectives_counted == ["verify"]

    def test_eager_calls_belong_to_the_eager_passes(self) -> None:
        one = window(("draft_extend", 1, True, 90), ("draft_extend", 1, False, 10))
        add_collectives(
            one,
            report(
                [["draft_extend", 1, "nccl (torch)", "all_reduce", 30, 300]], [["draft_extend", 1, [["x", "y", 3, 30]]]]
            ),
        )
        eager, graph = one.collectives
        assert (eager.in_graph, eager.steps, eager.calls_per_step) == (False, 10, 3.0)
        assert (graph.in_graph, graph.steps, graph.calls) == (True, 90, 270)

    def test_eager_calls_beside_a_graph(self) -> None:
        one = window(("verify", 8, True, 20))
        add_collectives(one, report([["verify", 8, "nccl (torch)", "broadcast", 60, 960]], [["verify", 8, []]]))
        assert [(c.operation, c.steps, c.calls_per_step, c.in_graph) for c in one.collectives] == [
            ("broadcast", 20, 3.0, False)
        ]

    def test_one_gpu_has_none_and_says_that_it_looked(self) -> None:
        one = window(("decode", 1, True, 100), ("extend", 1, False, 4))
        add_collectives(one, report(captured=[["decode", 1, []]]))
        assert one.collectives == []
        assert one.collectives_counted == ["decode", "extend"]

    def test_a_graph_whose_capture_was_not_seen_is_not_zero(self) -> None:
        one = window(("decode", 1, True, 100), ("extend", 1, True, 4))
        add_collectives(one, report(captured=[["decode", 1, []]]))
        assert one.collectives_counted == ["decode"]

    def test_incomplete_counts_claim_nothing(self) -> None:
        one = window(("decode", 1, False, 100))
        add_collectives(one, report(complete=False))
        assert one.collectives_counted == []

    def test_the_schedulers_own(self) -> None:
        one = window(("decode", 1, False, 100))
        add_collectives(one, report([["", None, "gloo", "broadcast", 343, 14396]]))
        assert [(c.backend, c.calls, c.bytes) for c in one.collectives_outside] == [("gloo", 343, 14396)]

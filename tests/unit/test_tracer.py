"""What a denial says, to the letter, on functions small enough to see through."""

from __future__ import annotations

import enum
import functools
import gc
import json
import sys
import threading
import traceback
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eaglediag.probes.payload.sites import Site
from eaglediag.probes.payload.tracer import Refused, Tracer
from tests.traced import leaf, load, steps, trace


class Mode(enum.IntEnum):
    NULL = 0
    LAST = 1
    FULL = 2


class Tensor:
    """Behaves like a tensor that nobody may look into: only its shape, and its truth when the gate itself asks."""

    dtype, shape, device = "torch.int32", (4,), "cuda:0"

    def __init__(self, true: bool = False) -> None:
        self.true = true
        self.asked = 0

    def __bool__(self) -> bool:
        self.asked += 1
        return self.true

    def __repr__(self) -> str:
        raise AssertionError("a tensor was printed")

    def __eq__(self, other: object) -> bool:
        raise AssertionError("a tensor was compared")

    __hash__ = None  # type: ignore[assignment]


def answered(folder: Path, source: str, *arguments: Any, name: str = "can_run", **globals_: Any) -> Tracer:
    """Trace the function `name` of the source as a gate, call it, see that the answer is no, and return the tracer."""
    function = load(folder, source, **globals_)[name]
    tracer = trace(function)
    assert not function(*arguments)
    return tracer


def test_a_local_assigned_far_from_the_return(tmp_path: Path) -> None:
    tracer = answered(
        tmp_path,
        """
        def can_run(batch, runner):
            size = batch.batch_size
            fits = (
                size in runner.graphs
                if runner.exact
                else size <= runner.max_bs
            )
            other = True
            return (
                other
                and fits
            )
        """,
        SimpleNamespace(batch_size=12),
        SimpleNamespace(exact=False, max_bs=8, graphs={}),
    )
    assert steps(tracer) == [("other and fits", "True and False"), ("size <= runner.max_bs", "12 <= 8")]
    (denial,) = tracer.denials()
    assert [frame["line"] for frame in denial["frames"]] == [12, 7]
    assert denial["frames"][-1]["values"] == {"size": "12", "runner.max_bs": "8", "batch.batch_size": "12"}
    assert denial["frames"][-1]["function"].endswith("can_run")
    # the lines around it, without the margin that they share
    assert denial["frames"][-1]["source"] == [
        "4: fits = (",
        "5:     size in runner.graphs",
        "6:     if runner.exact",
        "7:     else size <= runner.max_bs",
        "8: )",
        "9: other = True",
        "10: return (",
    ]
    assert (denial["phase"], denial["batch_size"], denial["count"], denial["decides"]) == ("verify", 1, 1, True)
    json.dumps(denial)


def test_a_local_refined_in_an_if(tmp_path: Path) -> None:
    tracer = answered(
        tmp_path,
        """
        def can_run(batch, sync):
            fits = batch.size <= 8
            if sync:
                fits = fits and batch.together
            return fits
        """,
        SimpleNamespace(size=2, together=False),
        True,
    )
    assert steps(tracer) == [
        ("fits", "False"),
        ("fits and batch.together", "True and False"),
        ("batch.together", "False"),
    ]


def test_an_early_return_is_explained_by_its_if(tmp_path: Path) -> None:
    source = """
    def can_run(width, captured):
        if width is not None and width > 0 and width != captured:
            return False
        return True
    """
    tracer = answered(tmp_path, source, 3, 4)
    text = "width is not None and width > 0 and (width != captured)"
    assert steps(tracer) == [("return False", "return False"), (text, "3 is not None and 3 > 0 and 3 != 4")]


def test_what_an_earlier_return_let_through(tmp_path: Path) -> None:
    source = """
    def can_run(tokens, most):
        if tokens <= most:
            return True
        return False
    """
    assert steps(answered(tmp_path, source, 9, 8))[-1] == ("tokens <= most", "9 <= 8")


def test_elif_and_else(tmp_path: Path) -> None:
    source = """
    def can_run(a, b):
        if a:
            return True
        elif b > 3:
            return False
        else:
            return None
    """
    assert steps(answered(tmp_path, source, False, 4))[-1] == ("b > 3", "4 > 3")
    assert steps(answered(tmp_path, source, False, 1))[-1] == ("b > 3", "1 > 3")


def test_running_off_the_end_is_a_no(tmp_path: Path) -> None:
    source = """
    def can_run(a):
        if a > 1:
            return True
    """
    assert steps(answered(tmp_path, source, 0))[-1] == ("return", "return")


def test_false_or_names_all_its_operands(tmp_path: Path) -> None:
    tracer = answered(tmp_path, "def can_run(a, b):\n    return a == 2 or b > 3\n", 1, 3)
    assert steps(tracer) == [("a == 2 or b > 3", "1 == 2 or 3 > 3")]
    assert leaf(tracer)["values"] == {"a": "1", "b": "3"}


def test_not_and_bool(tmp_path: Path) -> None:
    tracer = answered(tmp_path, "def can_run(a, b):\n    return bool(a and not (b or a > 4))\n", 1, 7)
    assert steps(tracer)[-1] == ("b", "7")


def test_a_chain_stops_at_its_first_false_link(tmp_path: Path) -> None:
    assert steps(answered(tmp_path, "def can_run(a, b):\n    return 0 < a < b\n", 0, 5)) == [
        ("0 < a < b", "0 < 0 < ...")
    ]


def test_membership(tmp_path: Path) -> None:
    graphs = {size: object() for size in (1, 2, 4)}
    tracer = answered(tmp_path, "def can_run(size, graphs):\n    return size in graphs\n", 3, graphs)
    assert leaf(tracer)["shown"] == "3 in dict with keys [1, 2, 4]"


def test_enums_and_arithmetic(tmp_path: Path) -> None:
    source = """
    def can_run(mode, captured, size, width, tokens):
        right = mode == captured
        return size * width == tokens and right
    """
    tracer = answered(tmp_path, source, Mode.LAST, Mode.FULL, 2, 4, 8)
    assert leaf(tracer)["shown"] == "Mode.LAST == Mode.FULL"
    tracer = answered(tmp_path, source, Mode.LAST, Mode.LAST, 2, 4, 6)
    assert leaf(tracer)["shown"] == "8 == 6"
    assert leaf(tracer)["values"] == {"size * width": "8", "size": "2", "width": "4", "tokens": "6"}


def test_walrus(tmp_path: Path) -> None:
    source = """
    def can_run(batch):
        if (size := batch.size) > 4 and batch.strict:
            return False
        return (wide := size * 2) < 5 and wide
    """
    assert steps(answered(tmp_path, source, SimpleNamespace(size=3, strict=True)))[-1][1] == "6 < 5"
    assert "5 > 4" in steps(answered(tmp_path, source, SimpleNamespace(size=5, strict=True)))[-1][1]


def test_augmented_assignment(tmp_path: Path) -> None:
    source = """
    def can_run(a, b):
        fits = a < 5
        fits &= b < 5
        return fits
    """
    assert steps(answered(tmp_path, source, 1, 6))[-1] == ("b < 5", "6 < 5")
    assert steps(answered(tmp_path, source, 7, 1))[-1] == ("a < 5", "7 < 5")


def test_any_and_all(tmp_path: Path) -> None:
    source = """
    def can_run(sizes, most):
        return all(size <= most for size in sizes)
    """
    assert steps(answered(tmp_path, source, [1, 9, 20], 8))[-1] == ("size <= most", "9 <= 8")
    none = answered(tmp_path, "def can_run(sizes):\n    return any(size > 8 for size in sizes)\n", [1, 2])
    assert leaf(none)["shown"] == "any(...) is False"
    listed = answered(tmp_path, "def can_run(a, b):\n    return all([a, b > 1])\n", 1, 0)
    assert steps(listed)[-1] == ("b > 1", "0 > 1")


def test_flags_set_in_a_loop_keep_the_values_of_that_turn(tmp_path: Path) -> None:
    source = """
    def can_run(pairs):
        fits = True
        for start, end in pairs:
            if start < end:
                fits = False
        return fits
    """
    assert steps(answered(tmp_path, source, [(1, 1), (2, 3), (9, 4)]))[-1] == ("start < end", "2 < 3")


def test_a_return_in_a_loop(tmp_path: Path) -> None:
    source = """
    def can_run(pairs):
        for start, end in pairs:
            if start is not None and start < end:
                return False
        return True
    """
    assert steps(answered(tmp_path, source, [(None, 1), (2, 3)]))[-1][1] == "2 is not None and 2 < 3"


def test_an_exception_that_was_caught(tmp_path: Path) -> None:
    source = """
    def can_run(sizes):
        try:
            return sizes["most"] > 3
        except KeyError:
            return False
        finally:
            sizes.clear()
    """
    assert steps(answered(tmp_path, source, {}))[-1] == ("except KeyError", "KeyError('most')")


def test_with_and_match(tmp_path: Path) -> None:
    source = """
    import contextlib

    def can_run(kind):
        with contextlib.nullcontext():
            match kind:
                case "full":
                    return True
                case _:
                    return False
    """
    assert steps(answered(tmp_path, source, "eager"))[-1] == ("kind", "'eager'")


def test_what_is_not_plain_is_told_by_type(tmp_path: Path) -> None:
    tensor = Tensor()
    tracer = answered(tmp_path, "def can_run(a, b):\n    return a.lens and b\n", SimpleNamespace(lens=tensor), 1)
    assert steps(tracer)[-1] == ("a.lens", "Tensor(int32, (4,), cuda:0) is false")
    assert leaf(tracer)["values"] == {"a.lens": "Tensor(int32, (4,), cuda:0), false"}
    # Once by the gate's own `and`, once by this test's `assert not`.
    assert tensor.asked == 2


def test_an_answer_that_only_its_caller_can_judge_is_not_forced(tmp_path: Path) -> None:
    function = load(tmp_path, "def can_run(a):\n    return a\n")["can_run"]
    tracer = trace(function)
    tensor = Tensor()
    assert function(tensor) is tensor
    assert tensor.asked == 0
    assert tracer.denials() == []


CALLER = """
class Runner:
    def __init__(self, most): self.most = most
    def can_run(self, batch):
        fits = batch.size <= self.most
        return fits

class Model:
    def __init__(self, device, runner): self.device, self.runner = device, runner
    def forward(self, batch):
        mode_check = batch.mode.is_cpu_graph if self.device == "cpu" else batch.mode.is_cuda_graph
        can_run_graph = bool(mode_check() and self.runner and self.runner.can_run(batch))
        return "graph" if can_run_graph else "eager"
"""


class ForwardMode(enum.IntEnum):
    EXTEND = 1
    VERIFY = 2

    def is_cuda_graph(self) -> bool:
        return self is ForwardMode.VERIFY

    def is_cpu_graph(self) -> bool:
        return False


@pytest.fixture
def model(tmp_path: Path) -> SimpleNamespace:
    names = load(tmp_path, CALLER)
    tracer = trace(names["Runner"].can_run)
    trace(names["Model"].forward, "caller", tracer)
    return SimpleNamespace(tracer=tracer, **names)


def test_a_caller_without_a_runner(model: Any) -> None:
    assert model.Model("cuda", None).forward(SimpleNamespace(mode=ForwardMode.VERIFY)) == "eager"
    assert steps(model.tracer) == [
        ("mode_check() and self.runner and self.runner.can_run(batch)", "True and None and ..."),
        ("self.runner", "None"),
    ]


def test_a_method_bound_to_a_local_is_told_by_its_own_name(model: Any) -> None:
    assert model.Model("cpu", model.Runner(8)).forward(SimpleNamespace(mode=ForwardMode.VERIFY)) == "eager"
    assert steps(model.tracer)[-1] == ("batch.mode.is_cpu_graph()", "ForwardMode.VERIFY.is_cpu_graph() is False")


def test_a_denial_passed_on_is_one_denial(model: Any) -> None:
    served = model.Model("cuda", model.Runner(8))
    for size in (12, 12, 13):
        assert served.forward(SimpleNamespace(mode=ForwardMode.VERIFY, size=size)) == "eager"
    told = {denial["frames"][-1]["shown"]: denial["count"] for denial in model.tracer.denials()}
    assert told == {"12 <= 8": 2, "13 <= 8": 1}
    frames = model.tracer.denials()[0]["frames"]
    assert [frame["text"] for frame in frames] == [
        "mode_check() and self.runner and self.runner.can_run(batch)",
        "fits",
        "batch.size <= self.most",
    ]
    assert model.tracer.denials()[0]["gate"] == "Model.forward"


def test_a_gate_asked_outside_its_caller_counts_by_itself(model: Any) -> None:
    assert model.Runner(8).can_run(SimpleNamespace(size=9)) is False
    assert model.Model("cuda", None).forward(SimpleNamespace(mode=ForwardMode.VERIFY)) == "eager"
    assert sorted(denial["gate"] for denial in model.tracer.denials()) == ["Model.forward", "Runner.can_run"]


def test_a_decision_handed_on_in_a_tuple_and_taken_back(tmp_path: Path) -> None:
    names = load(
        tmp_path,
        """
        def prepare_for_draft(batch, runner):
            can_cuda_graph = runner and runner.can_run(batch)
            return batch, can_cuda_graph

        def draft(batch, runner, seeded):
            batch, can_cuda_graph = prepare_for_draft(batch, runner)
            if can_cuda_graph and seeded and batch.seed is None:
                can_cuda_graph = False
            return can_cuda_graph
        """,
    )
    tracer = trace(names["prepare_for_draft"], "caller")
    trace(names["draft"], "caller", tracer)
    runner = SimpleNamespace(can_run=lambda _: True)
    assert names["draft"](SimpleNamespace(seed=None), None, True) is None
    assert tracer.denials()[0]["frames"][0]["function"].endswith("draft")
    assert leaf(tracer)["text"] == "runner"
    tracer.clear()
    assert names["draft"](SimpleNamespace(seed=None), runner, True) is False
    assert steps(tracer) == [
        ("can_cuda_graph = False", "can_cuda_graph = False"),
        ("can_cuda_graph and seeded and (batch.seed is None)", "True and True and None is None"),
    ]
    tracer.clear()
    assert names["draft"](SimpleNamespace(seed=1), runner, True) is True
    assert tracer.denials() == []


FORWARD = """
def forward(batch, decode, prefill):
    can_run_graph = bool(batch.decodes and decode and decode.can_run_graph(batch))
    if can_run_graph:
        return "decode graph"
    elif batch.extends and prefill is not None and prefill.can_run_graph(batch):
        can_run_graph = True
    return can_run_graph
"""


def test_a_test_that_asks_a_second_graph(tmp_path: Path) -> None:
    forward = load(tmp_path, FORWARD)["forward"]
    tracer = trace(forward, "caller", phases=("decode", "verify"), condition_phases=("extend",))
    yes, no = SimpleNamespace(can_run_graph=lambda _: True), SimpleNamespace(can_run_graph=lambda _: False)
    extend, decode = SimpleNamespace(decodes=False, extends=True), SimpleNamespace(decodes=True, extends=False)

    assert forward(extend, yes, yes) is True
    assert tracer.denials() == []  # the later yes takes the earlier no back

    assert forward(decode, no, yes) is False
    assert leaf(tracer)["text"] == "decode.can_run_graph(batch)"  # and not that a decode is no extend

    tracer.clear()
    assert forward(extend, yes, no) is False
    told = {denial["frames"][-1]["text"]: denial["decides"] for denial in tracer.denials()}
    assert told == {"batch.decodes": True, "prefill.can_run_graph(batch)": False}  # the phase here is verify


def test_what_no_traced_gate_decided_is_explained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of the engine's own that says no costs no explanation again; a test about something else, none at all."""
    names = load(
        tmp_path,
        """
        class Runner:
            def can_run_graph(self, size):
                return size <= 8

        def forward(size, mode, is_graph, runner, prefill):
            check = is_graph if mode else runner.can_run_graph
            can_run_graph = bool(check(size) and runner.can_run_graph(size))
            if mode == "extend" and prefill.can_run_graph(size):
                can_run_graph = True
            return can_run_graph
        """,
    )
    explained: list[str] = []
    original = Site.explain

    def counting(site: Site, *arguments: Any) -> Any:
        explained.append(site.decision.kind)
        return original(site, *arguments)

    monkeypatch.setattr(Site, "explain", counting)
    forward, runner = names["forward"], names["Runner"]()
    tracer = trace(names["Runner"].can_run_graph)
    trace(forward, "caller", tracer)
    for _ in range(5):
        assert forward(1, "decode", lambda _: False, runner, None) is False
    # the first makes the plan, the second what is counted by it
    assert explained == ["assign", "assign"]
    (denial,) = tracer.denials()
    assert (denial["count"], denial["frames"][-1]["text"]) == (5, "check(size)")

    # The same way, but a traced gate stands behind the name: its own explanation is taken over.
    tracer.clear()
    assert forward(12, "decode", runner.can_run_graph, runner, None) is False
    (denial,) = tracer.denials()
    assert (denial["count"], denial["frames"][-1]["shown"]) == (1, "12 <= 8")


def test_phases_say_who_decides(tmp_path: Path) -> None:
    function = load(tmp_path, "def can_run(a):\n    return a > 1\n")["can_run"]
    tracer = trace(function, phases=("draft",))
    function(0)
    assert tracer.denials()[0]["decides"] is False


def test_super_closures_defaults_decorators_and_private_names(tmp_path: Path) -> None:
    names = load(
        tmp_path,
        '''
        from __future__ import annotations
        import functools

        def plain(function):
            @functools.wraps(function)
            def wrapper(*args, **kwargs):
                return function(*args, **kwargs)
            return wrapper

        class Base:
            def can_run(self, batch, *, most=8):
                """Has a docstring."""
                return batch <= most

        def make(limit):
            class Derived(Base):
                __secret = 3

                @plain
                def can_run(self, batch: Unknown, other: int = 5, *rest, most=8, **more):
                    return super().can_run(batch, most=most) and other <= self.__secret and batch < limit
            return Derived
        ''',
    )
    tracer = trace(names["Base"].can_run)
    derived = names["make"](2)
    wrapped = derived.can_run.__wrapped__
    trace(wrapped, tracer=tracer)
    assert names["Base"].can_run.__doc__ == "Has a docstring."
    assert derived().can_run(9) is False
    assert leaf(tracer)["shown"] == "9 <= 8"
    tracer.clear()
    assert derived().can_run(1) is False
    assert leaf(tracer)["shown"] == "5 <= 3"
    tracer.clear()
    assert derived().can_run(2, 1) is False
    assert leaf(tracer)["shown"] == "2 < 2"
    assert derived().can_run(1, 1) is True


def test_a_function_that_calls_itself(tmp_path: Path) -> None:
    function = load(tmp_path, "def can_run(n):\n    return n > 3 if n > 1 else can_run(n + 1)\n")["can_run"]
    tracer = trace(function)
    assert function(0) is False
    assert leaf(tracer)["shown"] == "2 > 3"
    assert sum(denial["count"] for denial in tracer.denials()) == 1


def test_one_assignment_undoes_it_and_imported_names_see_both(tmp_path: Path) -> None:
    function = load(tmp_path, "def can_run(a):\n    return a > 1\n")["can_run"]
    partial, original = functools.partial(function, 0), function.__code__
    tracer = trace(function)
    partial()
    function.__code__ = original
    partial()
    assert tracer.denials()[0]["count"] == 1


def test_tracebacks_keep_their_lines(tmp_path: Path) -> None:
    source = """
    def can_run(a):
        fits = (
            a.missing
            and True
        )
        return fits
    """
    function = load(tmp_path, source)["can_run"]

    def raised() -> list[Any]:
        with pytest.raises(AttributeError) as caught:
            function(1)
        return [(one.filename, one.lineno, one.name, one.line) for one in traceback.extract_tb(caught.tb)][1:]

    before = raised()
    trace(function)
    assert raised() == before
    assert before[0][1] == 4


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("def can_run(a):\n    yield a\n", "generator"),
        ("can_run = lambda a: a\n", "lambda"),
        ("def can_run(a):\n    return True\n", "no decision"),
    ],
)
def test_what_cannot_be_traced_is_refused_with_the_reason(tmp_path: Path, source: str, why: str) -> None:
    function = load(tmp_path, source)["can_run"]
    with pytest.raises(Refused, match=why):
        trace(function)


def test_source_that_is_not_what_runs_is_refused(tmp_path: Path) -> None:
    function = load(tmp_path, "def can_run(a):\n    return a > 1\n")["can_run"]
    Path(function.__code__.co_filename).write_text("def can_run(a):\n    return a > 2 and a\n")
    with pytest.raises(Refused, match="not the code that runs"):
        trace(function)
    Path(function.__code__.co_filename).unlink()
    with pytest.raises(Refused):
        trace(function)


def test_a_failing_explanation_leaves_the_result_and_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = load(tmp_path, "def can_run(a):\n    return a > 1\n")["can_run"]
    tracer = trace(function)
    monkeypatch.setattr("eaglediag.probes.payload.tracer._frames", lambda *_: 1 / 0)
    assert function(0) is False
    (denial,) = tracer.denials()
    assert (denial["explained"], denial["count"], denial["frames"]) == (False, 1, [])
    assert "ZeroDivisionError" in denial["reason"]


def test_a_failing_context_never_reaches_the_engine(tmp_path: Path) -> None:
    function = load(tmp_path, "def can_run(a):\n    return a > 1\n")["can_run"]
    trace(function, tracer=Tracer(lambda: (1 / 0, None)))  # type: ignore[arg-type, return-value]
    assert function(0) is False
    assert function(2) is True


def test_what_is_kept_is_bounded(tmp_path: Path) -> None:
    function = load(tmp_path, "def can_run(a):\n    return a < 0\n")["can_run"]
    tracer = trace(function, tracer=Tracer(lambda: ("verify", 1), limit=10))
    for number in range(50):
        function(number)
    denials = tracer.denials()
    assert len(denials) == 11
    assert sum(denial["count"] for denial in denials) == 50
    assert [denial["count"] for denial in denials if not denial["explained"]] == [40]


def test_nothing_of_the_engine_is_kept_alive(tmp_path: Path) -> None:
    class Batch:
        size = 12

    function = load(tmp_path, "def can_run(batch):\n    return batch.size <= 8\n")["can_run"]
    tracer = trace(function)
    batch = Batch()
    gone = weakref.ref(batch)
    function(batch)
    gc.disable()
    try:
        del batch
        assert gone() is None
    finally:
        gc.enable()
    assert tracer.denials()[0]["count"] == 1


def test_threads_do_not_mix_their_denials(model: Any) -> None:
    served = model.Model("cuda", model.Runner(8))

    def work(size: int) -> None:
        for _ in range(300):
            served.forward(SimpleNamespace(mode=ForwardMode.VERIFY, size=size))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(size,)) for size in (9, 10, 11)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert {denial["gate"] for denial in model.tracer.denials()} == {"Model.forward"}
    assert {denial["frames"][-1]["shown"] for denial in model.tracer.denials()} == {"9 <= 8", "10 <= 8", "11 <= 8"}

"""Random functions behave the same traced and untraced: value, order of evaluation, truth tests, exceptions, lines."""

from __future__ import annotations

import ast
import tempfile
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eaglediag.probes.payload.tracer import Tracer
from eaglediag.probes.payload.valuetext import describe
from tests.traced import load, trace

NAMES = ("v", "w", "x")
OPERANDS = 12


class Thing:
    """A value with opinions of its own: says when it is asked whether it is true, or compared."""

    def __init__(self, world: World, true: bool) -> None:
        self.world = world
        self.true = true

    def __bool__(self) -> bool:
        self.world.log.append(f"bool {id(self)}")
        return self.true

    def __eq__(self, other: object) -> Any:
        self.world.log.append(f"eq {id(self)}")
        return self

    __lt__ = __le__ = __eq__
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise AssertionError("repr'd")


class World:
    """Operands `p(3)` and `o.a3`: what they give is fixed by their number, and that they were asked is written down."""

    def __init__(self, values: list[Any]) -> None:
        self.log: list[str] = []
        self.values = [Thing(self, value == "true") if isinstance(value, str) else value for value in values]

    def p(self, number: int) -> Any:
        self.log.append(f"p {number}")
        value = self.values[number]
        if isinstance(value, type):
            raise value(number)
        return value

    def __getattr__(self, name: str) -> Any:
        return self.p(int(name[1:]))


VALUES = st.one_of(
    st.sampled_from([True, False, None, 0, 1, 2, 3]),
    st.sampled_from(["true", "false"]),
    st.sampled_from([ValueError, KeyError]),
)

operand = st.integers(0, OPERANDS - 1)
atoms = st.one_of(
    operand.map(lambda number: f"p({number})"),
    operand.map(lambda number: f"o.a{number}"),
    st.sampled_from(NAMES),
    st.sampled_from(["True", "False", "None", "0", "2"]),
)


def _compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = st.sampled_from(["==", "!=", "<", "<=", "is", "is not"])
    many = st.lists(inner, min_size=2, max_size=3)
    return st.one_of(
        many.map(lambda parts: f"({' and '.join(parts)})"),
        many.map(lambda parts: f"({' or '.join(parts)})"),
        inner.map(lambda part: f"(not {part})"),
        st.tuples(inner, operators, inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(inner, operators, inner, operators, inner).map(lambda t: f"({' '.join(t)})"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})"),
        inner.map(lambda part: f"bool({part})"),
        st.tuples(st.sampled_from(["any", "all"]), many).map(lambda t: f"{t[0]}([{', '.join(t[1])}])"),
        st.tuples(st.sampled_from(["any", "all"]), inner).map(lambda t: f"{t[0]}({t[1]} for i in (1, 2))"),
        st.tuples(st.sampled_from(NAMES), inner).map(lambda t: f"({t[0]} := {t[1]})"),
        st.tuples(inner, inner).map(lambda t: f"p({t[0]} in ({t[1]}, 2))"),
        inner.map(lambda part: f"(lambda: {part})()"),
    )


expressions = st.recursive(atoms, _compound, max_leaves=6)


@st.composite
def blocks(draw: st.DrawFn, depth: int, loop: bool = False) -> list[str]:
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        kinds = ["assign", "assign", "return", "augment"]
        if depth:
            kinds += ["if", "if", "else", "for", "while", "try", "finally", "with", "match"]
        if loop:
            kinds += ["break"]
        kind = draw(st.sampled_from(kinds))
        test = draw(expressions)
        name = draw(st.sampled_from(NAMES))

        def inner(in_loop: bool = loop) -> list[str]:
            return ["    " + line for line in draw(blocks(depth - 1, in_loop))]

        if kind == "assign":
            lines.append(f"{name} = {test}")
        elif kind == "augment":
            lines.append(f"{name} {draw(st.sampled_from(['&=', '|=', '+=']))} {test}")
        elif kind == "return":
            lines.append(f"return {draw(st.one_of(expressions, st.sampled_from(['False', 'True', 'None', name])))}")
        elif kind == "break":
            lines += [f"if {test}:", f"    {draw(st.sampled_from(['break', 'continue']))}"]
        elif kind == "if":
            lines += [f"if {test}:", *inner()]
        elif kind == "else":
            lines += [f"if {test}:", *inner(), f"elif {draw(expressions)}:", *inner(), "else:", *inner()]
        elif kind == "for":
            lines += [f"for {draw(st.sampled_from(['i', name]))} in (0, 1, 2):", *inner(True)]
        elif kind == "while":
            turn = f"turn{depth}"  # a loop inside must not start this one over
            lines += [f"{turn} = 0", f"while {turn} < 2 and {test}:", f"    {turn} += 1", *inner(True)]
        elif kind == "try":
            caught = draw(st.sampled_from(["ValueError", "(KeyError, TypeError)", "KeyError as error"]))
            lines += ["try:", *inner(), f"except {caught}:", *inner()]
        elif kind == "finally":
            lines += ["try:", *inner(), "finally:", f"    {name} = {test}"]
        elif kind == "with":
            lines += ["with quiet():", *inner()]
        else:
            lines += [f"match {test}:", "    case True | 1:", *["    " + line for line in inner()]]
            lines += ["    case _:", *["    " + line for line in inner()]]
    return lines


@st.composite
def sources(draw: st.DrawFn) -> str:
    head = ["v = p(0)", "w = o.a1"] if draw(st.booleans()) else []
    body = head + draw(blocks(2)) + [f"return {draw(expressions.filter(lambda text: text not in ('True', '2')))}"]
    return "def can_run(x):\n" + "\n".join("    " + line for line in body) + "\n"


def _outcome(function: FunctionType, world: World, argument: Any) -> tuple[Any, ...]:
    """What a call did, all that its caller can notice. Objects count by identity."""
    world.log.clear()
    try:
        result = function(argument)
    except Exception as error:
        lines = []
        trace_back = error.__traceback__
        while trace_back is not None:
            lines.append((trace_back.tb_frame.f_code.co_name, trace_back.tb_lineno))
            trace_back = trace_back.tb_next
        return ("raised", type(error), str(error), tuple(lines), tuple(world.log))
    return ("returned", type(result), id(result), tuple(world.log))


class Quiet:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


@pytest.mark.filterwarnings("ignore")
@given(sources(), st.lists(VALUES, min_size=OPERANDS, max_size=OPERANDS), VALUES)
@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
def test_traced_functions_do_exactly_what_they_did(source: str, values: list[Any], argument: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(values)
        function = load(Path(folder), source, p=world.p, o=world, quiet=Quiet)["can_run"]
        given_argument = Thing(world, argument == "true") if isinstance(argument, str) else argument
        expected = _outcome(function, world, given_argument)
        tracer = trace(function)
        assert _outcome(function, world, given_argument) == expected, source
        _check(tracer, function, world, expected, source)
        first = tracer.denials()
        assert _outcome(function, world, given_argument) == expected, source
        assert _outcome(function, world, given_argument) == expected, source
        assert tracer.denials() == [{**denial, "count": 3} for denial in first], source


def _check(tracer: Tracer, function: FunctionType, world: World, outcome: tuple[Any, ...], source: str) -> None:
    """A plain falsy answer is one explained denial, whose last step shows what its expression really evaluates to."""
    denials = tracer.denials()
    falsy = outcome[0] == "returned" and outcome[1] in (bool, int, type(None)) and not _by_id(outcome[2])
    if outcome[0] == "returned" and outcome[1] is not Thing:
        assert len(denials) == (1 if falsy else 0), source
    for denial in denials:
        assert denial["explained"], (denial["reason"], source)
        assert denial["count"] == 1
        last = denial["frames"][-1]
        if last["text"].startswith(("except", "return")):
            continue  # a statement says no by itself
        names = {node.id for node in ast.walk(ast.parse(last["text"])) if isinstance(node, ast.Name)}
        if names <= {"p", "o", "bool"} and last["shown"].startswith(tuple("0123456789TFN")):
            with_values = _evaluated(last["shown"], world)
            if with_values is not _FAILED:
                assert bool(with_values) == bool(_evaluated(last["text"], world)), (last, source)
        for text, value in last["values"].items():
            used = {node.id for node in ast.walk(ast.parse(text.removesuffix(" (last)"))) if isinstance(node, ast.Name)}
            if used <= {"p", "o"} and "Thing" not in value:
                assert describe(_evaluated(text.removesuffix(" (last)"), world)) == value, (last, source)


_FAILED = object()


def _evaluated(text: str, world: World) -> Any:
    try:
        return eval(text, {"p": world.p, "o": world})
    except (ValueError, KeyError, TypeError, NameError, SyntaxError):
        return _FAILED


def _by_id(identity: int) -> Any:
    return next((one for one in (True, False, None, 0) if id(one) == identity), True)

"""What a gate would say, worked out on paper from values that somebody gives; what is not given stays unknown.

The gate's own source is followed statement by statement, without running any of it. A value may depend on tests whose
outcome nobody gave: it is then kept once for each outcome, with the outcome that it assumes.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from eaglediag.analysis.gates.installation import Condition, Gate, Installation
from eaglediag.analysis.gates.source import Guard, function
from eaglediag.capture.model import Phase
from eaglediag.errors import UsageError

#: Short names for what the code calls otherwise.
ALIASES: dict[str, tuple[str, ...]] = {
    "batch": ("batch_size",),
    "capture_bs": ("capture_bs", "graphs", "_graphs"),
    "tokens": ("num_tokens",),
    "width": ("num_tokens_per_bs", "captured_req_width", "num_tokens_per_req"),
    "dp_batch": ("_max_dp_batch_size",),
}
#: Whose length is which given value: one entry a request, one a token.
LENGTHS = {"seq_lens": "batch_size", "input_ids": "num_tokens"}
#: More alternatives of one value than this are not kept apart.
MOST = 32

Verdict = Literal["denies", "allows", "not asked", "unknown"]


class _Unknown:
    """What was not given. Every operation on it is unknown too."""


UNKNOWN = _Unknown()


@dataclass(frozen=True)
class _Key:
    """The key of a captured graph, of which only the size is known."""

    size: Any


@dataclass(frozen=True)
class Asked:
    """What somebody asks about: a phase, and values by name."""

    phase: str | None
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    """What one condition says. `shown` is the condition with the known values in their places.

    `assuming` holds tests that nobody gave and that must come out so for the verdict to hold; `needs` the names that
    an unknown verdict waits for.
    """

    gate: Gate
    condition: Condition
    verdict: Verdict
    shown: str = ""
    assuming: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


def parse_question(text: str, installation: Installation) -> Asked:
    """`phase=verify batch=12 max_bs=8 capture_bs=1,2,4` as values by the code's names.

    Raises UsageError for what is no name=value, for an unknown phase, and for a name that no gate reads.
    """
    phase: str | None = None
    values: dict[str, Any] = {}
    readable = _readable(installation)
    for word in text.split():
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier() or not value:
            raise UsageError(f"`{word}` is no name=value", "ask like --explain 'phase=verify batch=12 max_bs=8'")
        if name == "phase":
            if value not in get_args(Phase):
                raise UsageError(f"{value} is no phase", f"take one of {', '.join(get_args(Phase))}")
            phase = value
            continue
        names = ALIASES.get(name, (name,))
        if not readable & set(names):
            raise UsageError(
                f"no gate of {installation.name} reads `{name}`",
                "give batch, max_bs, capture_bs, disable_padding, tokens, width, or a name from its conditions",
            )
        values.update(dict.fromkeys(names, _literal(value)))
    if not values:
        raise UsageError("no value was given", "ask like --explain 'phase=verify batch=12 max_bs=8'")
    return Asked(phase, values)


def answers(installation: Installation, asked: Asked) -> list[Answer]:
    """What every condition of every gate of the phase says, gate by gate."""
    found: list[Answer] = []
    for gate in installation.of_phase(asked.phase):
        found += _Paper(gate, asked).answers()
    return found


def _literal(text: str) -> Any:
    if "," in text:
        return tuple(_literal(part) for part in text.split(",") if part)
    try:
        return int(text)
    except ValueError:
        return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def _readable(installation: Installation) -> set[str]:
    names: set[str] = set()
    for gate in installation.gates:
        tree = function(gate.source)
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, ast.Name):
                names.add(node.id)
            elif isinstance(node, ast.Attribute):
                names.add(node.attr)
        for text in gate.attributes.values():
            names.update(node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute))
    return names


@dataclass(frozen=True)
class _Case:
    """One value an expression may have, under the outcomes assumed of tests that nobody gave."""

    value: Any
    assumed: Mapping[str, bool] = field(default_factory=dict)
    tests: tuple[Guard, ...] = ()
    #: Whether a value that was given is part of it: only then is it worth keeping apart.
    given: bool = False


_Cases = list[_Case]
_Variables = dict[str, _Cases]
_NOTHING: _Cases = [_Case(UNKNOWN)]

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not, ast.In: lambda one, many: _held(one, many),
    ast.NotIn: lambda one, many: not held if isinstance(held := _held(one, many), bool) else held,
}  # fmt: skip
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}  # fmt: skip
_CALLS: dict[str, Callable[..., Any]] = {"max": max, "min": min, "len": len, "bool": bool, "int": int, "abs": abs}


def _held(one: Any, many: Any) -> Any:
    sizes = many if isinstance(many, (tuple, list)) else (many,)
    if isinstance(one, _Key):
        # A graph of this size exists; whether it is of the same variant, its key alone tells.
        return UNKNOWN if one.size in sizes else False
    return one in sizes


class _Paper:
    """One gate, followed with what was given."""

    def __init__(self, gate: Gate, asked: Asked) -> None:
        self.gate = gate
        self.given = dict(asked.values)
        #: What follows from the phase. It chooses branches; alone, it is no answer to what somebody asks.
        self.implied = {} if asked.phase is None else {"is_target_verify": asked.phase == "verify"}
        self.deriving: set[str] = set()
        self.results: dict[Condition, _Cases] = {}
        self.shown: dict[Condition, _Variables] = {}
        self.tree = function(gate.source)

    def answers(self) -> Iterator[Answer]:
        if self.tree is not None:
            self._block(self.tree.body, {})
        for condition in self.gate.conditions:
            yield self._answer(condition)

    def _answer(self, condition: Condition) -> Answer:
        place = self.gate.places.get((condition.text, condition.line))
        cases = self.results.get(condition)
        if place is None or cases is None:
            return Answer(self.gate, condition, "unknown", needs=(condition.text,))
        variables = self.shown[condition]
        behind: tuple[Guard, ...] = ()
        for guard in place.guards:
            truths = {_truth(case.value) for case in self._cases(guard.test, variables)}
            if truths == {not guard.want}:
                return Answer(self.gate, condition, "not asked")
            if truths != {guard.want}:
                behind += (guard,)
        decided = [case for case in cases if _truth(case.value) is condition.denies_when]
        if not decided:
            decided = [case for case in cases if _truth(case.value) is not None]
        provided = () if decided else self._provided(place.expression, condition.denies_when, variables)
        if not decided and not provided:
            return Answer(self.gate, condition, "unknown", needs=self._needed(place.expression, variables))
        case = decided[0] if decided else _Case(condition.denies_when)
        told = {guard.text: None for guard in (*behind, *case.tests, *provided)}
        denies = _truth(case.value) is condition.denies_when
        return Answer(
            gate=self.gate,
            condition=condition,
            verdict="denies" if denies else "allows",
            shown=self._show(place.expression, variables, case),
            assuming=tuple(told),
        )

    def _provided(self, expression: ast.expr, denies: bool, variables: _Variables) -> tuple[Guard, ...]:
        """For `a and b` of which the given values decide `b`: that `a` must be so too for the whole to deny."""
        if not isinstance(expression, ast.BoolOp) or isinstance(expression.op, ast.And) is not denies:
            return ()
        unknown, given = [], False
        for operand in expression.values:
            cases = self._cases(operand, variables)
            if {_truth(case.value) for case in cases} == {denies}:
                given = given or any(case.given for case in cases)
            else:
                unknown.append(operand)
        return tuple(Guard(operand, denies) for operand in unknown) if given else ()

    def _needed(self, expression: ast.expr, variables: _Variables) -> tuple[str, ...]:
        """The parts of an expression that are not known, as the code writes them."""
        if any(case.value is not UNKNOWN for case in self._cases(expression, variables)):
            return ()
        parts = [node for node in ast.iter_child_nodes(expression) if isinstance(node, ast.expr)]
        if isinstance(expression, (ast.Compare, ast.BoolOp, ast.BinOp, ast.UnaryOp)):
            return tuple(dict.fromkeys(name for part in parts for name in self._needed(part, variables)))
        return (ast.unparse(expression),)

    def _show(self, expression: ast.expr, variables: _Variables, under: _Case) -> str:
        """The expression with every part that is known under the case's assumptions as its value."""
        paper = self

        class Filled(ast.NodeTransformer):
            def visit(self, node: ast.AST) -> ast.AST:
                if isinstance(node, ast.Call) and (asked := paper._asked_backend(node, variables)) is not None:
                    return asked
                if isinstance(node, (ast.Name, ast.Attribute, ast.Call)):
                    known = [
                        case
                        for case in paper._cases(node, variables)
                        if case.value is not UNKNOWN and _together(case, under) is not None
                    ]
                    if known:
                        value = known[0].value
                        return ast.Constant(value.size if isinstance(value, _Key) else _shown(value))
                    return node
                return self.generic_visit(node)

        return ast.unparse(Filled().visit(ast.parse(ast.unparse(expression), mode="eval").body))

    def _asked_backend(self, node: ast.Call, variables: _Variables) -> ast.expr | None:
        """The backend's gate in its own words: is this size among its graphs?"""
        if not isinstance(node.func, ast.Attribute) or node.func.attr != "can_run" or "_graphs" not in self.given:
            return None
        keys = [case.value for case in self._cases(node.args[-1], variables) if isinstance(case.value, _Key)]
        graphs = ast.Constant(_shown(self.given["_graphs"]))
        return ast.Compare(ast.Constant(keys[0].size), [ast.In()], [graphs]) if keys else None

    # -- statements ----------------------------------------------------------------------------------------------

    def _block(self, block: list[ast.stmt], variables: _Variables) -> None:
        for statement in block:
            self._note(statement, variables)
            if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                cases = self._cases(statement.value, variables)
                for target in targets:
                    for node in ast.walk(target):
                        if isinstance(node, ast.Name):
                            variables[node.id] = cases if node is target else _NOTHING
            elif isinstance(statement, ast.If):
                self._if(statement, variables)
            else:
                # A loop, a `try`: what is assigned inside is not known, neither there nor behind it.
                stored = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
                unknown = {node.id: _NOTHING for node in stored if isinstance(node.ctx, ast.Store)}
                for name in ("body", "orelse", "finalbody"):
                    variables.update(unknown)
                    self._block(getattr(statement, name, []), variables)
                variables.update(unknown)

    def _if(self, statement: ast.If, variables: _Variables) -> None:
        before = dict(variables)
        branches: list[tuple[bool, _Variables]] = []
        for want, block in ((True, statement.body), (False, statement.orelse)):
            after = dict(before)
            self._block(block, after)
            branches.append((want, after))
        truths = {_truth(case.value) for case in self._cases(statement.test, before)}
        for name in {name for _, after in branches for name in after}:
            alternatives = [(want, after.get(name, _NOTHING)) for want, after in branches]
            possible = [(want, cases) for want, cases in alternatives if truths & {want, None}]
            if len(possible) == 1 or (len(possible) == 2 and possible[0][1] is possible[1][1]):
                variables[name] = possible[0][1]
            else:
                variables[name] = _either(statement.test, possible)

    def _note(self, statement: ast.stmt, variables: _Variables) -> None:
        """Work out the conditions that stand in this statement, with the variables as they are before it."""
        assert self.tree is not None
        for condition in self.gate.conditions:
            place = self.gate.places.get((condition.text, condition.line))
            if place is None or condition in self.results:
                continue
            line = condition.line - self.gate.line + self.tree.lineno
            last = statement.end_lineno or statement.lineno
            if isinstance(statement, ast.If):
                last = statement.body[0].lineno - 1 if statement.body[0].lineno > statement.lineno else statement.lineno
            elif any(hasattr(statement, name) for name in ("body", "handlers")):
                last = statement.lineno
            if statement.lineno <= line <= last:
                self.results[condition] = self._cases(place.expression, variables)
                self.shown[condition] = dict(variables)

    # -- expressions ---------------------------------------------------------------------------------------------

    def _cases(self, node: ast.AST, variables: _Variables) -> _Cases:
        """The values an expression may have."""
        match node:
            case ast.Constant():
                return [_Case(node.value)]
            case ast.Name():
                if node.id in variables and any(case.given for case in variables[node.id]):
                    return variables[node.id]
                if node.id in self.given:
                    return [_Case(self.given[node.id], given=True)]
                return variables.get(node.id, _NOTHING)
            case ast.Attribute():
                return self._attribute(node, variables)
            case ast.Call():
                return self._call(node, variables)
            case ast.Compare():
                return self._compare(node, variables)
            case ast.BinOp() if type(node.op) in _BINARY:
                return self._apply(_BINARY[type(node.op)], [node.left, node.right], variables)
            case ast.UnaryOp(op=ast.Not()):
                return self._apply(operator.not_, [node.operand], variables)
            case ast.BoolOp():
                return self._boolean(node, variables)
            case ast.IfExp():
                truths = {_truth(case.value) for case in self._cases(node.test, variables)}
                branches = [(True, self._cases(node.body, variables)), (False, self._cases(node.orelse, variables))]
                possible = [(want, cases) for want, cases in branches if truths & {want, None}]
                return possible[0][1] if len(possible) == 1 else _either(node.test, possible)
            case ast.Subscript(slice=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1))):
                return self._apply(lambda many: many[-1], [node.value], variables)
            case ast.Tuple() | ast.List():
                return self._apply(lambda *items: items, list(node.elts), variables)
            case _:
                return _NOTHING

    def _attribute(self, node: ast.Attribute, variables: _Variables) -> _Cases:
        if node.attr in self.given:
            return [_Case(self.given[node.attr], given=True)]
        own = isinstance(node.value, ast.Name) and node.value.id == "self"
        text = self.gate.attributes.get(node.attr) if own else None
        # What the constructor computes from what was given, such as `max(self.capture_bs)`. Anything else that it
        # assigns may have changed since.
        if text is None or node.attr in self.deriving:
            return _NOTHING
        self.deriving.add(node.attr)
        cases = self._cases(ast.parse(text, mode="eval").body, {})
        self.deriving.discard(node.attr)
        return cases if any(case.given for case in cases) else _NOTHING

    def _call(self, node: ast.Call, variables: _Variables) -> _Cases:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in self.given:
            return [_Case(self.given[called], given=True)]
        if called in self.implied:
            return [_Case(self.implied[called])]
        if called.endswith("_graph_key") or called == "ShapeKey":
            return self._apply(_Key, node.args[:1], variables) if node.args else _NOTHING
        if called == "can_run" and len(node.args) == 2 and "_graphs" in self.given:
            # The backend's gate asks whether it holds this key.
            return [
                _Case(_held(case.value, self.given["_graphs"]), case.assumed, case.tests, True)
                if case.value is not UNKNOWN
                else case
                for case in self._cases(node.args[1], variables)
            ]
        counted = node.args[0] if called == "len" and node.args else getattr(node.func, "value", None)
        length = LENGTHS.get(counted.attr) if isinstance(counted, ast.Attribute) else None
        if called in ("len", "numel") and length in self.given:
            return [_Case(self.given[length], given=True)]
        if isinstance(node.func, ast.Name) and called in _CALLS and not node.keywords:
            return self._apply(_CALLS[called], node.args, variables)
        return _NOTHING

    def _compare(self, node: ast.Compare, variables: _Variables) -> _Cases:
        def chain(*values: Any) -> Any:
            unknown = False
            for one, test, other in zip(values, node.ops, values[1:], strict=False):
                if one is UNKNOWN or other is UNKNOWN:
                    unknown = True
                    continue
                held = _COMPARE[type(test)](one, other)
                if held is UNKNOWN:
                    unknown = True
                elif not held:
                    return False
            return UNKNOWN if unknown else True

        return self._apply(chain, [node.left, *node.comparators], variables, strict=False)

    def _boolean(self, node: ast.BoolOp, variables: _Variables) -> _Cases:
        stops = isinstance(node.op, ast.Or)

        def joined(*values: Any) -> Any:
            truths = [_truth(value) for value in values]
            return stops if stops in truths else UNKNOWN if None in truths else not stops

        return self._apply(joined, list(node.values), variables, strict=False)

    def _apply(
        self, function: Callable[..., Any], nodes: list[ast.expr], variables: _Variables, strict: bool = True
    ) -> _Cases:
        """`function` of every combination of the operands' values whose assumptions go together."""
        combined: list[tuple[list[Any], _Case]] = [([], _Case(None))]
        for node in nodes:
            cases = self._cases(node, variables)
            combined = [
                ([*values, case.value], both)
                for values, so_far in combined
                for case in cases
                if (both := _together(so_far, case)) is not None
            ][:MOST]
        found = []
        for values, case in combined:
            value: Any = UNKNOWN
            if not strict or UNKNOWN not in values:
                try:
                    value = function(*values)
                except (TypeError, ValueError, ArithmeticError, LookupError):
                    value = UNKNOWN
            found.append(_Case(value, case.assumed, case.tests, case.given))
        return found


def _either(test: ast.expr, branches: list[tuple[bool, _Cases]]) -> _Cases:
    """The values of both branches of a test that nobody gave, each under the outcome that leads there."""
    if not any(case.given for _, cases in branches for case in cases):
        return _NOTHING
    text = ast.unparse(test)
    found = []
    for want, cases in branches:
        for case in cases:
            both = _together(case, _Case(None, {text: want}, (Guard(test, want),)))
            if both is not None:
                found.append(_Case(case.value, both.assumed, both.tests, case.given))
    return found[:MOST]


def _together(one: _Case, other: _Case) -> _Case | None:
    """Both cases' assumptions, None where they contradict each other."""
    if any(one.assumed.get(text, want) is not want for text, want in other.assumed.items()):
        return None
    tests = (*one.tests, *(guard for guard in other.tests if ast.unparse(guard.test) not in one.assumed))
    return _Case(other.value, {**one.assumed, **other.assumed}, tests, one.given or other.given)


def _shown(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _truth(value: Any) -> bool | None:
    return None if isinstance(value, (_Unknown, _Key)) else bool(value)

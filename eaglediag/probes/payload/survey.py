"""Where a function decides between graph and eager, and which of its locals the decision rests on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .explain import Definition, Node

GATE_NAME = re.compile(r"_?can_run(_graph|_cuda_graph|_\w*graph)?|_?can_replay\w*")
#: Asked when the server starts, not at a step.
_AT_START = "can_run_piecewise_cuda_graph"
DECISION_NAME = re.compile(r"_?can_run\w*graph\w*|can_run|can_cuda_graph|runs_graph")
#: Functions that hand a decision on in the tuple they return.
_HANDS_ON = re.compile(r"prepare_for_(v2_)?draft|forward_extend")

#: `try` with `except` or with `except*` (Python 3.11).
TRIES: tuple[type[ast.Try], ...] = (ast.Try, getattr(ast, "TryStar", ast.Try))

Guard = tuple[ast.AST, bool]


@dataclass
class Decision:
    """One place where a graph is allowed or denied.

    kind: `return` (a gate's answer), `assign` (a caller's local), `unpack` (a local that a called function decided),
    `condition` (a test that holds the call of a gate; `line` is that of the test).
    """

    kind: str
    statement: ast.stmt
    line: int
    expression: ast.expr | None
    name: str = ""
    want: bool = False
    guards: list[Guard] = field(default_factory=list)
    node: Node | None = None
    guard_nodes: list[tuple[Node, bool]] = field(default_factory=list)
    root: Node | None = None
    receiver: str = ""
    callee: str = ""
    number: int = -1


@dataclass
class Assignment:
    """An assignment to a local, as the first pass found it."""

    statement: ast.AST
    value: ast.expr
    loops: tuple[ast.AST, ...]
    guards: list[Guard]
    definition: Definition | None = None


def falsy_constant(expression: ast.expr | None) -> bool:
    return expression is None or (isinstance(expression, ast.Constant) and not expression.value)


def truthy_constant(expression: ast.expr | None) -> bool:
    return isinstance(expression, ast.Constant) and bool(expression.value)


def gate_calls(expression: ast.AST) -> list[ast.Call]:
    """The calls of gates in an expression, in the order of the source."""
    return [
        node
        for node in ast.walk(expression)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if GATE_NAME.fullmatch(node.func.attr) and node.func.attr != _AT_START
    ]


def bodies(statement: ast.stmt) -> Iterator[tuple[str, list[ast.stmt]]]:
    """The blocks of statements inside a statement, functions and classes left out."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return
    for name in ("body", "orelse", "finalbody"):
        block = getattr(statement, name, None)
        if block:
            yield name, block
    for part in [*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())]:
        yield "body", part.body


def ends(block: list[ast.stmt]) -> bool:
    """Whether control never runs off the end of the block, as far as its shape says."""
    last = block[-1] if block else None
    if isinstance(last, (ast.Return, ast.Raise, ast.Continue, ast.Break)):
        return True
    if isinstance(last, ast.If):
        return ends(last.body) and ends(last.orelse)
    if isinstance(last, (ast.With, ast.AsyncWith)):
        return False
    if isinstance(last, TRIES):
        tried = ends(last.orelse) if last.orelse else ends(last.body)
        return ends(last.finalbody) or (tried and all(ends(handler.body) for handler in last.handlers))
    return False


class Survey:
    """The first pass: what a function decides, and where its locals come from."""

    def __init__(self, function: ast.FunctionDef, kind: str) -> None:
        self.function = function
        self.kind = kind
        self.decisions: list[Decision] = []
        self.assignments: dict[str, list[Assignment]] = {}
        self.bound: set[int] = set()
        self.untracked: set[str] = set()
        self.followed: set[str] = set()
        arguments = function.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        self.parameters = {argument.arg for argument in every if argument is not None}
        self._block(function.body, [], ())
        self._bindings()
        self.locals = set(self.assignments) | self.parameters | self.untracked
        self.trackable = {name for name in self.assignments if name not in self.untracked | self.parameters}
        self.expressions: set[ast.AST] = set()
        self._follow()

    # -- statements ----------------------------------------------------------------------------------------------

    def _block(self, block: list[ast.stmt], guards: list[Guard], loops: tuple[ast.AST, ...]) -> None:
        passed: list[Guard] = []
        for statement in block:
            here = passed or guards
            self._statement(statement, here, loops)
            inner = (*loops, statement) if isinstance(statement, (ast.For, ast.AsyncFor, ast.While)) else loops
            for name, inside in bodies(statement):
                self._block(inside, self._guards(statement, name, inside, here), inner)
            if isinstance(statement, ast.If) and not statement.orelse and ends(statement.body):
                last = statement.body[-1]
                if isinstance(last, ast.Return) and not falsy_constant(last.value):
                    passed = [*passed, (statement.test, False)]

    def _guards(self, statement: ast.stmt, name: str, block: list[ast.stmt], outer: list[Guard]) -> list[Guard]:
        if isinstance(statement, ast.If):
            return [(statement.test, name == "body")]
        if isinstance(statement, TRIES):
            for handler in statement.handlers:
                if handler.body is block:
                    return [(handler, True)]
        if isinstance(statement, ast.Match):
            return [(statement.subject, True)]
        return outer

    def _statement(self, statement: ast.stmt, guards: list[Guard], loops: tuple[ast.AST, ...]) -> None:
        if isinstance(statement, ast.Return) and self.kind == "gate":
            if not truthy_constant(statement.value):
                self._decide("return", statement, statement.value, guards)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            if len(targets) == 1 and isinstance(targets[0], ast.Name):
                name = targets[0].id
                self._assigned(targets[0], Assignment(statement, statement.value, loops, guards))
                if self.kind == "caller" and DECISION_NAME.fullmatch(name):
                    self._decide_local(statement, name, statement.value, guards)
            elif self.kind == "caller" and len(targets) == 1 and isinstance(targets[0], ast.Tuple):
                self._decide_unpacked(statement, targets[0], statement.value, guards)
        elif isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            self._assigned(statement.target, Assignment(statement, statement.value, loops, guards))
        elif isinstance(statement, ast.If) and self.kind == "caller":
            self._decide_condition(statement, guards)
        for node in self._expressions(statement):
            if isinstance(node, ast.NamedExpr):
                self._assigned(node.target, Assignment(node, node.value, loops, guards))

    def _expressions(self, statement: ast.stmt) -> Iterator[ast.AST]:
        """The expression nodes of the statement itself, without nested blocks and scopes."""
        blocks = {id(inner) for _, block in bodies(statement) for inner in block}
        waiting = [child for child in ast.iter_child_nodes(statement) if id(child) not in blocks]
        while waiting:
            node = waiting.pop()
            if isinstance(node, (ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                continue
            yield node
            waiting += [child for child in ast.iter_child_nodes(node) if id(child) not in blocks]

    def _assigned(self, target: ast.Name, assignment: Assignment) -> None:
        self.bound.add(id(target))
        self.assignments.setdefault(target.id, []).append(assignment)

    def _decide(
        self, kind: str, statement: ast.stmt, expression: ast.expr | None, guards: list[Guard], **more: Any
    ) -> None:
        line = expression.lineno if expression is not None and kind == "condition" else statement.lineno
        self.decisions.append(Decision(kind, statement, line, expression, guards=guards, **more))

    def _decide_local(self, statement: ast.stmt, name: str, value: ast.expr, guards: list[Guard]) -> None:
        if gate_calls(value) or isinstance(value, ast.Constant):
            self._decide("assign", statement, value, guards, name=name)

    def _decide_unpacked(self, statement: ast.stmt, target: ast.Tuple, value: ast.expr, guards: list[Guard]) -> None:
        if not isinstance(value, ast.Call):
            return
        callee = getattr(value.func, "attr", getattr(value.func, "id", ""))
        if not _HANDS_ON.fullmatch(callee):
            return
        for element in target.elts:
            if isinstance(element, ast.Name) and DECISION_NAME.fullmatch(element.id):
                self._decide("unpack", statement, value, guards, name=element.id, callee=callee)

    def _decide_condition(self, statement: ast.If, guards: list[Guard]) -> None:
        calls = gate_calls(statement.test)
        if not calls and len(statement.body) >= 1 and isinstance(statement.body[0], ast.If) and not statement.orelse:
            inner = gate_calls(statement.body[0].test)
            receivers = [ast.unparse(call.func.value) for call in inner if isinstance(call.func, ast.Attribute)]
            tested = {ast.unparse(node) for node in ast.walk(statement.test) if isinstance(node, ast.expr)}
            calls = [call for call, receiver in zip(inner, receivers, strict=True) if receiver in tested]
        if calls:
            assert isinstance(calls[0].func, ast.Attribute)
            test, want = statement.test, False
            while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
                test, want = test.operand, not want
            receiver = ast.unparse(calls[0].func.value)
            self._decide("condition", statement, statement.test, guards, want=want, receiver=receiver)

    # -- names ---------------------------------------------------------------------------------------------------

    def _bindings(self) -> None:
        """Names bound in ways that are not kept, so that their origin cannot be told."""
        for node in ast.walk(self.function):
            if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)) and id(node) not in self.bound:
                self.untracked.add(node.id)
            elif isinstance(node, (ast.Global, ast.Nonlocal)):
                self.untracked.update(node.names)
            elif isinstance(node, ast.ExceptHandler) and node.name:
                self.untracked.add(node.name)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                self.untracked.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
            elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
                self.untracked.add(node.name)
            elif isinstance(node, ast.MatchMapping) and node.rest:
                self.untracked.add(node.rest)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node is not self.function:
                self.untracked.add(node.name)

    def shadowed(self, name: str) -> bool:
        return name in self.locals

    def in_loop(self, name: str) -> bool:
        return len(self.assignments[name]) > 1 and any(one.loops for one in self.assignments[name])

    def _follow(self) -> None:
        waiting: list[ast.AST] = []
        for decision in self.decisions:
            if decision.expression is not None and decision.kind != "unpack":
                waiting.append(decision.expression)
            if decision.expression is None or falsy_constant(decision.expression):
                waiting += [guard for guard, _ in decision.guards]
        while waiting:
            expression = waiting.pop()
            if expression in self.expressions:
                continue
            self.expressions.add(expression)
            if isinstance(expression, ast.ExceptHandler):
                continue
            for name in followed_names(expression):
                if name not in self.trackable or name in self.followed:
                    continue
                self.followed.add(name)
                for one in self.assignments[name]:
                    waiting.append(one.value)
                    if isinstance(one.value, ast.Constant):
                        waiting += [guard for guard, _ in one.guards]


def followed_names(expression: ast.AST) -> set[str]:
    """The names on whose values the expression's own rests: not what a call was given, nor owners of attributes."""
    names: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            if not isinstance(node.value, ast.Name):
                visit(node.value)
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in ("bool", "any", "all"):
                for argument in node.args:
                    visit(argument)
            else:
                visit(node.func)
        elif isinstance(node, ast.GeneratorExp):
            visit(node.elt)
        elif not isinstance(node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp)):
            for child in ast.iter_child_nodes(node):
                visit(child)

    visit(expression)
    return names

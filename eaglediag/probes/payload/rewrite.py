"""Rewrite a function's statements so that a decision that comes out false is told, with the values that led to it.

The survey says which statements matter; their expressions keep their operands' values (`operands.py`), all others stay
as they are. A decision calls the runtime only when it is not True.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import explain, operations
from .explain import Definition, Node
from .operands import Operands, copied
from .survey import TRIES, Assignment, Decision, Guard, Survey, ends, falsy_constant, truthy_constant

#: The runtime's name in the rewritten function's globals: no identifier, so that no name of the module can meet it.
HANDLE = "@eaglediag"
RESULT, SEQUENCE, DENIED = "@result", "@sequence", "@denied"


@dataclass
class Rewritten:
    """A rewritten function's tree, its decisions in the order of the source, and the locals that hold values."""

    tree: ast.FunctionDef
    decisions: list[Decision]
    slots: tuple[str, ...]


class Rewriter(Operands):
    """The second pass: the function's new tree, and the nodes that explain its decisions."""

    def __init__(self, function: ast.FunctionDef, kind: str, is_builtin: Callable[[str], bool]) -> None:
        super().__init__(Survey(function, kind), is_builtin)
        self.function = function
        self.tuples: list[ast.Tuple] = []
        self.pending_guards: list[tuple[Definition, list[Guard]]] = []
        self.by_statement: dict[int, list[Decision]] = {}
        for decision in self.survey.decisions:
            self.by_statement.setdefault(id(decision.statement), []).append(decision)
        self.assignment_of = {id(one.statement): one for many in self.survey.assignments.values() for one in many}

    def rewrite(self, first_number: int) -> Rewritten:
        """The new tree. The decisions are numbered from `first_number` on, as their calls of the runtime say."""
        decisions = self.survey.decisions
        for number, decision in enumerate(decisions, first_number):
            decision.number = number
        named = [decision.name for decision in decisions if decision.name]
        self.cancelling = len(named) > len(set(named))
        body = self.block(self.function.body)
        if self.survey.kind == "gate" and not ends(self.function.body):
            end = ast.Return(None, lineno=self.function.body[-1].end_lineno or 0, col_offset=0)
            decision = Decision("return", end, end.lineno, None, number=first_number + len(decisions))
            decisions.append(decision)
            self.by_statement[id(end)] = [decision]
            body += self._return(end)
        self._link()
        start = 1 if _is_docstring(self.function.body[0]) else 0
        slots = (*self.slots, SEQUENCE)
        for every in self.tuples:
            every.elts = [ast.Name(slot, ast.Load()) for slot in slots]
        head = [self._reset(self.slots)] if self.slots else []
        head.append(self._store(SEQUENCE, _attribute(HANDLE, "sequence")))
        if self.cancelling:
            head.append(self._store(DENIED, ast.Constant(None)))
        for statement in head:
            _place(statement, self.function.body[min(start, len(self.function.body) - 1)])
        tree = copied(self.function, body=body[:start] + head + body[start:])
        ast.fix_missing_locations(tree)
        for many in self.definitions.values():
            for one in many:
                one.slots = slots
        return Rewritten(tree, decisions, slots)

    def _link(self) -> None:
        """Tie names to the assignments that may have given them their values, and decisions to what guards them."""
        for definition, guards in self.pending_guards:
            definition.guards = self._guard_nodes(guards)
        for name in self.names:
            identifier = name.tree.id  # type: ignore[attr-defined]
            definitions = self.definitions.get(identifier)
            if not definitions or len(definitions) != len(self.survey.assignments[identifier]):
                continue
            if self.survey.in_loop(identifier):
                after = all(one.order < name.order for one in definitions)
                if after and not self.name_loops[id(name)]:
                    name.marker = f"@last {identifier}"
                    name.definitions = definitions
            else:
                name.definitions = [one for one in reversed(definitions) if one.order < name.order]
        for decision in self.survey.decisions:
            if decision.expression is not None:
                decision.node = self.nodes.get(decision.expression)
            if falsy_constant(decision.expression):
                decision.root = explain.Statement(decision.statement)
                decision.guard_nodes = self._guard_nodes(decision.guards)

    def _guard_nodes(self, guards: list[Guard]) -> list[tuple[Node, bool]]:
        return [(self.nodes[tree], want) for tree, want in guards if tree in self.nodes]

    # -- statements ----------------------------------------------------------------------------------------------

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        return [new for statement in statements for new in self.statement(statement)]

    def statement(self, statement: ast.stmt) -> list[ast.stmt]:
        if isinstance(statement, ast.Return) and id(statement) in self.by_statement:
            return self._return(statement)
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            return self._assign(statement)
        if isinstance(statement, ast.AugAssign):
            return self._augmented(statement)
        if isinstance(statement, ast.If):
            return self._if(statement)
        if isinstance(statement, (ast.For, ast.AsyncFor, ast.While)):
            return self._loop(statement)
        if isinstance(statement, ast.Match) and statement.subject in self.survey.expressions:
            subject, _ = self.traced(statement.subject)
            cases = [copied(case, body=self.block(case.body)) for case in statement.cases]
            return [copied(statement, subject=subject, cases=cases)]
        return [self._plain(statement)]

    def _plain(self, statement: ast.stmt) -> ast.stmt:
        """A statement that decides nothing itself: the same around its rewritten blocks."""
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return statement
        fields: dict[str, Any] = {}
        for name in ("body", "orelse", "finalbody"):
            if isinstance(getattr(statement, name, None), list):
                fields[name] = self.block(getattr(statement, name))
            if name == "body" and isinstance(statement, TRIES):
                fields["handlers"] = [self._handler(handler) for handler in statement.handlers]
        if isinstance(statement, ast.Match):
            fields["cases"] = [copied(case, body=self.block(case.body)) for case in statement.cases]
        return copied(statement, **fields) if fields else statement

    def _handler(self, handler: ast.ExceptHandler) -> ast.ExceptHandler:
        body = self.block(handler.body)
        if handler in self.survey.expressions:
            slot = self._slot()
            self.nodes[handler] = explain.Raised(handler, slot)
            keep = self._store(slot, _call("exception"))
            _place(keep, handler.body[0])
            body = [keep, *body]
        rewritten: ast.ExceptHandler = copied(handler, body=body)
        return rewritten

    def _loop(self, statement: ast.For | ast.AsyncFor | ast.While) -> list[ast.stmt]:
        outer = self.loop_nodes
        self.loops.append([])
        self.loop_nodes = (*outer, statement)
        test = None
        if isinstance(statement, ast.While) and statement.test in self.survey.expressions:
            test, _ = self.traced_test(statement.test)
        body = self.block(statement.body)
        slots = self.loops.pop()
        self.loop_nodes = outer
        if self.loops:
            self.loops[-1] += slots
        orelse = self.block(statement.orelse)
        if slots:
            body = [_place(self._reset(slots), statement.body[0]), *body]
        changed = {"body": body, "orelse": orelse} | ({"test": test} if test is not None else {})
        return [copied(statement, **changed)]

    def _return(self, statement: ast.Return) -> list[ast.stmt]:
        (decision,) = self.by_statement[id(statement)]
        if falsy_constant(statement.value):
            return [_place(self._tell(decision), statement), statement]
        assert statement.value is not None
        value, _ = self.traced(statement.value)
        keep = self._store(RESULT, value)
        unless = ast.If(_is_not(RESULT, True), [self._tell(decision)], [])
        leave = ast.Return(ast.Name(RESULT, ast.Load()))
        return [_place(new, statement) for new in (keep, unless, leave)]

    def _assign(self, statement: ast.Assign | ast.AnnAssign) -> list[ast.stmt]:
        assert statement.value is not None
        decisions = self.by_statement.get(id(statement), [])
        assignment = self.assignment_of.get(id(statement))
        name = self._assigned_name(statement) if assignment is not None else ""
        if not decisions and name not in self.survey.followed:
            return [statement]
        new: list[ast.stmt] = []
        if decisions and decisions[0].kind == "unpack":
            new.append(statement)
        else:
            value, _ = self.traced(statement.value, force=True)
            new.append(copied(statement, value=value))
            if name in self.survey.followed:
                assert assignment is not None
                new += self._define(name, self.nodes[statement.value], assignment)
        for decision in decisions:
            new += self._check(decision)
        return [new[0], *(_place(one, statement) for one in new[1:])]

    def _assigned_name(self, statement: ast.Assign | ast.AnnAssign) -> str:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        return target.id if isinstance(target, ast.Name) else ""

    def _define(self, name: str, node: Node, assignment: Assignment) -> list[ast.stmt]:
        definition = Definition(node, node.slot, self._next())
        self.definitions.setdefault(name, []).append(definition)
        new: list[ast.stmt] = []
        if isinstance(node, explain.Constant):
            self.pending_guards.append((definition, assignment.guards))
            if isinstance(assignment.statement, ast.stmt):
                definition.statement = explain.Statement(assignment.statement)
            if assignment.loops:
                definition.snapshot = self._local(f"@locals {definition.order}")
                new.append(self._store(definition.snapshot, self._values()))
        if self.survey.in_loop(name):
            new.append(self._store(self._local(f"@last {name}"), ast.Constant(definition.order)))
        return new

    def _check(self, decision: Decision) -> list[ast.stmt]:
        """What follows the assignment of a caller's decision."""
        new: list[ast.stmt] = []
        if self.cancelling and any(
            one.name == decision.name and one.number < decision.number for one in self.survey.decisions
        ):
            new.append(self._cancel())
        if truthy_constant(decision.expression):
            return new
        denied = self._tell(decision)
        if falsy_constant(decision.expression):
            return [*new, denied]
        return [*new, ast.If(_is_not(decision.name, True), [denied], [])]

    def _tell(self, decision: Decision) -> ast.stmt:
        if falsy_constant(decision.expression):
            result: ast.expr = decision.expression or ast.Constant(None)
        elif decision.kind == "condition":
            result = ast.Constant(False)
        else:
            result = ast.Name(decision.name or RESULT, ast.Load())
        told = _call("denied", ast.Constant(decision.number), result, self._values())
        if self.cancelling and decision.name:
            return self._store(DENIED, told)
        return ast.Expr(told)

    def _cancel(self) -> ast.stmt:
        cancel = ast.Expr(_call("cancel", ast.Name(DENIED, ast.Load())))
        return ast.If(_is_not(DENIED, None), [cancel, self._store(DENIED, ast.Constant(None))], [])

    def _augmented(self, statement: ast.AugAssign) -> list[ast.stmt]:
        target = statement.target
        if not isinstance(target, ast.Name) or target.id not in self.survey.followed:
            return [statement]
        old = ast.copy_location(ast.Name(target.id, ast.Load()), target)
        before, old_node = self.traced(old, force=True)
        value, value_node = self.traced(statement.value, force=True)
        slot = self._slot()
        node = operations.Augmented(statement, slot, (old_node, value_node))
        node.line = statement.lineno
        self.nodes[statement] = node
        keep = self._store(slot, ast.Name(target.id, ast.Load()))
        assignment = self.assignment_of[id(statement)]
        new = [ast.Expr(before), copied(statement, value=value), keep, *self._define(target.id, node, assignment)]
        return [_place(one, statement) if one is not new[1] else one for one in new]

    def _if(self, statement: ast.If) -> list[ast.stmt]:
        test = statement.test
        if test in self.survey.expressions:
            test, _ = self.traced_test(test)
        body, orelse = self.block(statement.body), self.block(statement.orelse)
        for decision in self.by_statement.get(id(statement), ()):
            told = self._tell(decision)
            if slot := self._asked(decision):
                told = ast.If(_is_not(slot, ...), [told], [])
            told = _place(told, statement.test)
            if decision.want:
                body = [told, *body]
            else:
                orelse = [told, *orelse]
        return [copied(statement, test=test, body=body, orelse=orelse)]

    def _asked(self, decision: Decision) -> str:
        """For a test, the slot of its first operand about the graph runner: those before ask which forward this is."""
        node = self.nodes.get(decision.expression) if decision.expression is not None else None
        while isinstance(node, explain.Not):
            (node,) = node.parts
        if type(node) is not explain.Both:
            return ""
        return next((part.first_slot for part in node.parts if decision.receiver in part.text), "")

    def _values(self) -> ast.expr:
        """All such locals, in their order: filled in when the last one is known."""
        self.tuples.append(ast.Tuple([], ast.Load()))
        return self.tuples[-1]

    def _reset(self, slots: list[str]) -> ast.stmt:
        return ast.Assign([ast.Name(slot, ast.Store()) for slot in slots], ast.Constant(...))

    def _store(self, name: str, value: ast.expr) -> ast.stmt:
        return ast.Assign([ast.Name(name, ast.Store())], value)


def _is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _attribute(name: str, attribute: str) -> ast.expr:
    return ast.Attribute(ast.Name(name, ast.Load()), attribute, ast.Load())


def _call(method: str, *arguments: ast.expr) -> ast.expr:
    return ast.Call(_attribute(HANDLE, method), list(arguments), [])


def _is_not(name: str, constant: Any) -> ast.expr:
    return ast.Compare(ast.Name(name, ast.Load()), [ast.IsNot()], [ast.Constant(constant)])


def _place(tree: Any, at: ast.AST) -> Any:
    """Give every node that has no place yet the place of `at`."""
    for node in ast.walk(tree):
        if not hasattr(node, "lineno") and "lineno" in node._attributes:
            ast.copy_location(node, at)
    return tree

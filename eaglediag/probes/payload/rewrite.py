"""Rewrite a function's syntax tree so that a decision that comes out false can be explained.

The survey says which statements matter. In those, and in no others, the rewritten function keeps every operand's value
in a local of its own: `a.b <= c` becomes `(@3 := (@1 := a.b) <= (@2 := c))`, which evaluates the same things once, in
the same order, with the same short circuits.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import explain
from .explain import Definition, Node
from .survey import TRIES, Assignment, Decision, Guard, Survey, ends, falsy_constant, truthy_constant

#: The runtime's name in the rewritten function's globals: no identifier, so that no name of the module can meet it.
HANDLE = "@eaglediag"
RESULT, SEQUENCE, DENIED = "@result", "@sequence", "@denied"


@dataclass
class Rewritten:
    """A rewritten function's tree and its decisions, in the order of the source."""

    tree: ast.FunctionDef
    decisions: list[Decision]


class Rewriter:
    """The second pass: the function's new tree, and the nodes that explain its decisions."""

    def __init__(self, function: ast.FunctionDef, kind: str, is_builtin: Callable[[str], bool]) -> None:
        self.survey = Survey(function, kind)
        self.function = function
        self.is_builtin: Callable[[str], bool] = lambda name: (
            is_builtin(name) and hasattr(builtins, name) and not self.survey.shadowed(name)
        )
        self.count = 0
        self.order = 0
        self.nodes: dict[ast.AST, Node] = {}
        self.names: list[explain.Name] = []
        self.name_loops: dict[int, tuple[ast.AST, ...]] = {}
        self.loops: list[list[str]] = []
        self.loop_nodes: tuple[ast.AST, ...] = ()
        self.definitions: dict[str, list[Definition]] = {}
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
        head = [self._store(SEQUENCE, _attribute(HANDLE, "sequence"))]
        if self.cancelling:
            head.append(self._store(DENIED, ast.Constant(None)))
        for statement in head:
            _place(statement, self.function.body[min(start, len(self.function.body) - 1)])
        tree = _copy(self.function, body=body[:start] + head + body[start:])
        ast.fix_missing_locations(tree)
        return Rewritten(tree, decisions)

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
            cases = [_copy(case, body=self.block(case.body)) for case in statement.cases]
            return [_copy(statement, subject=subject, cases=cases)]
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
            fields["cases"] = [_copy(case, body=self.block(case.body)) for case in statement.cases]
        return _copy(statement, **fields) if fields else statement

    def _handler(self, handler: ast.ExceptHandler) -> ast.ExceptHandler:
        body = self.block(handler.body)
        if handler in self.survey.expressions:
            slot = self._slot()
            self.nodes[handler] = explain.Raised(handler, slot)
            keep = self._store(slot, _call("exception"))
            _place(keep, handler.body[0])
            body = [keep, *body]
        rewritten: ast.ExceptHandler = _copy(handler, body=body)
        return rewritten

    def _loop(self, statement: ast.For | ast.AsyncFor | ast.While) -> list[ast.stmt]:
        outer = self.loop_nodes
        self.loops.append([])
        self.loop_nodes = (*outer, statement)
        test = None
        if isinstance(statement, ast.While) and statement.test in self.survey.expressions:
            test, _ = self.traced(statement.test)
        body = self.block(statement.body)
        slots = self.loops.pop()
        self.loop_nodes = outer
        if self.loops:
            self.loops[-1] += slots
        orelse = self.block(statement.orelse)
        if slots:
            names: list[ast.expr] = [ast.Name(slot, ast.Store()) for slot in slots]
            reset = ast.Assign(names, ast.Constant(...))
            _place(reset, statement.body[0])
            body = [reset, *body]
        changed = {"body": body, "orelse": orelse} | ({"test": test} if test is not None else {})
        return [_copy(statement, **changed)]

    def _return(self, statement: ast.Return) -> list[ast.stmt]:
        (decision,) = self.by_statement[id(statement)]
        denied = self._tell(decision)
        if falsy_constant(statement.value):
            return [_place(denied, statement), statement]
        assert statement.value is not None
        value, _ = self.traced(statement.value)
        keep = self._store(RESULT, value)
        unless = ast.If(_is_not(RESULT, True), [denied], [])
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
            new.append(_copy(statement, value=value))
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
                definition.snapshot = f"@locals {definition.order}"
                new.append(self._store(definition.snapshot, _call("locals")))
        if self.survey.in_loop(name):
            new.append(self._store(f"@last {name}", ast.Constant(definition.order)))
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
        told = _call("denied", ast.Constant(decision.number))
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
        node = explain.Augmented(statement, slot, (old_node, value_node))
        node.line = statement.lineno
        self.nodes[statement] = node
        keep = self._store(slot, ast.Name(target.id, ast.Load()))
        assignment = self.assignment_of[id(statement)]
        new = [ast.Expr(before), _copy(statement, value=value), keep, *self._define(target.id, node, assignment)]
        return [_place(one, statement) if one is not new[1] else one for one in new]

    def _if(self, statement: ast.If) -> list[ast.stmt]:
        test = statement.test
        if test in self.survey.expressions:
            test, _ = self.traced(test)
        body, orelse = self.block(statement.body), self.block(statement.orelse)
        for decision in self.by_statement.get(id(statement), ()):
            told = _place(self._tell(decision), statement.test)
            if decision.want:
                body = [told, *body]
            else:
                orelse = [told, *orelse]
        return [_copy(statement, test=test, body=body, orelse=orelse)]

    # -- expressions ---------------------------------------------------------------------------------------------

    def traced(self, tree: ast.expr, force: bool = False) -> tuple[ast.expr, Node]:
        """The expression with its operands' values kept, and the node that explains it."""
        new, node = self._expression(tree, force)
        self.nodes[tree] = node
        return new, node

    def _expression(self, tree: ast.expr, force: bool = False) -> tuple[ast.expr, Node]:
        if isinstance(tree, ast.Constant):
            slot = self._slot() if force else ""
            return (self._keep(tree, slot) if force else tree), explain.Constant(tree, slot)
        builder: Any = getattr(self, f"_{type(tree).__name__.lower()}", None)
        built: tuple[ast.expr, Node] | None = builder(tree) if builder is not None else None
        if built is not None:
            return built
        slot = self._slot()
        return self._keep(tree, slot), Node(tree, slot)

    def _finish(self, tree: ast.expr, kind: type[Node], parts: list[Node], **fields: Any) -> tuple[ast.expr, Node]:
        slot = self._slot()
        return self._keep(_copy(tree, **fields), slot), kind(tree, slot, tuple(parts))

    def _name(self, tree: ast.Name) -> tuple[ast.expr, Node]:
        name = explain.Name(tree, self._slot(), self._next())
        self.names.append(name)
        self.name_loops[id(name)] = self.loop_nodes
        return self._keep(tree, name.slot), name

    def _attribute(self, tree: ast.Attribute) -> tuple[ast.expr, Node]:
        if isinstance(tree.value, ast.Name) or _is_super(tree.value):
            return self._finish(tree, explain.Attribute, [])
        value, node = self._expression(tree.value)
        return self._finish(tree, explain.Attribute, [node], value=value)

    def _boolop(self, tree: ast.BoolOp) -> tuple[ast.expr, Node]:
        values, nodes = self._each(tree.values, force=True)
        kind = explain.Both if isinstance(tree.op, ast.And) else explain.Either
        return self._finish(tree, kind, nodes, values=values)

    def _unaryop(self, tree: ast.UnaryOp) -> tuple[ast.expr, Node]:
        operand, node = self._expression(tree.operand)
        return self._finish(tree, explain.Not if isinstance(tree.op, ast.Not) else Node, [node], operand=operand)

    def _binop(self, tree: ast.BinOp) -> tuple[ast.expr, Node]:
        (left, right), nodes = self._each([tree.left, tree.right])
        return self._finish(tree, Node, nodes, left=left, right=right)

    def _compare(self, tree: ast.Compare) -> tuple[ast.expr, Node]:
        chained = len(tree.ops) > 1
        (left, *rest), nodes = self._each([tree.left, *tree.comparators], force=chained)
        return self._finish(tree, explain.Compare, nodes, left=left, comparators=rest)

    def _ifexp(self, tree: ast.IfExp) -> tuple[ast.expr, Node]:
        test, tested = self._expression(tree.test)
        (body, orelse), nodes = self._each([tree.body, tree.orelse], force=True)
        return self._finish(tree, explain.Choice, [tested, *nodes], test=test, body=body, orelse=orelse)

    def _subscript(self, tree: ast.Subscript) -> tuple[ast.expr, Node]:
        value, node = self._expression(tree.value)
        if isinstance(tree.slice, (ast.Slice, ast.Tuple, ast.UnaryOp)):
            return self._finish(tree, Node, [node], value=value)
        index, index_node = self._expression(tree.slice)
        return self._finish(tree, Node, [node, index_node], value=value, slice=index)

    def _namedexpr(self, tree: ast.NamedExpr) -> tuple[ast.expr, Node]:
        value, node = self._expression(tree.value, force=True)
        name = tree.target.id
        if name in self.survey.followed and not self.survey.in_loop(name):
            self.definitions.setdefault(name, []).append(Definition(node, node.slot, self._next()))
        return self._finish(tree, explain.Walrus, [node], value=value)

    def _call(self, tree: ast.Call) -> tuple[ast.expr, Node] | None:
        function = tree.func
        if isinstance(function, ast.Name) and self.is_builtin(function.id):
            if function.id == "bool" and len(tree.args) == 1 and not tree.keywords:
                argument, node = self._expression(tree.args[0])
                return self._finish(tree, explain.Truth, [node], args=[argument])
            if function.id in ("any", "all") and len(tree.args) == 1 and not tree.keywords:
                quantified = self._quantifier(tree)
                if quantified is not None:
                    return quantified
        receiver: Node | None = None
        callee: explain.Name | None = None
        new: ast.expr = function
        if isinstance(function, ast.Attribute) and not isinstance(function.value, ast.Name):
            if not _is_super(function.value):
                value, receiver = self._expression(function.value)
                new = _copy(function, value=value)
        elif isinstance(function, ast.Name) and self.survey.shadowed(function.id):
            new, named = self._name(function)
            assert isinstance(named, explain.Name)
            callee = named
        arguments, nodes = self._arguments(tree.args)
        keywords = []
        for keyword in tree.keywords:
            if keyword.arg is None or not self._worth(keyword.value):
                keywords.append(keyword)
                continue
            value, node = self._expression(keyword.value)
            keywords.append(_copy(keyword, value=value))
            nodes.append(node)
        parts = ([receiver] if receiver is not None else []) + nodes
        slot = self._slot()
        call = _copy(tree, func=new, args=arguments, keywords=keywords)
        return self._keep(call, slot), explain.Call(tree, slot, tuple(parts), receiver, callee)

    def _arguments(self, trees: list[ast.expr]) -> tuple[list[ast.expr], list[Node]]:
        new: list[ast.expr] = []
        nodes: list[Node] = []
        for tree in trees:
            if not self._worth(tree):
                new.append(tree)
                continue
            value, node = self._expression(tree)
            new.append(value)
            nodes.append(node)
        return new, nodes

    def _worth(self, tree: ast.expr) -> bool:
        """Whether an argument is one expression whose value can be kept."""
        return not isinstance(tree, (ast.Starred, ast.Constant, ast.GeneratorExp, ast.Lambda))

    def _quantifier(self, tree: ast.Call) -> tuple[ast.expr, Node] | None:
        argument = tree.args[0]
        slot = self._slot()
        if isinstance(argument, ast.GeneratorExp):
            if any(one.is_async for one in argument.generators):
                return None
            element, node = self._expression(argument.elt, force=True)
            new: ast.expr = _copy(argument, elt=element)
            nodes = [node]
        elif isinstance(argument, (ast.List, ast.Tuple)) and not any(
            isinstance(element, ast.Starred) for element in argument.elts
        ):
            elements, nodes = self._each(argument.elts, force=True)
            new = _copy(argument, elts=elements)
        else:
            return None
        node_all = explain.Quantifier(tree, slot, tuple(nodes), isinstance(argument, ast.GeneratorExp))
        return self._keep(_copy(tree, args=[new]), slot), node_all

    def _each(self, trees: list[ast.expr], force: bool = False) -> tuple[list[ast.expr], list[Node]]:
        pairs = [self._expression(tree, force) for tree in trees]
        return [new for new, _ in pairs], [node for _, node in pairs]

    # -- slots ---------------------------------------------------------------------------------------------------

    def _slot(self) -> str:
        self.count += 1
        slot = f"@{self.count}"
        if self.loops:
            self.loops[-1].append(slot)
        return slot

    def _next(self) -> int:
        self.order += 1
        return self.order

    def _keep(self, tree: ast.expr, slot: str) -> ast.expr:
        return ast.copy_location(ast.NamedExpr(ast.copy_location(ast.Name(slot, ast.Store()), tree), tree), tree)

    def _store(self, name: str, value: ast.expr) -> ast.stmt:
        return ast.Assign([ast.Name(name, ast.Store())], value)


def _is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _is_super(tree: ast.expr) -> bool:
    return isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "super"


def _attribute(name: str, attribute: str) -> ast.expr:
    return ast.Attribute(ast.Name(name, ast.Load()), attribute, ast.Load())


def _call(method: str, *arguments: ast.expr) -> ast.expr:
    return ast.Call(_attribute(HANDLE, method), list(arguments), [])


def _is_not(name: str, constant: bool | None) -> ast.expr:
    return ast.Compare(ast.Name(name, ast.Load()), [ast.IsNot()], [ast.Constant(constant)])


def _copy(tree: Any, **changed: Any) -> Any:
    """The node with some fields changed, at the same place in the source; the original stays as it is."""
    fields = {name: getattr(tree, name) for name in tree._fields if hasattr(tree, name)}
    return ast.copy_location(type(tree)(**{**fields, **changed}), tree)


def _place(tree: Any, at: ast.AST) -> Any:
    """Give every node that has no place yet the place of `at`."""
    for node in ast.walk(tree):
        if not hasattr(node, "lineno") and "lineno" in node._attributes:
            ast.copy_location(node, at)
    return tree

"""Rewrite expressions so that the value of every operand is kept, and build the nodes that read those values.

`a.b <= c` becomes `(@3 := (@1 := a.b) <= (@2 := c))`: the same things are evaluated once, in the same order, with the
same short circuits. What is not taken apart is kept as a whole.

An operand is asked for its truth as often as before, too: to ask a tensor means to wait for the device. CPython jumps
out of the middle of `if (a or b) and c`, so that each operand is asked once. Kept as a whole, `a or b` would be a value
to be asked again; so what an `if` or a boolean operator asks is not kept where its operands say all there is to know.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable
from typing import Any

from . import explain, operations
from .explain import Definition, Node
from .survey import Survey


class Operands:
    """Rewrites expressions. Knows the locals it made up, and in which loops it is."""

    def __init__(self, survey: Survey, is_builtin: Callable[[str], bool]) -> None:
        self.survey = survey
        self.is_builtin: Callable[[str], bool] = lambda name: (
            is_builtin(name) and hasattr(builtins, name) and not survey.shadowed(name)
        )
        self.slots: list[str] = []
        self.order = 0
        self.nodes: dict[ast.AST, Node] = {}
        self.names: list[explain.Name] = []
        self.name_loops: dict[int, tuple[ast.AST, ...]] = {}
        self.loops: list[list[str]] = []
        self.loop_nodes: tuple[ast.AST, ...] = ()
        self.definitions: dict[str, list[Definition]] = {}

    def traced(self, tree: ast.expr, force: bool = False) -> tuple[ast.expr, Node]:
        """The expression with its operands' values kept, and the node that explains it."""
        new, node = self._expression(tree, force)
        self.nodes[tree] = node
        return new, node

    def traced_test(self, tree: ast.expr) -> tuple[ast.expr, Node]:
        """The same for an expression that only its truth is asked of."""
        new, node = self._asked_at_once(tree, jumping=True)
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
        return self._keep(copied(tree, **fields), slot), kind(tree, slot, tuple(parts))

    def _name(self, tree: ast.Name) -> tuple[ast.expr, Node]:
        name = explain.Name(tree, self._slot(), self._next())
        self.names.append(name)
        self.name_loops[id(name)] = self.loop_nodes
        return self._keep(tree, name.slot), name

    def _attribute(self, tree: ast.Attribute) -> tuple[ast.expr, Node]:
        if isinstance(tree.value, ast.Name) or _is_super(tree.value):
            return self._finish(tree, operations.Attribute, [])
        value, node = self._expression(tree.value)
        return self._finish(tree, operations.Attribute, [node], value=value)

    def _asked_at_once(self, tree: ast.expr, jumping: bool) -> tuple[ast.expr, Node]:
        """An operand of a boolean operator or, with `jumping`, of an `if`: its own operands are kept, not the whole."""
        if isinstance(tree, ast.BoolOp):
            pairs = [self._asked_at_once(value, jumping) for value in tree.values]
            kind = explain.Both if isinstance(tree.op, ast.And) else explain.Either
            return copied(tree, values=[new for new, _ in pairs]), kind(tree, "", tuple(node for _, node in pairs))
        if isinstance(tree, ast.IfExp):
            test, tested = self._asked_at_once(tree.test, jumping=True)
            body, first = self._asked_at_once(tree.body, jumping)
            orelse, second = self._asked_at_once(tree.orelse, jumping)
            new = copied(tree, test=test, body=body, orelse=orelse)
            return new, operations.Choice(tree, "", (tested, first, second))
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not) and jumping and _jumps(tree.operand):
            operand, node = self._asked_at_once(tree.operand, jumping)
            return copied(tree, operand=operand), explain.Not(tree, "", (node,))
        if isinstance(tree, ast.Compare) and jumping and len(tree.ops) > 1:
            return self._links(tree)
        return self._expression(tree, force=True)

    def _links(self, tree: ast.Compare) -> tuple[ast.expr, Node]:
        """`a < b < c` as `a < b and b < c`, every operand evaluated once."""
        (left, *rest), nodes = self._each([tree.left, *tree.comparators], force=True)
        links: list[ast.expr] = []
        slots = []
        for operator, right, node in zip(tree.ops, rest, nodes[1:], strict=True):
            slots.append(self._slot())
            link = ast.copy_location(ast.Compare(left, [operator], [right]), tree)
            links.append(self._keep(link, slots[-1]))
            left = ast.copy_location(ast.Name(node.slot, ast.Load()), tree)
        chain = operations.Chain(tree, tuple(slots), tuple(nodes))
        return ast.copy_location(ast.BoolOp(ast.And(), links), tree), chain

    def _boolop(self, tree: ast.expr) -> tuple[ast.expr, Node]:
        new, node = self._asked_at_once(tree, jumping=False)
        node.slot = self._slot()
        return self._keep(new, node.slot), node

    _ifexp = _boolop

    def _unaryop(self, tree: ast.UnaryOp) -> tuple[ast.expr, Node]:
        operand, node = self._expression(tree.operand)
        return self._finish(tree, explain.Not if isinstance(tree.op, ast.Not) else Node, [node], operand=operand)

    def _binop(self, tree: ast.BinOp) -> tuple[ast.expr, Node]:
        (left, right), nodes = self._each([tree.left, tree.right])
        return self._finish(tree, Node, nodes, left=left, right=right)

    def _compare(self, tree: ast.Compare) -> tuple[ast.expr, Node]:
        chained = len(tree.ops) > 1
        (left, *rest), nodes = self._each([tree.left, *tree.comparators], force=chained)
        return self._finish(tree, operations.Compare, nodes, left=left, comparators=rest)

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
        return self._finish(tree, operations.Walrus, [node], value=value)

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
                new = copied(function, value=value)
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
            keywords.append(copied(keyword, value=value))
            nodes.append(node)
        parts = ([receiver] if receiver is not None else []) + nodes
        slot = self._slot()
        call = copied(tree, func=new, args=arguments, keywords=keywords)
        return self._keep(call, slot), operations.Call(tree, slot, tuple(parts), receiver, callee)

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
            new: ast.expr = copied(argument, elt=element)
            nodes = [node]
        elif isinstance(argument, (ast.List, ast.Tuple)) and not any(
            isinstance(element, ast.Starred) for element in argument.elts
        ):
            elements, nodes = self._each(argument.elts, force=True)
            new = copied(argument, elts=elements)
        else:
            return None
        node_all = operations.Quantifier(tree, slot, tuple(nodes), isinstance(argument, ast.GeneratorExp))
        return self._keep(copied(tree, args=[new]), slot), node_all

    def _each(self, trees: list[ast.expr], force: bool = False) -> tuple[list[ast.expr], list[Node]]:
        pairs = [self._expression(tree, force) for tree in trees]
        return [new for new, _ in pairs], [node for _, node in pairs]

    # -- slots ---------------------------------------------------------------------------------------------------

    def _slot(self) -> str:
        slot = self._local(f"@{len(self.slots)}")
        if self.loops:
            self.loops[-1].append(slot)
        return slot

    def _local(self, name: str) -> str:
        """A local of ours that the runtime gets to see."""
        if name not in self.slots:
            self.slots.append(name)
        return name

    def _next(self) -> int:
        self.order += 1
        return self.order

    def _keep(self, tree: ast.expr, slot: str) -> ast.expr:
        return ast.copy_location(ast.NamedExpr(ast.copy_location(ast.Name(slot, ast.Store()), tree), tree), tree)


def _jumps(tree: ast.expr) -> bool:
    """Whether code that asks for the truth of this jumps out of the middle of it."""
    while isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not):
        tree = tree.operand
    return isinstance(tree, (ast.BoolOp, ast.IfExp)) or (isinstance(tree, ast.Compare) and len(tree.ops) > 1)


def _is_super(tree: ast.expr) -> bool:
    return isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "super"


def copied(tree: Any, **changed: Any) -> Any:
    """The node with some fields changed, at the same place in the source; the original stays as it is."""
    fields = {name: getattr(tree, name) for name in tree._fields if hasattr(tree, name)}
    return ast.copy_location(type(tree)(**{**fields, **changed}), tree)

"""A gate's function as a syntax tree: where each of its conditions stands, and the tests it stands behind."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Guard:
    """A test that must come out `want` for what stands behind it to be asked."""

    test: ast.expr
    want: bool

    @property
    def text(self) -> str:
        """The test as source, negated where it must be false."""
        return ast.unparse(self.test if self.want else negated(self.test))


@dataclass(frozen=True)
class Place:
    """A condition's expression in the function, and what it stands behind, outermost first."""

    expression: ast.expr
    guards: tuple[Guard, ...]


def function(source: str) -> ast.FunctionDef | None:
    """The function whose source is given; None when it does not parse in this Python."""
    indented = source[:1].isspace()
    try:
        # A method keeps its margin, behind a line that lets it, so that the text of its strings stays as it is.
        parsed = ast.parse(f"if 1:\n{source}" if indented else source).body[0]
    except (SyntaxError, IndexError, ValueError, RecursionError, MemoryError):
        return None
    if indented and isinstance(parsed, ast.If):
        parsed = parsed.body[0]
    return parsed if isinstance(parsed, ast.FunctionDef) else None


def negated(test: ast.expr) -> ast.expr:
    """`not test`, without a double negation."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.UnaryOp(ast.Not(), test)


def places(source: str, first_line: int, wanted: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Place]:
    """Where expressions, given as (text, line of the file), stand in a function that starts at `first_line`."""
    tree = function(source)
    if tree is None:
        return {}
    found: dict[tuple[str, int], Place] = {}
    sought = set(wanted)
    for expression, guards in _expressions(tree, ()):
        key = (ast.unparse(expression), expression.lineno + first_line - tree.lineno)
        if key in sought:
            found.setdefault(key, Place(expression, guards))
    return found


def _expressions(node: ast.AST, guards: tuple[Guard, ...]) -> Iterator[tuple[ast.expr, tuple[Guard, ...]]]:
    if isinstance(node, ast.expr):
        yield node, guards
    if isinstance(node, (ast.If, ast.IfExp)):
        yield from _expressions(node.test, guards)
        body, orelse = (node.body, node.orelse) if isinstance(node, ast.If) else ([node.body], [node.orelse])
        for branch, want in ((body, True), (orelse, False)):
            for inner in branch:
                yield from _expressions(inner, (*guards, Guard(node.test, want)))
    else:
        for child in ast.iter_child_nodes(node):
            yield from _expressions(child, guards)

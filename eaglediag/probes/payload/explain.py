"""Why an expression came out false (or true), read from the values its rewritten form left in local variables.

A rewritten function keeps the value of every operand that matters in a local whose name is no identifier (`@7`). The
nodes here mirror the source expression and know those names, so that nothing is evaluated a second time. `env` is the
function's locals at the moment of the denial; a name that is absent from it, or holds `...`, was not evaluated.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from enum import Enum
from functools import cached_property
from types import FunctionType, MethodType
from typing import Any

from .valuetext import MISSING, describe, is_record, truth

Env = Mapping[str, Any]

_VALUES = 16


class Path:
    """The steps of one explanation, the gate's answer first; `claim` finds the denial of a gate that was called."""

    __slots__ = ("claim", "incomplete", "nested", "steps")

    def __init__(self, claim: Any = None) -> None:
        self.steps: list[tuple[Node, Env, bool, int]] = []
        self.claim = claim
        self.nested: Any = None
        self.incomplete = ""

    def step(self, node: Node, env: Env, want: bool, line: int | None = None) -> None:
        self.steps.append((node, env, want, line or node.line))


class Node:
    """An expression whose value stands in `slot`, made of `parts`. Also the leaf for whatever is not taken apart."""

    def __init__(self, tree: ast.AST, slot: str = "", parts: tuple[Node, ...] = ()) -> None:
        self.tree = tree
        self.slot = slot
        self.parts = parts
        self.line: int = getattr(tree, "lineno", 0)

    @cached_property
    def text(self) -> str:
        """The expression as source, on one line."""
        return ast.unparse(self.tree)

    @cached_property
    def key_slots(self) -> tuple[str, ...]:
        """The locals whose values tell one denial from another."""
        slots = (self.slot,) if self.slot and not self.compound else ()
        return slots + tuple(slot for part in self.parts for slot in part.key_slots)

    #: The value of the whole says nothing that its parts do not say.
    compound = False

    def value(self, env: Env) -> Any:
        return env.get(self.slot, MISSING)

    def evaluated(self, env: Env) -> bool:
        return self.value(env) is not MISSING

    def truth(self, env: Env, path: Path) -> bool | None:
        """Whether the value is true, None when only running the engine's own code could tell."""
        value = self.value(env)
        return None if value is MISSING else truth(value)

    def why(self, env: Env, want: bool, path: Path) -> None:
        """Append the steps that explain why this node, which is known to be `want`, is so."""
        path.step(self, env, want)

    def show(self, env: Env) -> str:
        """The expression with the values of its operands in their places."""
        value = self.value(env)
        return "..." if value is MISSING else describe(value)

    def collect(self, env: Env, into: dict[str, str]) -> None:
        """Add the operands' values to `into`, by their source text."""
        value = self.value(env)
        if value is not MISSING and not self.compound and len(into) < _VALUES:
            into.setdefault(self.text, describe(value))
        for part in self.parts:
            part.collect(env, into)

    def shown(self, env: Env, want: bool) -> str:
        """`show` for the last step; an object that is not plain adds the truth that the engine itself found."""
        value = self.value(env)
        if self.compound or value is MISSING or truth(value) is not None:
            return self.show(env)
        return f"{self.show(env)} is {'true' if want else 'false'}"

    def values(self, env: Env, want: bool, origins: bool = False) -> dict[str, str]:
        """Operand text -> value text; with `origins`, also what the operands that are locals were computed from."""
        into: dict[str, str] = {}
        value = self.value(env)
        if not self.compound and value is not MISSING and truth(value) is None:
            into[self.text] = f"{describe(value)}, {'true' if want else 'false'}"
        self.collect(env, into)
        for name in self.names() if origins else ():
            definition = name.definition(env)
            if definition is not None and len(into) < _VALUES:
                definition.node.collect(env, into)
        return into

    def names(self) -> list[Name]:
        return [name for part in self.parts for name in part.names()]


class Constant(Node):
    """A literal; `slot` is set only where its evaluation must be seen."""

    compound = True

    def value(self, env: Env) -> Any:
        return env.get(self.slot, MISSING) if self.slot else self.tree.value  # type: ignore[attr-defined]

    def show(self, env: Env) -> str:
        return self.text


class Statement(Node):
    """A whole statement, such as `return False`, that says no by itself."""

    compound = True

    def value(self, env: Env) -> Any:
        return MISSING

    def show(self, env: Env) -> str:
        return self.text


class Raised(Node):
    """An `except` clause that was entered; the value is the exception in words."""

    @cached_property
    def text(self) -> str:
        handled = self.tree.type  # type: ignore[attr-defined]
        return f"except {ast.unparse(handled)}" if handled else "except"

    def show(self, env: Env) -> str:
        said = self.value(env)
        return self.text if said is MISSING else str(said)

    def collect(self, env: Env, into: dict[str, str]) -> None:
        into[self.text] = self.show(env)


class Definition:
    """One assignment to a local: where its value stands, what it was made of, what led there if it is a constant."""

    __slots__ = ("guards", "node", "order", "slot", "snapshot", "statement")

    def __init__(self, node: Node, slot: str, order: int) -> None:
        self.node = node
        self.slot = slot
        self.order = order
        self.guards: list[tuple[Node, bool]] = []
        self.snapshot = ""
        self.statement: Statement | None = None

    def why(self, env: Env, want: bool, path: Path) -> None:
        if isinstance(self.node, Constant):
            inside = env.get(self.snapshot, MISSING) if self.snapshot else env
            if self.statement is not None:
                path.step(self.statement, env, want)
            if inside is MISSING:
                return
            for node, truth_wanted in self.guards:
                node.why(inside, truth_wanted, path)
        else:
            self.node.why(env, want, path)


class Name(Node):
    """A variable. `definitions` are the assignments that may have given it its value, the latest first."""

    def __init__(self, tree: ast.AST, slot: str, order: int) -> None:
        super().__init__(tree, slot)
        self.order = order
        self.definitions: list[Definition] = []
        #: For names assigned in a loop: the local that says which assignment came last.
        self.marker = ""

    def definition(self, env: Env) -> Definition | None:
        value = self.value(env)
        if value is MISSING:
            return None
        if self.marker:
            number = env.get(self.marker, MISSING)
            return next((one for one in self.definitions if one.order == number), None)
        for one in self.definitions:
            assigned = env.get(one.slot, MISSING)
            if assigned is not MISSING:
                return one if assigned is value else None
        return None

    def truth(self, env: Env, path: Path) -> bool | None:
        known = super().truth(env, path)
        if known is None:
            definition = self.definition(env)
            if definition is not None:
                return definition.node.truth(env, path)
        return known

    def why(self, env: Env, want: bool, path: Path) -> None:
        definition = self.definition(env)
        if definition is None or not (definition.node.evaluated(env) or definition.snapshot):
            path.step(self, env, want)
        else:
            if not path.steps:
                path.step(self, env, want)
            definition.why(env, want, path)

    def names(self) -> list[Name]:
        return [self]


class Both(Node):
    """`a and b and ...`"""

    compound = True

    def truth(self, env: Env, path: Path) -> bool | None:
        last = self.parts[-1]
        return last.truth(env, path) if last.evaluated(env) else (False if self.parts[0].evaluated(env) else None)

    def why(self, env: Env, want: bool, path: Path) -> None:
        if want:
            path.step(self, env, want)
            return
        for part in reversed(self.parts):
            if part.evaluated(env):
                path.step(self, env, want, part.line)
                part.why(env, False, path)
                return
        path.step(self, env, want)

    def show(self, env: Env) -> str:
        seen = [part.show(env) for part in self.parts if part.evaluated(env)]
        return f" {self.word} ".join(seen + ["..."] * (len(seen) < len(self.parts)))

    word = "and"


class Either(Both):
    """`a or b or ...`: false only when all of its operands are."""

    word = "or"

    def truth(self, env: Env, path: Path) -> bool | None:
        last = self.parts[-1]
        return last.truth(env, path) if last.evaluated(env) else (True if self.parts[0].evaluated(env) else None)

    def why(self, env: Env, want: bool, path: Path) -> None:
        if want:
            for part in reversed(self.parts):
                if part.evaluated(env):
                    path.step(self, env, want, part.line)
                    part.why(env, True, path)
                    return
        path.step(self, env, want)


class Not(Node):
    compound = True

    def truth(self, env: Env, path: Path) -> bool | None:
        value = self.value(env)
        return None if value is MISSING else bool(value)

    def why(self, env: Env, want: bool, path: Path) -> None:
        self.parts[0].why(env, not want, path)

    def show(self, env: Env) -> str:
        return f"not {self.parts[0].show(env)}"


class Truth(Not):
    """`bool(a)`"""

    def why(self, env: Env, want: bool, path: Path) -> None:
        self.parts[0].why(env, want, path)

    def show(self, env: Env) -> str:
        return f"bool({self.parts[0].show(env)})"


_OPERATORS = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip


class Compare(Node):
    """`a < b`, or a chain, which stops at its first false link."""

    compound = True

    def show(self, env: Env) -> str:
        texts = [self.parts[0].show(env)]
        for operator, part in zip(self.tree.ops, self.parts[1:], strict=True):  # type: ignore[attr-defined]
            texts += [_OPERATORS[type(operator)], part.show(env) if part.evaluated(env) else "..."]
        return " ".join(texts)

    def collect(self, env: Env, into: dict[str, str]) -> None:
        value = self.value(env)
        if value is not MISSING and truth(value) is None and len(into) < _VALUES:
            into.setdefault(self.text, describe(value))
        super().collect(env, into)


class Choice(Node):
    """`a if test else b`; parts are test, a, b."""

    compound = True

    def chosen(self, env: Env) -> Node | None:
        return next((part for part in self.parts[1:] if part.evaluated(env)), None)

    def truth(self, env: Env, path: Path) -> bool | None:
        chosen = self.chosen(env)
        return None if chosen is None else chosen.truth(env, path)

    def why(self, env: Env, want: bool, path: Path) -> None:
        chosen = self.chosen(env)
        if chosen is None:
            path.step(self, env, want)
        elif isinstance(chosen, Constant):
            path.step(self, env, want)
            self.parts[0].why(env, chosen is self.parts[1], path)
        else:
            chosen.why(env, want, path)

    def show(self, env: Env) -> str:
        chosen = self.chosen(env)
        return "..." if chosen is None else chosen.show(env)

    def names(self) -> list[Name]:
        return []


class Call(Node):
    """A call. `function` is the name called, `receiver` the object of a method call, if its value was kept."""

    def __init__(
        self, tree: ast.Call, slot: str, parts: tuple[Node, ...], receiver: Node | None, callee: Name | None
    ) -> None:
        super().__init__(tree, slot, parts)
        self.receiver = receiver
        self.callee = callee
        self.function = getattr(tree.func, "attr", getattr(tree.func, "id", ""))

    def truth(self, env: Env, path: Path) -> bool | None:
        known = super().truth(env, path)
        if known is None and path.claim is not None and path.claim(self.called(env), self.value(env), False):
            return False
        return known

    def why(self, env: Env, want: bool, path: Path) -> None:
        if not want and path.claim is not None:
            path.nested = path.claim(self.called(env), self.value(env), True)
            if path.nested is not None and path.steps:
                return
        bound = self._bound(env)
        if bound is None:
            path.step(self, env, want)
        else:
            path.step(_BoundCall(self, bound), env, want, bound.line)

    def called(self, env: Env) -> str:
        """The name of what was called, also when a local was bound to it."""
        bound = self.callee.value(env) if self.callee is not None else None
        return bound.__name__ if isinstance(bound, (FunctionType, MethodType)) else self.function

    def _bound(self, env: Env) -> Attribute | None:
        """For `f()` where `f = a.b.method`: that `a.b.method`."""
        if self.callee is None:
            return None
        definition = self.callee.definition(env)
        node = definition.node if definition is not None else None
        while isinstance(node, Choice):
            node = node.chosen(env)
        return node if isinstance(node, Attribute) else None

    def collect(self, env: Env, into: dict[str, str]) -> None:
        value = self.value(env)
        if value is not MISSING and len(into) < _VALUES:
            into.setdefault(self.text, describe(value))
        for part in self.parts:
            if not isinstance(part, Name) or worth_telling(part.value(env)):
                part.collect(env, into)

    def shown(self, env: Env, want: bool) -> str:
        value = self.value(env)
        said = describe(value) if truth(value) is not None else ("true" if want else "false")
        if self.receiver is None or not self.receiver.evaluated(env):
            return said if truth(value) is not None else f"{describe(value)} is {said}"
        return f"{self.receiver.show(env)}.{self.function}({_arguments(self.tree)}) is {said}"


def worth_telling(value: Any) -> bool:
    """Whether the value says more than that it is an object: plain ones, their containers, enums, tensors."""
    kind = type(value)
    return truth(value) is not None or isinstance(value, Enum) or hasattr(kind, "dtype") or is_record(kind)


def _arguments(call: ast.AST) -> str:
    assert isinstance(call, ast.Call)
    return ", ".join([ast.unparse(one) for one in call.args] + [ast.unparse(one) for one in call.keywords])


class _BoundCall(Node):
    """`f()` told as `a.b.method()`, which is what `f` was bound to."""

    def __init__(self, call: Call, bound: Attribute) -> None:
        super().__init__(bound.tree, call.slot, (*bound.parts, *call.parts))
        self.arguments = _arguments(call.tree)
        self.method = bound.tree.attr  # type: ignore[attr-defined]

    @cached_property
    def text(self) -> str:
        return f"{ast.unparse(self.tree)}({self.arguments})"

    def show(self, env: Env) -> str:
        receiver = self.parts[0].show(env) if self.parts else ast.unparse(self.tree.value)  # type: ignore[attr-defined]
        return f"{receiver}.{self.method}({self.arguments})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BoundCall) and (self.tree, self.slot) == (other.tree, other.slot)

    def __hash__(self) -> int:
        return hash((self.tree, self.slot))

    def shown(self, env: Env, want: bool) -> str:
        value = self.value(env)
        return f"{self.show(env)} is {describe(value) if truth(value) is not None else ('true' if want else 'false')}"


class Attribute(Node):
    """`a.b`; parts hold `a` where its value was kept."""

    def collect(self, env: Env, into: dict[str, str]) -> None:
        value = self.value(env)
        if value is not MISSING and len(into) < _VALUES:
            into.setdefault(self.text, describe(value))
        if callable(value):
            for part in self.parts:
                part.collect(env, into)

    @cached_property
    def key_slots(self) -> tuple[str, ...]:
        return (self.slot,)


class Quantifier(Node):
    """`any(...)` or `all(...)` over a generator (one part: its element, as last evaluated) or over a literal list."""

    def __init__(self, tree: ast.Call, slot: str, parts: tuple[Node, ...], generator: bool) -> None:
        super().__init__(tree, slot, parts)
        self.every = tree.func.id == "all"  # type: ignore[attr-defined]
        self.generator = generator

    def why(self, env: Env, want: bool, path: Path) -> None:
        path.step(self, env, want)
        if want is self.every:
            return
        for part in self.parts:
            known = part.truth(env, path)
            if known is None and not self.generator:
                return
            if self.generator or known is want:
                if part.evaluated(env):
                    part.why(env, want, path)
                return

    def shown(self, env: Env, want: bool) -> str:
        word = self.tree.func.id  # type: ignore[attr-defined]
        if want is not self.every or self.generator:
            return f"{word}(...) is {want}"
        return f"{word}([{', '.join(part.show(env) for part in self.parts)}])"

    def values(self, env: Env, want: bool, origins: bool = False) -> dict[str, str]:
        into: dict[str, str] = {self.text: str(want)}
        if not self.generator:
            for part in self.parts:
                part.collect(env, into)
        elif want is self.every:
            last: dict[str, str] = {}
            self.parts[0].collect(env, last)
            into.update({f"{text} (last)": value for text, value in last.items()})
        return into


class Walrus(Node):
    """`(name := value)`"""

    compound = True

    def truth(self, env: Env, path: Path) -> bool | None:
        return self.parts[0].truth(env, path)

    def why(self, env: Env, want: bool, path: Path) -> None:
        self.parts[0].why(env, want, path)

    def show(self, env: Env) -> str:
        return self.parts[0].show(env)


class Augmented(Node):
    """`name op= value`; parts are the name before, and the value."""

    compound = True

    def why(self, env: Env, want: bool, path: Path) -> None:
        if isinstance(self.tree.op, ast.BitAnd) and not want:  # type: ignore[attr-defined]
            for part in self.parts:
                known = part.truth(env, path)
                if known is None:
                    break
                if not known:
                    path.step(self, env, want, part.line)
                    part.why(env, False, path)
                    return
        path.step(self, env, want)

    def show(self, env: Env) -> str:
        operator = self.text.partition("=")[0].split()[-1]
        return f"{self.parts[0].show(env)} {operator} {self.parts[1].show(env)}"

"""What expressions are made of, beyond names and boolean operators: comparisons, choices, calls, attributes."""

from __future__ import annotations

import ast
from enum import Enum
from functools import cached_property
from types import FunctionType, MethodType
from typing import Any

from .explain import VALUES, Constant, Env, Name, Node, Path
from .valuetext import MISSING, describe, is_record, truth

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
        if value is not MISSING and truth(value) is None and len(into) < VALUES:
            into.setdefault(self.text, describe(value))
        super().collect(env, into)


class Chain(Compare):
    """A chain of comparisons whose links are kept in `links`, and not the whole."""

    def __init__(self, tree: ast.Compare, links: tuple[str, ...], parts: tuple[Node, ...]) -> None:
        super().__init__(tree, "", parts)
        self.links = links

    def value(self, env: Env) -> Any:
        values = (env.get(link, MISSING) for link in reversed(self.links))
        return next((value for value in values if value is not MISSING), MISSING)


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
        if known is None and path.claim(self.called(env), self.value(env), False):
            return False
        return known

    def why(self, env: Env, want: bool, path: Path) -> None:
        if not want:
            path.claim_call(self.called(env), self.value(env), self.slot)
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
        if value is not MISSING and len(into) < VALUES:
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
        if value is not MISSING and len(into) < VALUES:
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
        path.cacheable = False
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
        path.cacheable = False
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

"""Why an expression came out false (or true), read from the values its rewritten form left in local variables.

A rewritten function keeps the value of every operand that matters in a local whose name is no identifier (`@7`). The
nodes here mirror the source expression and know those names, so that nothing is evaluated a second time. `env` is the
function's locals at the moment of the denial; a name that is absent from it, or holds `...`, was not evaluated.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from .valuetext import MISSING, describe, truth

Env = Mapping[str, Any]

VALUES = 16


class Path:
    """The steps of one explanation, the gate's answer first.

    `claim(function, result, take)` finds the denial of a gate that was called. `cacheable` says that the way here
    depended only on what was evaluated, not on a value; `claimed` is the called gate's name and its result's slot.
    `unclaimed` are the slots of results that no traced gate had given.
    """

    __slots__ = ("cacheable", "claim", "claimed", "incomplete", "nested", "steps", "unclaimed")

    def __init__(self, claim: Callable[[str, Any, bool], Any]) -> None:
        self.steps: list[tuple[Node, Env, bool, int]] = []
        self.claim = claim
        self.claimed: tuple[str, str | None] | None = None
        self.unclaimed: list[str] = []
        self.nested: Any = None
        self.incomplete = ""
        self.cacheable = True

    def claim_call(self, function: str, result: Any, slot: str | None) -> None:
        """Take over the denial of the called gate, if there is one."""
        self.nested = self.claim(function, result, True)
        if self.nested is not None:
            self.claimed = (function, slot)
        elif slot is not None:
            self.unclaimed.append(slot)
        else:
            # Another time there may be one.
            self.cacheable = False

    def step(self, node: Node, env: Env, want: bool, line: int | None = None) -> None:
        self.steps.append((node, env, want, line or node.line))


class Node:
    """An expression whose value stands in `slot`, made of `parts`. Also the leaf for whatever is not taken apart.

    `slot` is empty where the parts tell all there is to know.
    """

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

    @property
    def first_slot(self) -> str:
        """A local that holds a value as soon as this is being evaluated."""
        return self.slot or self.parts[0].first_slot

    def value(self, env: Env) -> Any:
        return env.get(self.slot, MISSING) if self.slot else MISSING

    def evaluated(self, env: Env) -> bool:
        if self.slot or not self.parts:
            return self.value(env) is not MISSING
        return self.parts[0].evaluated(env)

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
        if value is not MISSING and not self.compound and len(into) < VALUES:
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
            if definition is not None and len(into) < VALUES:
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

    __slots__ = ("guards", "node", "order", "slot", "slots", "snapshot", "statement")

    def __init__(self, node: Node, slot: str, order: int) -> None:
        self.node = node
        self.slot = slot
        self.order = order
        self.guards: list[tuple[Node, bool]] = []
        #: For constants assigned in a loop: where the values of that turn are, and the slots that they belong to.
        self.snapshot = ""
        self.slots: tuple[str, ...] = ()
        self.statement: Statement | None = None

    def why(self, env: Env, want: bool, path: Path) -> None:
        if isinstance(self.node, Constant):
            inside = env
            if self.snapshot:
                path.cacheable = False
                kept = env.get(self.snapshot, MISSING)
                inside = MISSING if kept is MISSING else dict(zip(self.slots, kept, strict=True))
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
        path.cacheable = path.cacheable and not self.marker
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
        if not self.slot:
            known = self.parts[0].truth(env, path)
            return None if known is None else not known
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

"""The gate tracer: says which condition of a gate denied the graph, with its values, and counts identical denials.

`Tracer.rewrite` gives a code object that does what the function's own does, and tells the tracer when a decision comes
out false. Every operand is evaluated once, in order; results and exceptions are the original's. What the engine
computes is only ever looked at by type, or by value where it is a plain one: no tensor is forced, copied or printed.
"""

from __future__ import annotations

import ast
import itertools
import linecache
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection
from types import CodeType, FunctionType
from typing import Any

from .explain import Both, Not, Path, Statement
from .recompile import compiled, definition, parse, replace
from .rewrite import HANDLE, RESULT, SEQUENCE, Rewriter
from .survey import Decision, falsy_constant
from .valuetext import MISSING, PLAIN, describe, identity, truth
from .wrap import Refused

__all__ = ["Refused", "Tracer"]

_PENDING = 16
_SOURCE_LINES = 3


class _Handle:
    """What rewritten code calls. `sequence` counts denials, so that a caller knows which happened since it began."""

    __slots__ = ("sequence",)

    def __init__(self) -> None:
        self.sequence = 0

    #: A builtin: called from rewritten code, it gives that code's own locals.
    locals = staticmethod(locals)

    @staticmethod
    def denied(number: int) -> Any:
        return _sites[number].denied(sys._getframe(1))

    @staticmethod
    def cancel(entry: Any) -> None:
        entry.count -= 1

    @staticmethod
    def exception() -> str:
        error = sys.exc_info()[1]
        return f"{type(error).__name__}({', '.join(describe(one) for one in getattr(error, 'args', ()))})"


_handle = _Handle()
_sites: list[_Site] = []
_local = threading.local()


class _Entry:
    """One kind of denial: how often, and its explanation, made once."""

    __slots__ = ("batch_size", "count", "decides", "explained", "frames", "gate", "phase", "reason")

    def __init__(self, phase: str | None, batch_size: int | None, gate: str, decides: bool) -> None:
        self.phase = phase
        self.batch_size = batch_size
        self.gate = gate
        self.decides = decides
        self.count = 0
        self.explained = True
        self.reason = ""
        self.frames: list[dict[str, Any]] = []


class _Pending:
    """A denial that a caller may still turn out to have passed on."""

    __slots__ = ("entry", "function", "result", "sequence")

    def __init__(self, function: str, result: Any, entry: _Entry, sequence: int) -> None:
        self.function = function
        self.result = result
        self.entry = entry
        self.sequence = sequence


class _Site:
    """One decision of one rewritten function, at run time."""

    def __init__(
        self, tracer: Tracer, gate: str, decision: Decision, code: CodeType, phases: Collection[str] | None
    ) -> None:
        self.tracer = tracer
        self.gate = gate
        self.decision = decision
        self.phases = phases
        self.function = code.co_name
        self.qualname: str = getattr(code, "co_qualname", gate.rpartition(":")[2])
        self.file = code.co_filename
        self.constant = decision.kind != "unpack" and falsy_constant(decision.expression)
        self.slot = decision.name or RESULT

    def decides(self, phase: str | None) -> bool:
        return self.phases is None or phase is None or phase in self.phases

    def denied(self, frame: Any) -> _Entry | None:
        """A decision came out other than True. Never raises."""
        try:
            return self._denied(frame.f_locals)
        except Exception as error:
            return self.tracer._unexplained(self, f"{type(error).__name__}: {describe(str(error))}")

    def _denied(self, env: Any) -> _Entry | None:
        if type(env) is not dict:
            env = dict(env)
        pending = getattr(_local, "pending", None)
        if pending is None:
            pending = _local.pending = deque(maxlen=_PENDING)
        since = env[SEQUENCE]

        def claim(function: str, result: Any, take: bool) -> _Pending | None:
            for one in reversed(pending):
                if one.sequence <= since:
                    break
                if one.result is result and one.function == function:
                    if take:
                        pending.remove(one)
                    return one  # type: ignore[no-any-return]
            return None

        decision = self.decision
        path = Path(claim)
        result: Any = False
        reason = ""
        if self.constant:
            assert decision.root is not None
            path.step(decision.root, env, False)
            for node, want in decision.guard_nodes:
                node.why(env, want, path)
            result = decision.expression.value if isinstance(decision.expression, ast.Constant) else None
        elif decision.kind == "unpack":
            result = env[self.slot]
            path.nested = claim(decision.callee, result, True)
            if path.nested is None:
                if truth(result) is not False:
                    return None
                reason = f"decided in {decision.callee}, which is not traced"
            path.step(_unpacked(decision), env, False)
        else:
            told = decision.node
            assert told is not None
            if decision.kind == "condition":
                if not _about_graph(decision, env):
                    return None
                told.why(env, decision.want, path)
            else:
                result = env[self.slot]
                known = truth(result)
                if known is None:
                    known = told.truth(env, path)
                if known is not False:
                    return None
                told.why(env, False, path)
        entry = self.tracer._count(self, path, reason)
        _handle.sequence = sequence = next(_numbers)
        pending.append(_Pending(self.function, result, entry, sequence))
        return entry


_numbers = itertools.count(1)


def _unpacked(decision: Decision) -> Statement:
    if decision.root is None:
        decision.root = Statement(decision.statement)
    assert isinstance(decision.root, Statement)
    return decision.root


def _about_graph(decision: Decision, env: Any) -> bool:
    """Whether a test failed at the graph runner or behind it, not at an operand asking which forward this is."""
    node = decision.node
    while type(node) is Not:
        node = node.parts[0]
    if type(node) is not Both:
        return True
    evaluated = [part for part in node.parts if part.evaluated(env)]
    return any(decision.receiver in part.text for part in evaluated)


class Tracer:
    """Rewrites gates and keeps their denials. One tracer serves all gates of a process; every method is thread-safe.

    `context()` gives the (phase, batch size) of the step that is going on. At most `limit` kinds of denial are kept
    apart; what comes beyond is counted by gate, unexplained.
    """

    def __init__(self, context: Callable[[], tuple[str | None, int | None]], *, limit: int = 1000) -> None:
        self._context = context
        self._limit = limit
        self._entries: dict[Any, _Entry] = {}

    def rewrite(
        self,
        function: FunctionType,
        gate: str,
        *,
        kind: str = "gate",
        phases: Collection[str] | None = None,
        condition_phases: Collection[str] | None = None,
    ) -> CodeType:
        """The code to put in place of `function.__code__`; assigning the old one back undoes it.

        `gate` names it in denials. kind: `gate` (its return value is the answer) or `caller` (an assignment or a
        test in it is). `phases` are those that this decision settles, `condition_phases` the same for tests; None
        means all. Raises Refused when the source is not at hand, is not what runs, or holds no decision.
        """
        code = function.__code__
        tree = parse(code, function.__qualname__)
        found = definition(tree, code)
        if compiled(tree, code).co_code != code.co_code:
            raise Refused("the source at hand is not the code that runs")
        module = function.__globals__
        rewritten = Rewriter(found, kind, lambda name: name not in module).rewrite(len(_sites))
        if not rewritten.decisions:
            raise Refused("no decision about a graph is in it")
        replace(tree, found, rewritten.tree)
        replaced = compiled(tree, code)
        for decision in rewritten.decisions:
            settled = condition_phases if decision.kind == "condition" else phases
            _sites.append(_Site(self, gate, decision, code, settled))
        module[HANDLE] = _handle
        return replaced

    def denials(self) -> list[dict[str, Any]]:
        """Every kind of denial with its count, ready for JSON: phase, batch_size, gate, decides, explained, reason,
        count, and frames from the gate's answer to the leaf that decided it. A frame holds file, line, function,
        text, shown, values, and the last one the source lines around it."""
        found = []
        for entry in list(self._entries.values()):
            if entry.count > 0:
                found.append({name: getattr(entry, name) for name in _Entry.__slots__})
        return found

    def clear(self) -> None:
        """Forget what was counted."""
        self._entries = {}

    def _count(self, site: _Site, path: Path, reason: str) -> _Entry:
        phase, batch_size = self._context()
        nested = path.nested
        key: list[Any] = [site, phase, batch_size, None if nested is None else nested.entry]
        for node, _, want, _ in path.steps:
            key.append(node)
            key.append(want)
        last, env, _, _ = path.steps[-1]
        for slot in last.key_slots:
            value = env.get(slot, MISSING)
            kind = value.__class__
            key.append(kind)
            key.append(value if kind in PLAIN else identity(value))
        frozen = tuple(key)
        entry = self._entries.get(frozen)
        if entry is None:
            entry = self._new(frozen, site, path, phase, batch_size, reason)
        entry.count += 1
        if nested is not None:
            nested.entry.count -= 1
        return entry

    def _new(self, key: Any, site: _Site, path: Path, phase: str | None, batch_size: int | None, reason: str) -> _Entry:
        if len(self._entries) >= self._limit:
            return self._overflow(site, phase)
        entry = _Entry(phase, batch_size, site.gate, site.decides(phase))
        entry.reason = reason
        entry.explained = not reason
        try:
            entry.frames = _frames(site, path)
        except Exception as error:
            entry.reason = f"{type(error).__name__}: {describe(str(error))}"
            entry.explained = False
        if path.nested is not None:
            inner = path.nested.entry
            entry.frames = entry.frames + inner.frames
            entry.explained, entry.reason = inner.explained, inner.reason
            if site.decision.kind == "unpack":
                entry.decides = entry.decides or inner.decides
        self._entries[key] = entry
        return entry

    def _overflow(self, site: _Site, phase: str | None) -> _Entry:
        key = (site.gate, phase)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(phase, None, site.gate, site.decides(phase))
            entry.explained = False
            entry.reason = f"more than {self._limit} different denials; the rest is only counted"
        return entry

    def _unexplained(self, site: _Site, why: str) -> _Entry | None:
        try:
            phase, batch_size = self._context()
            key = (site, phase, batch_size, why)
            entry = self._entries.get(key)
            if entry is None:
                if len(self._entries) >= self._limit:
                    return self._overflow(site, phase)
                entry = self._entries[key] = _Entry(phase, batch_size, site.gate, site.decides(phase))
                entry.explained = False
                entry.reason = why
            entry.count += 1
            return entry
        except Exception:
            # The context itself fails: there is nothing left to count by, and the engine must not see it.
            return None


def _frames(site: _Site, path: Path) -> list[dict[str, Any]]:
    frames = []
    for position, (node, env, want, line) in enumerate(path.steps):
        last = position == len(path.steps) - 1 and path.nested is None
        frame: dict[str, Any] = {
            "file": _short(site.file),
            "line": line,
            "function": site.qualname,
            "text": node.text,
            "shown": node.shown(env, want),
            "values": node.values(env, want, last),
        }
        if last:
            around = range(max(1, line - _SOURCE_LINES), line + _SOURCE_LINES + 1)
            lines = [(number, linecache.getline(site.file, number).rstrip()) for number in around]
            frame["source"] = [f"{number}: {text}" for number, text in lines if text]
        frames.append(frame)
    return frames


def _short(file: str) -> str:
    """The path from the package on: `sglang/srt/...`."""
    at = file.replace("\\", "/").rfind("/sglang/")
    return file[at + 1 :] if at >= 0 else file

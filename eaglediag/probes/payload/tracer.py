"""The gate tracer: says which condition of a gate denied the graph, with its values, and counts identical denials.

`Tracer.rewrite` gives a code object that does what the function's own does, and tells the tracer when a decision comes
out false. Every operand is evaluated once, in order; results and exceptions are the original's. What the engine
computes is only ever looked at by type, or by value where it is a plain one: no tensor is forced, copied or printed.
"""

from __future__ import annotations

import linecache
import time
from collections.abc import Callable, Collection
from types import CodeType, FunctionType
from typing import Any

from .explain import Path
from .recompile import compiled, definition, parse, replace
from .rewrite import HANDLE, Rewriter
from .sites import Site, handle
from .valuetext import MISSING, PLAIN, describe, identity
from .wrap import Refused

__all__ = ["Refused", "Tracer"]

_SOURCE_LINES = 3
_TOLD = ("phase", "batch_size", "gate", "explained", "decides", "reason", "count", "frames")


class Entry:
    """One kind of denial: how often, and its explanation, made once."""

    __slots__ = (*_TOLD, "epoch")

    def __init__(self, phase: str | None, batch_size: int | None, site: Site, epoch: object, reason: str) -> None:
        self.phase = phase
        self.batch_size = batch_size
        self.gate = site.gate
        self.decides = site.decides(phase)
        self.explained = not reason
        self.reason = reason
        self.count = 0
        self.frames: list[dict[str, Any]] = []
        self.epoch = epoch


class Tracer:
    """Rewrites gates and keeps their denials.

    `context()` gives the (phase, batch size) of the step that is going on. At most `limit` kinds of denial are kept
    apart; what comes beyond is counted by gate, unexplained. Gates may be asked on any thread; two that deny at the
    very same moment may be counted as one.
    """

    def __init__(self, context: Callable[[], tuple[str | None, int | None]], *, limit: int = 1000) -> None:
        self.context = context
        #: Changes with every `clear`: what was counted before is not counted on.
        self.epoch = object()
        #: How long denials took since then, and how much of that went into putting each kind into words, once.
        self.spent_ns = 0
        self.explaining_ns = 0
        self._limit = limit
        self._entries: dict[Any, Entry] = {}

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
        rewritten = Rewriter(found, kind, lambda name: name not in module).rewrite(len(handle.sites))
        if not rewritten.decisions:
            raise Refused("no decision about a graph is in it")
        replace(tree, found, rewritten.tree)
        replaced = compiled(tree, code)
        for decision in rewritten.decisions:
            settled = condition_phases if decision.kind == "condition" else phases
            handle.sites.append(Site(self, gate, decision, rewritten.slots, code, settled))
        module[HANDLE] = handle
        return replaced

    def denials(self) -> list[dict[str, Any]]:
        """Every kind of denial with its count, ready for JSON: phase, batch_size, gate, decides, explained, reason,
        count, and frames from the gate's answer to the leaf that decided it. A frame holds file, line, function,
        text, shown, values, and the last one the source lines around it."""
        entries = list(self._entries.values())
        return [{name: getattr(entry, name) for name in _TOLD} for entry in entries if entry.count > 0]

    def clear(self) -> None:
        """Forget what was counted."""
        self._entries = {}
        self.epoch = object()
        self.spent_ns = 0
        self.explaining_ns = 0

    def count(self, site: Site, path: Path) -> Entry:
        """One denial more, whose explanation is `path`."""
        phase, batch_size = self.context()
        nested = path.nested
        key: list[Any] = [site, phase, batch_size, None if nested is None else nested.entry]
        for node, _, want, _ in path.steps:
            key += (node, want)
        last, env, _, _ = path.steps[-1]
        for slot in last.key_slots:
            value = env.get(slot, MISSING)
            kind = value.__class__
            key += (kind, value if kind in PLAIN else identity(value))
        frozen = tuple(key)
        entry = self._entries.get(frozen)
        if entry is None:
            entry = self._entry(frozen, phase, batch_size, site, path.incomplete)
            if self._entries.get(frozen) is entry:
                began = time.perf_counter_ns()
                self._explain(entry, site, path)
                self.explaining_ns += time.perf_counter_ns() - began
        entry.count += 1
        if nested is not None:
            nested.entry.count -= 1
        return entry

    def unexplained(self, site: Site, why: str) -> Entry | None:
        """One denial more, of which only that much is known. Never raises."""
        try:
            phase, batch_size = self.context()
            entry = self._entry((site, phase, batch_size, why), phase, batch_size, site, why)
            entry.count += 1
            return entry
        except Exception:
            # The context itself fails: there is nothing left to count by, and the engine must not see it.
            return None

    def _entry(self, key: Any, phase: str | None, batch_size: int | None, site: Site, reason: str) -> Entry:
        entry = self._entries.get(key)
        if entry is None and len(self._entries) >= self._limit:
            key, batch_size = (site.gate, phase), None
            reason = f"more than {self._limit} different denials; the rest is only counted"
            entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = Entry(phase, batch_size, site, self.epoch, reason)
        return entry

    def _explain(self, entry: Entry, site: Site, path: Path) -> None:
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


def _frames(site: Site, path: Path) -> list[dict[str, Any]]:
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
            lines = {number: linecache.getline(site.file, number).rstrip() for number in around}
            margin = min((len(text) - len(text.lstrip()) for text in lines.values() if text), default=0)
            frame["source"] = [f"{number}: {text[margin:]}" for number, text in lines.items() if text]
        frames.append(frame)
    return frames


def _short(file: str) -> str:
    """The path from the package on: `sglang/srt/...`."""
    at = file.replace("\\", "/").rfind("/sglang/")
    return file[at + 1 :] if at >= 0 else file

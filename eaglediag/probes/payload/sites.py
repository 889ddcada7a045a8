"""What happens when a rewritten function says no: from the values it kept to one count more.

The first denial of its kind is explained in full. The explanation notes which values it asked for and whether they
were there (an operand behind a short circuit is not); as long as the same ones are, the same path led to the denial,
and the next one costs a look at those, at the leaf's values, and a count.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections import deque
from collections.abc import Collection
from types import CodeType
from typing import TYPE_CHECKING, Any

from .explain import Path, Statement
from .rewrite import SEQUENCE
from .survey import Decision, falsy_constant
from .valuetext import MISSING, PLAIN, describe, identity, truth

if TYPE_CHECKING:
    from .tracer import Entry, Tracer

_PENDING = 16
_PLANS = 8
_COUNTED = 256

_numbers = itertools.count(1)
_local = threading.local()


class Handle:
    """What rewritten code calls. `sequence` counts denials, so that a caller knows which happened since it began."""

    __slots__ = ("sequence", "sites")

    def __init__(self) -> None:
        self.sequence = 0
        self.sites: list[Site] = []

    def denied(self, number: int, result: Any, values: tuple[Any, ...]) -> Entry | None:
        """A decision came out other than True. `values` are those of the site's slots. Never raises."""
        began = time.perf_counter_ns()
        site = self.sites[number]
        try:
            if result.__class__ in PLAIN and not result:
                for plan in site.plans:
                    if plan.holds(values):
                        return plan.again(result, values)
            return site.explain(result, values)
        except Exception as error:
            return site.tracer.unexplained(site, f"{type(error).__name__}: {describe(str(error))}")
        finally:
            site.tracer.spent_ns += time.perf_counter_ns() - began

    def cancel(self, entry: Entry) -> None:
        """A later decision of the same call took this denial's place."""
        entry.count -= 1

    def exception(self) -> str:
        """The exception being handled, in words: to keep the exception itself would keep its frames alive."""
        error = sys.exc_info()[1]
        return f"{type(error).__name__}({', '.join(describe(one) for one in getattr(error, 'args', ()))})"


handle = Handle()


class Pending:
    """A denial that a caller may still turn out to have passed on."""

    __slots__ = ("entry", "function", "result", "sequence")

    def __init__(self, function: str, result: Any, entry: Entry, sequence: int) -> None:
        self.function = function
        self.result = result
        self.entry = entry
        self.sequence = sequence


def _pendings() -> deque[Pending]:
    try:
        return _local.pending  # type: ignore[no-any-return]
    except AttributeError:
        _local.pending = deque(maxlen=_PENDING)
        return _local.pending  # type: ignore[no-any-return]


def _claim(function: str | None, result: Any, since: int, take: bool) -> Pending | None:
    """The denial by `function`, or by any, that gave `result`, on this thread, after denial number `since`."""
    pendings = _pendings()
    for one in reversed(pendings):
        if one.sequence <= since:
            break
        if one.result is result and (function is None or one.function == function):
            if take:
                pendings.remove(one)
            return one
    return None


class _Seen(dict[str, Any]):
    """The values by slot, which notes what an explanation asks for and whether it was there."""

    def __init__(self, slots: tuple[str, ...], values: tuple[Any, ...]) -> None:
        super().__init__(zip(slots, values, strict=True))
        self.asked: dict[str, bool] = {}

    def get(self, slot: str, default: Any = MISSING) -> Any:
        value = super().get(slot, MISSING)
        self.asked[slot] = value is not MISSING
        return value


class Plan:
    """One way to a denial of a site: which values have to be there and which not, and those that tell kinds apart."""

    __slots__ = ("absent", "claims", "counted", "kinds", "looks", "present", "site", "unclaimed")

    def __init__(self, site: Site, seen: _Seen, path: Path) -> None:
        at = site.slots.index
        tells = path.steps[-1][0].key_slots
        self.site = site
        self.kinds = [(at(slot), seen.get(slot).__class__) for slot in tells]
        self.looks = not PLAIN.issuperset(kind for _, kind in self.kinds)
        #: A value whose kind is asked for is there when it has that kind.
        self.present = [at(slot) for slot, there in seen.asked.items() if there and slot not in tells]
        self.absent = [at(slot) for slot, there in seen.asked.items() if not there]
        #: The called gate whose denial was passed on: its name, and where its result stands.
        self.claims = path.claimed
        #: Results that must not be a traced gate's denial, whatever its name.
        self.unclaimed = [at(slot) for slot in path.unclaimed]
        self.counted: dict[Any, Entry] = {}

    def holds(self, values: tuple[Any, ...]) -> bool:
        for position, kind in self.kinds:
            if values[position].__class__ is not kind:
                return False
        for position in self.present:
            if values[position] is MISSING:
                return False
        for position in self.absent:  # noqa: SIM110 - a generator takes three times as long
            if values[position] is not MISSING:
                return False
        return True

    def again(self, result: Any, values: tuple[Any, ...]) -> Entry | None:
        """Count a denial that came this way; explain it when its values are new."""
        site = self.site
        nested = None
        for position in self.unclaimed:
            if _claim(None, values[position], values[site.since], False) is not None:
                return site.explain(result, values)
        if self.claims is not None:
            function, slot = self.claims
            value = result if slot is None else values[site.slots.index(slot)]
            nested = _claim(function, value, values[site.since], False)
            if nested is None:
                return site.explain(result, values)
        tells = [values[at] for at, _ in self.kinds]
        if self.looks:
            tells = [one if one.__class__ in PLAIN else identity(one) for one in tells]
        key = (site.tracer.context(), None if nested is None else nested.entry, *tells)
        entry = self.counted.get(key)
        if entry is None or entry.epoch is not site.tracer.epoch:
            return site.explain(result, values, self, key)
        if nested is not None:
            nested.entry.count -= 1
            _pendings().remove(nested)
        entry.count += 1
        site.remember(result, entry)
        return entry


class Site:
    """One decision of one rewritten function."""

    def __init__(
        self,
        tracer: Tracer,
        gate: str,
        decision: Decision,
        slots: tuple[str, ...],
        code: CodeType,
        phases: Collection[str] | None,
    ) -> None:
        self.tracer = tracer
        self.gate = gate
        self.decision = decision
        self.slots = slots
        self.since = slots.index(SEQUENCE)
        self.phases = phases
        self.function = code.co_name
        self.qualname: str = getattr(code, "co_qualname", gate.rpartition(":")[2])
        self.file = code.co_filename
        self.constant = decision.kind != "unpack" and falsy_constant(decision.expression)
        self.plans: list[Plan] = []

    def decides(self, phase: str | None) -> bool:
        return self.phases is None or phase is None or phase in self.phases

    def remember(self, result: Any, entry: Entry) -> None:
        """Let a caller that passes this denial on find it."""
        handle.sequence = sequence = next(_numbers)
        _pendings().append(Pending(self.function, result, entry, sequence))

    def explain(self, result: Any, values: tuple[Any, ...], plan: Plan | None = None, key: Any = None) -> Entry | None:
        """Explain and count a denial; None when it is none after all, or only the caller can tell."""
        seen = _Seen(self.slots, values)
        path = Path(lambda function, value, take: _claim(function, value, values[self.since], take))
        if not self._decided(result, seen, path):
            return None
        asked = dict(seen.asked)
        entry = self.tracer.count(self, path)
        self.remember(result, entry)
        if plan is None and path.cacheable and len(self.plans) < _PLANS:
            seen.asked = asked
            self.plans.append(Plan(self, seen, path))
        elif plan is not None:
            if len(plan.counted) >= _COUNTED:
                plan.counted.clear()
            plan.counted[key] = entry
        return entry

    def _decided(self, result: Any, env: _Seen, path: Path) -> bool:
        """Fill `path`; whether there was a denial at all."""
        decision = self.decision
        if self.constant:
            assert decision.root is not None
            path.step(decision.root, env, False)
            for node, want in decision.guard_nodes:
                node.why(env, want, path)
            return True
        if decision.kind == "unpack":
            path.claim_call(decision.callee, result, None)
            if path.nested is None:
                if truth(result) is not False:
                    return False
                path.incomplete = f"decided in {decision.callee}, which is not traced"
            path.step(_unpacked(decision), env, False)
            return True
        if decision.node is None:
            raise LookupError("the decision's expression was not rewritten")
        node = decision.node
        if decision.kind == "condition":
            node.why(env, decision.want, path)
            return True
        known = truth(result)
        if known is None:
            known = node.truth(env, path)
        if known is not False:
            return False
        node.why(env, False, path)
        return True


def _unpacked(decision: Decision) -> Statement:
    if decision.root is None:
        decision.root = Statement(decision.statement)
    assert isinstance(decision.root, Statement)
    return decision.root

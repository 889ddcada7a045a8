"""What a step or a cycle would cost if every phase of it ran as a graph, priced from what was measured elsewhere.

A phase is priced at its device-busy time at this batch size (from a profile: what is left once nobody launches kernels)
or at its graph cost at the nearest captured batch size. Both are lower bounds where the graphed size is the smaller
one, and so is the host gap, taken from a batch size at which all phases are graphs: between eager phases the host is
late.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from eaglediag.analysis.figures import number
from eaglediag.analysis.measured import CYCLE_PARTS, BatchCost
from eaglediag.analysis.sentences import PHASE_NAMES
from eaglediag.capture.model import Phase, Profile

#: A phase with a smaller share of graphs than this is called eager.
EAGER = 0.5


class RefusedError(Exception):
    """Nothing that was measured answers this; the message says what is missing."""


@dataclass(frozen=True)
class Graphed:
    """One step or cycle with graphs, in ms. `at_least`: the phases whose price is a lower bound; so is then the total.
    `gap_at_least`: so is the host gap.

    `notes` say what each price comes from; `alike` is the batch size that all come from, None when they are several
    or a profile.
    """

    parts: dict[Phase, float]
    gap_ms: float
    at_least: frozenset[Phase]
    gap_at_least: bool
    notes: tuple[str, ...]
    alike: int | None

    @property
    def total_ms(self) -> float:
        """The parts and the gap, added up."""
        return sum(self.parts.values()) + self.gap_ms


@dataclass(frozen=True)
class _Price:
    ms: float
    at_least: bool
    batch_size: int | None
    text: str


def graphed(cost: BatchCost, measured: Iterable[BatchCost], profiles: Sequence[Profile]) -> Graphed | None:
    """`cost` with a graph for each eager phase; None when it has none that is eager. `measured`: the arm's batch sizes.

    Raises RefusedError when a phase has no price.
    """
    phases: tuple[Phase, ...] = CYCLE_PARTS if cost.kind == "cycle" else ("decode",)
    eager = [phase for phase in phases if cost.graph_share.get(phase, 1.0) < EAGER]
    if not eager:
        return None
    if cost.gap_ms is None or any(phase not in cost.parts for phase in eager):
        raise RefusedError(f"the {cost.kind}'s parts are not known")
    others = sorted((one for one in measured if one.parts and one.gap_ms is not None), key=lambda one: one.batch_size)
    prices = {phase: _price(cost, phase, others, profiles) for phase in eager}
    gap = _gap(cost, phases, others)
    sources = {price.batch_size for price in (*prices.values(), gap)}
    whole = len(eager) == len([phase for phase in phases if phase in cost.parts])
    return Graphed(
        parts={**cost.parts, **{phase: price.ms for phase, price in prices.items()}},
        gap_ms=gap.ms,
        at_least=frozenset(phase for phase, price in prices.items() if price.at_least),
        gap_at_least=gap.at_least,
        notes=_noted([*prices.values(), gap]),
        alike=sources.pop() if whole and len(sources) == 1 else None,
    )


def _price(cost: BatchCost, phase: Phase, measured: Sequence[BatchCost], profiles: Sequence[Profile]) -> _Price:
    name, now = PHASE_NAMES[phase], cost.parts[phase]
    for profile in profiles:
        if profile.phase == phase and profile.batch_size == cost.batch_size:
            busy = profile.device_busy_ms
            return _Price(min(busy, now), True, None, f"{name} at its device-busy time, {number(busy)} ms (profiler)")
    having = [one for one in measured if one.graph_share.get(phase, 0.0) > EAGER and phase in one.parts]
    if not having:
        raise RefusedError(f"nothing measured says what {name} costs with a graph")
    nearest = _nearest(cost.batch_size, having)
    smaller = nearest.batch_size < cost.batch_size
    ms = nearest.parts[phase]
    text = f"{name} at {number(ms)} ms"
    return _Price(min(ms, now), smaller, nearest.batch_size, text)


def _gap(cost: BatchCost, phases: Sequence[Phase], measured: Sequence[BatchCost]) -> _Price:
    assert cost.gap_ms is not None
    having = [one for one in measured if all(one.graph_share.get(phase, 1.0) > EAGER for phase in phases)]
    if not having:
        return _Price(cost.gap_ms, False, None, f"host gap as it is, {number(cost.gap_ms)} ms")
    nearest = _nearest(cost.batch_size, having)
    assert nearest.gap_ms is not None
    smaller = nearest.batch_size < cost.batch_size
    text = f"host gap at {number(nearest.gap_ms)} ms"
    return _Price(min(nearest.gap_ms, cost.gap_ms), smaller, nearest.batch_size, text)


def _nearest(batch_size: int, having: Sequence[BatchCost]) -> BatchCost:
    """The smallest that is as large, else the largest."""
    return next((one for one in having if one.batch_size >= batch_size), having[-1])


def _noted(prices: Sequence[_Price]) -> tuple[str, ...]:
    """One clause for each source: the batch size whose graph cost it is, or the profile."""
    notes = [price.text for price in prices if price.batch_size is None]
    for size in dict.fromkeys(price.batch_size for price in prices if price.batch_size is not None):
        texts = [price.text for price in prices if price.batch_size == size]
        bound = ", so at least that" if any(price.at_least and price.batch_size == size for price in prices) else ""
        named = texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
        notes.append(f"{named}, as with graphs at batch {size}{bound}")
    return tuple(notes)

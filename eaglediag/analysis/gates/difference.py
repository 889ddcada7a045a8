"""What changed in the gates between two installations."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from eaglediag.analysis.gates.installation import Gate, Installation

#: Two gates of different names are one that moved when this much of what the old one asks is alike in the new.
ALIKE = 0.6
#: Words in the names of modules, the more particular first.
FAMILIES = ("multi_layer", "frozen_kv_mtp", "dflash", "dspark", "uno", "eagle")


@dataclass(frozen=True)
class Change:
    """A gate that both have, under one name or two. Texts of conditions, as the code has them."""

    old: Gate
    new: Gate
    added: tuple[str, ...]
    removed: tuple[str, ...]

    @property
    def moved(self) -> bool:
        """Whether it stands in another file or class, or is called otherwise."""
        return self.old.target != self.new.target


@dataclass(frozen=True)
class Difference:
    """`changed` holds the gates that moved, ask something else, or whose source changed; `same` counts the rest."""

    old: Installation
    new: Installation
    added: tuple[Gate, ...]
    removed: tuple[Gate, ...]
    changed: tuple[Change, ...]
    same: int

    @property
    def options_added(self) -> tuple[str, ...]:
        """Launch options about graphs that only the new one has."""
        return tuple(sorted(one for one in self.new.options - self.old.options if "graph" in one))

    @property
    def options_removed(self) -> tuple[str, ...]:
        """Launch options about graphs that only the old one has."""
        return tuple(sorted(one for one in self.old.options - self.new.options if "graph" in one))


def difference(old: Installation, new: Installation, phase: str | None = None) -> Difference:
    """Compare two installations, gate by gate; only those asked in `phase` when it is given."""
    before, after = list(old.of_phase(phase)), list(new.of_phase(phase))
    pairs: list[tuple[Gate, Gate]] = []
    for likeness in (_same_target, _same_place, _same_questions):
        scored = [
            (score, one, other)
            for one in before
            for other in after
            if one.kind == other.kind and one.device == other.device and (score := likeness(one, other)) > 0
        ]
        for _, one, other in sorted(scored, key=lambda pair: -pair[0]):
            if one in before and other in after:
                pairs.append((one, other))
                before.remove(one)
                after.remove(other)
    changes = [_change(one, twin) for one, twin in pairs]
    told = [one for one in changes if one.moved or one.old.source_hash != one.new.source_hash]
    told.sort(key=lambda one: one.new.target)
    return Difference(old, new, tuple(after), tuple(before), tuple(told), len(pairs) - len(told))


def _change(old: Gate, new: Gate) -> Change:
    was, now = [one.text for one in old.conditions], [one.text for one in new.conditions]
    return Change(old, new, _beyond(now, was), _beyond(was, now))


def _beyond(texts: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    left = set(known)
    return tuple(dict.fromkeys(text for text in texts if text not in left))


def _same_target(one: Gate, other: Gate) -> float:
    return float(one.target == other.target)


def _same_place(one: Gate, other: Gate) -> float:
    """The same class, for a gate that was renamed there."""
    owner = one.qualname.rpartition(".")[0]
    same = bool(owner) and owner == other.qualname.rpartition(".")[0]
    return _alike(one.source, other.source) if same and one.kind == "gate" and one.phases == other.phases else 0.0


def _same_questions(one: Gate, other: Gate) -> float:
    """How well the conditions of the old one are found among the new one's; the names count where these are equal."""
    texts = [condition.text for condition in other.conditions]
    if _family(one) != _family(other) or not set(one.phases) & set(other.phases) or not one.conditions or not texts:
        return 0.0
    found = [max(_alike(condition.text, text) for text in texts) for condition in one.conditions]
    score = sum(found) / len(found)
    return score + _alike(one.target, other.target) / 10 if score >= ALIKE else 0.0


def _family(gate: Gate) -> str:
    """The way of drafting that a gate belongs to; a gate of one does not become another's."""
    return next((family for family in FAMILIES if family in gate.module), "")


def _alike(one: str, other: str) -> float:
    """The share of words that two texts have in common."""
    words, others = _words(one), _words(other)
    return 2 * len(words & others) / max(1, len(words) + len(others))


@lru_cache(maxsize=4096)
def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[A-Za-z]+|[<>=!]+", text))

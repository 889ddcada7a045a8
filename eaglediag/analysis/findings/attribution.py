"""Where the time between a cycle and its break-even goes: shares in ms that add up to it.

A cycle of C ms that emits tau tokens breaks even when C = tau x S, S being the plain step. The excess splits exactly:
C - tau S = (verify - decode) + draft + draft-extend + (gap - gap of the plain step) - (tau - 1) S,
where the last term is what the accepted drafts pay back. Between two captures of the same arm, with cycles C and C' and
accept lengths tau and tau', the excess over the old pace is C' - C tau'/tau, part by part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from eaglediag.analysis.findings.finding import Part
from eaglediag.analysis.measured import CYCLE_PARTS, BatchCost
from eaglediag.analysis.pairing import Row


@dataclass(frozen=True)
class Share:
    """`ms` of the excess that one part is charged with; negative when it pays back."""

    part: Part
    ms: float
    text: str


def excess_ms(row: Row) -> float | None:
    """How much longer a cycle (or step) is than it may be to break even (or keep the old pace). None: tau unknown."""
    pace = _pace(row)
    return None if pace is None else row.candidate.period.value - pace * row.baseline.period.value


def shares(row: Row) -> tuple[Share, ...]:
    """The excess, split; largest first, what pays back last. Empty when the accept length is not known."""
    pace = _pace(row)
    if pace is None:
        return ()
    old, new = row.baseline, row.candidate
    found = list(_changes(old, new) if old.kind == new.kind else _beyond_a_step(old, new))
    found.sort(key=lambda share: -abs(share.ms) if old.kind == new.kind else -share.ms)
    paid = -(pace - 1) * old.period.value
    if old.kind != new.kind:
        found.append(Share("acceptance", paid, "paid back by accepted drafts"))
    elif new.kind == "cycle":
        found.append(Share("acceptance", paid, "accept length changed"))
    return tuple(found)


def _pace(row: Row) -> float | None:
    """How many of the baseline's steps one of the candidate's is worth."""
    old, new = row.baseline, row.candidate
    if new.kind == "decode":
        return 1.0
    if new.accept_length is None or (old.kind == "cycle" and old.accept_length is None):
        return None
    return new.accept_length.value / (old.accept_length.value if old.kind == "cycle" and old.accept_length else 1.0)


def _beyond_a_step(old: BatchCost, new: BatchCost) -> list[Share]:
    if not new.parts or not old.parts or new.gap_ms is None or old.gap_ms is None:
        return [
            Share("cycle", new.period.value - old.period.value, "cycle beyond a plain step; its parts are not known")
        ]
    texts = {"verify": "verify beyond a plain decode pass", "draft": "draft", "draft_extend": "draft-extend"}
    found = [
        Share(part, new.parts.get(part, 0.0) - (old.parts.get("decode", 0.0) if part == "verify" else 0.0), texts[part])
        for part in CYCLE_PARTS
        if part in new.parts or part == "verify"
    ]
    return [*found, Share("gap", new.gap_ms - old.gap_ms, "host gap beyond the plain step's")]


def _changes(old: BatchCost, new: BatchCost) -> list[Share]:
    if not new.parts or not old.parts or new.gap_ms is None or old.gap_ms is None:
        return [Share("cycle", new.period.value - old.period.value, "step changed; its parts are not known")]
    parts: tuple[Literal["decode", "draft", "verify", "draft_extend"], ...]
    parts = ("decode",) if new.kind == "decode" else CYCLE_PARTS
    found = [
        Share(part, new.parts.get(part, 0.0) - old.parts.get(part, 0.0), f"{part.replace('_', '-')} changed")
        for part in parts
    ]
    return [*found, Share("gap", new.gap_ms - old.gap_ms, "host gap changed")]

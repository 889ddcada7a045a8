"""Which rank the others wait for."""

from __future__ import annotations

import pytest

from eaglediag.probes.agents import Rows
from eaglediag.probes.payload.recorder import COLUMNS
from eaglediag.probes.skew import rank_skew

GROUPS = {0: "host 0 0", 1: "host 0 0"}


def rows(rank: int, starts_ms: list[float], phase: str = "verify", offset_ms: float = 0.0) -> Rows:
    """Rows of passes that start then on the host's clock, by a process whose own clock is `offset_ms` behind."""
    made = []
    for number, start in enumerate(starts_ms):
        row = dict.fromkeys(COLUMNS)
        row |= {"row": "step" if phase == "decode" else "phase", "step": number, "phase": phase, "batch": 1}
        row |= {"start_ns": round((start - offset_ms) * 1e6)}
        made.append(list(row.values()))
    return Rows(rank, "host_clock", 0, round(offset_ms * 1e6), list(COLUMNS), made)


def test_the_rank_that_starts_last_and_by_how_much() -> None:
    starts = [10.0 * i for i in range(20)]
    late = [start + (0.4 if i % 4 else -0.2) for i, start in enumerate(starts)]
    (skew,) = rank_skew([rows(0, starts), rows(1, late)], GROUPS)
    assert skew.phase == "verify"
    assert skew.starts_last == {0: 5, 1: 15}
    assert skew.skew_ms.mean == pytest.approx(0.35)
    assert skew.skew_ms.max == pytest.approx(0.4)


def test_each_process_has_its_own_clock() -> None:
    starts = [10.0 * i for i in range(20)]
    (skew,) = rank_skew([rows(0, starts), rows(1, [s + 1.0 for s in starts], offset_ms=5e6)], GROUPS)
    assert skew.skew_ms.mean == pytest.approx(1.0, abs=1e-3)


def test_a_pass_that_only_one_rank_has_is_left_out() -> None:
    starts = [10.0 * i for i in range(20)]
    (skew,) = rank_skew([rows(0, starts), rows(1, [s + 0.5 for s in starts[3:]])], GROUPS)
    assert skew.skew_ms.count == 17


def test_without_speculation_decode_steps_are_compared() -> None:
    starts = [10.0 * i for i in range(5)]
    (skew,) = rank_skew([rows(0, starts, "decode"), rows(1, starts, "decode")], GROUPS)
    assert skew.phase == "decode"


def test_ranks_of_other_hosts_or_groups_are_not_compared() -> None:
    starts = [10.0 * i for i in range(5)]
    recorded = [rows(0, starts), rows(1, starts)]
    assert rank_skew(recorded, {0: "one 0 0", 1: "other 0 0"}) == []
    assert rank_skew(recorded, {0: "one 0 0", 1: "one 1 0"}) == []
    assert rank_skew(recorded[:1], GROUPS) == []
    assert rank_skew([rows(0, []), rows(1, starts)], GROUPS) == []

"""Break-even arithmetic against figures that others published, and against the founding case."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from eaglediag.analysis import breakeven
from eaglediag.analysis.breakeven import CycleTime, Interval
from eaglediag.errors import UsageError

with (Path(__file__).parents[1] / "data/cases/breakeven.csv").open(encoding="utf-8") as cases:
    PUBLISHED = list(csv.DictReader(cases))


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row['source']} {row['case']}")
def test_published_pairs(row: dict[str, str]) -> None:
    maximum = row["max_tau_if_known"]
    answer = breakeven.from_throughputs(
        float(row["base_tput"]),
        float(row["spec_tput"]),
        accept_length=float(row["tau_incl_bonus"]),
        draft_tokens=int(maximum) - 1 if maximum else None,
    )
    assert answer.speedup == pytest.approx(float(row["expect_speedup"]), abs=0.5e-4 + 1e-9)
    assert answer.break_even_accept_length == pytest.approx(float(row["expect_breakeven_tau"]), abs=0.5e-4 + 1e-9)
    assert (answer.verdict == "impossible") == (row["expect_impossible"] == "yes")
    if answer.verdict != "impossible":
        assert answer.verdict == row["expect_verdict"]
    else:
        assert row["expect_verdict"] == "lose"


@pytest.mark.parametrize(("acceptance", "tokens", "expected"), [(0.8, 5, 3.689), (0.9, 10, 6.862)])
def test_expected_accept_length_of_a_chain(acceptance: float, tokens: int, expected: float) -> None:
    assert breakeven.expected_accept_length(acceptance, tokens) == pytest.approx(expected, abs=5e-4)


def test_chain_speedup_counts_the_bonus_token() -> None:
    speedup = breakeven.chain_speedup(0.8, 4, draft_ratio=0.1, verify_ratio=1.0)
    assert speedup == pytest.approx(2.401, abs=5e-4)
    assert speedup != pytest.approx(1.687, abs=0.1)


def test_the_founding_case_from_its_times() -> None:
    """12 ms, 29 ms, 2.0: by verify alone at least 2.42; with the 4 ms nobody had explained, nearer 2.8."""
    alone = breakeven.from_times(12, CycleTime(29), accept_length=2.0, draft_tokens=2)
    assert alone.break_even_accept_length == pytest.approx(29 / 12)
    assert (alone.verdict, alone.missing) == ("lose", ("draft", "draft-extend", "host"))
    assert alone.headroom_ms == pytest.approx(-5.0)

    whole = breakeven.from_times(12, CycleTime(29, 2.5, 1.0, 0.83), accept_length=2.0, draft_tokens=2)
    assert whole.break_even_accept_length == pytest.approx(2.78, abs=0.005)
    assert whole.missing == ()
    assert whole.required_acceptance_rate == pytest.approx(0.92, abs=0.01)


def test_the_founding_case_from_its_throughputs() -> None:
    answer = breakeven.from_throughputs(82.7, 60.0, accept_length=2.0, draft_tokens=2)
    assert answer.speedup == pytest.approx(0.7255, abs=1e-4)
    assert answer.break_even_accept_length == pytest.approx(2.757, abs=1e-3)
    assert answer.verdict == "lose"


def test_the_founding_case_from_both_names_what_is_unexplained() -> None:
    """82.7 against 60 tokens/s: 2.0 tokens a cycle are 33 ms, 4 more than verify takes."""
    answer = breakeven.from_both(12, CycleTime(29), 82.7, 60.0, accept_length=2.0, draft_tokens=2)
    assert answer.cycle_ms == pytest.approx(33.3, abs=0.05)
    assert answer.unexplained_ms == pytest.approx(4.3, abs=0.05)
    assert (answer.verdict, answer.missing) == ("lose", ())
    assert answer.break_even_accept_length == pytest.approx(2.76, abs=0.01)
    with pytest.raises(UsageError, match="of the same run"):
        breakeven.from_both(12, CycleTime(29), 82.7, 80.0, accept_length=2.0)


def test_verdicts() -> None:
    def verdict(verify: float, accept_length: float | None, tokens: int | None = 3) -> str | None:
        return breakeven.from_times(
            10, CycleTime(verify, 0, 0, 0), accept_length=accept_length, draft_tokens=tokens
        ).verdict

    assert verdict(15, 2.0) == "win"
    assert verdict(25, 2.0) == "lose"
    assert verdict(20, 2.0) == "break_even"
    assert verdict(41, 4.0) == "impossible"
    assert verdict(41, None) == "impossible"
    assert verdict(9, 2.0) == "inconsistent"
    assert verdict(25, None) is None


def test_an_interval_decides_the_verdict() -> None:
    def verdict(speedup_interval: Interval, break_even_interval: Interval | None = None) -> str | None:
        return breakeven.judged(
            4.1,
            3.9,
            0.95,
            draft_tokens=3,
            speedup_interval=speedup_interval,
            break_even_interval=break_even_interval,
        ).verdict

    assert verdict(speedup_interval=(0.92, 0.98)) == "impossible"
    assert verdict(speedup_interval=(0.92, 0.98), break_even_interval=(3.9, 4.3)) == "lose"
    assert verdict(speedup_interval=(0.92, 1.01), break_even_interval=(3.9, 4.3)) == "break_even"
    assert (
        breakeven.judged(0.98, 2.0, 2.04, break_even_interval=(0.95, 1.01), speedup_interval=(1.9, 2.1)).verdict
        == "win"
    )


def test_a_tree_has_no_acceptance_rate() -> None:
    answer = breakeven.judged(2.0, 2.0, 1.0, draft_tokens=3, chain=False)
    assert answer.required_acceptance_rate is None
    assert answer.acceptance_rate is None


@pytest.mark.parametrize(
    ("step", "cycle", "accept_length", "tokens", "message"),
    [
        (0, CycleTime(29), 2.0, 2, "decode step must be more than 0 ms"),
        (12, CycleTime(float("nan")), 2.0, 2, "verify must be more than 0 ms"),
        (12, CycleTime(29, draft_ms=-1), 2.0, 2, "draft time must be 0 ms or more"),
        (12, CycleTime(29), 0.87, 2, "leaves the bonus token out"),
        (12, CycleTime(29), 3.5, 2, "at most 3"),
        (12, CycleTime(29), 2.0, 0, "at least 1 drafted token"),
    ],
)
def test_figures_that_cannot_be(step: float, cycle: CycleTime, accept_length: float, tokens: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        breakeven.from_times(step, cycle, accept_length=accept_length, draft_tokens=tokens)

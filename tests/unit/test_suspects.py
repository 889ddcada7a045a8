"""Results that are likelier a fault of the measurement than a fact are called suspect, by name."""

from __future__ import annotations

import pytest

from eaglediag.analysis.comparison import compare
from eaglediag.capture.model import Capture
from eaglediag.probes.turns import merged
from tests.factories import capture, cycle, decode, pair


def codes(baseline: Capture, candidate: Capture) -> list[str]:
    return [one.problem.code for one in compare(baseline, candidate).problems]


def test_a_plausible_pair_is_not_suspect() -> None:
    baseline = capture("baseline", {1: decode(4.2), 4: decode(4.6), 12: decode(15.1)}, seed=1)
    eagle = capture("eagle", {1: cycle(9.2), 4: cycle(9.9), 12: cycle(15.2)}, seed=2)
    assert codes(baseline, eagle) == []


def test_throughput_that_does_not_follow_from_the_cycle() -> None:
    baseline, eagle = pair()
    eagle.windows[0].throughput = (eagle.windows[0].throughput or 0) * 0.7
    assert codes(baseline, eagle) == ["irreconcilable"]


def test_a_break_even_below_one() -> None:
    baseline, eagle = pair(decode_ms=12, verify_ms=8)
    assert codes(baseline, eagle) == ["break_even_below_one"]


@pytest.mark.parametrize(("length", "code"), [(1.0, "accept_length_one"), (4.0, "accept_length_maximal")])
def test_an_accept_length_at_its_bounds(length: float, code: str) -> None:
    assert codes(*pair(accept_length=length)) == [code]


def test_a_cost_that_falls_as_batch_grows() -> None:
    baseline = capture("baseline", {1: decode(15.0), 4: decode(4.6)}, seed=1)
    eagle = capture("eagle", {1: cycle(16.0), 4: cycle(16.2)}, seed=2)
    assert codes(baseline, eagle) == ["cost_falls_with_batch"]


def test_a_first_second_after_idleness() -> None:
    baseline, eagle = pair()
    blocks = baseline.windows[0].ranks[0].batches[0].blocks
    blocks.period_ms[0] *= 1.5
    assert codes(baseline, eagle) == ["slow_start"]


def test_a_pace_that_changes_within_the_window() -> None:
    """As a shared host does to eager steps: 32 ms for eleven seconds, 17 ms for eight."""
    baseline = capture("baseline", {12: decode(23, blocks=19, graph={"decode": False})}, seed=1)
    eagle = capture("eagle", {12: cycle(25)}, seed=2)
    blocks = baseline.windows[0].ranks[0].batches[0].blocks
    for i in range(19):
        level = 32.0 if i < 11 else 17.0
        blocks.period_ms[i] = blocks.steps[i] * level * (1 + 0.02 * (i % 3))
    found = compare(baseline, eagle)
    [problem] = [one.problem for one in found.problems if one.problem.code == "level_shift"]
    assert "took 32.6 ms in the first 11 of 19 parts of the measurement, then 17.3 ms" in problem.message
    assert "eager passes wait for the CPU" in problem.advice
    low, high = found.rows[0].baseline.period.interval or (0, 0)
    assert 17.0 <= low < high <= 32 * 1.04
    assert found.outcome == "inconclusive"


def test_a_pace_that_goes_to_and_fro() -> None:
    baseline, eagle = pair()
    blocks = eagle.windows[0].ranks[0].batches[0].blocks
    for i in range(0, len(blocks.steps), 3):
        blocks.period_ms[i] *= 1.6
    assert "unsteady" in codes(baseline, eagle)


def test_a_small_difference_between_servers_started_once() -> None:
    old = capture("old", {1: decode(4.2)}, seed=1)
    new = capture("new", {1: decode(4.35)}, seed=2)
    [problem] = [one.problem for one in compare(old, new).problems]
    assert problem.code == "few_starts"
    assert problem.message.startswith("batch 1: 3 % is no more than")
    assert problem.message.endswith("an arm was started fewer than 3 times")
    assert codes(old, capture("new", {1: decode(6.0)}, seed=2)) == []


def test_a_small_difference_in_every_one_of_three_starts() -> None:
    old, new = (
        merged(
            merged(capture(name, {1: decode(ms)}, seed=seed), turn(capture(name, {1: decode(ms)}, seed=seed + 1), 1)),
            turn(capture(name, {1: decode(ms)}, seed=seed + 2), 2),
        )
        for name, ms, seed in (("old", 4.2, 1), ("new", 4.35, 11))
    )
    comparison = compare(old, new)
    assert comparison.rows[0].outcome == "worse"
    assert [one.problem.code for one in comparison.problems] == []


def test_starts_that_differ() -> None:
    turns = [capture("old", {1: decode(ms, sd=0.0)}, seed=1) for ms in (4.2, 5.6)]
    old = merged(turns[0], turn(turns[1], 1))
    [problem] = [one.problem for one in compare(old, capture("new", {1: decode(9.0)}, seed=2)).problems]
    assert problem.code == "starts_differ"
    assert problem.message == "old, batch 1: a step took 4.50 and 5.90 ms in the server's 2 starts"


def turn(one: Capture, number: int) -> Capture:
    for window in one.windows:
        window.repeat = number
        window.id += f"-r{number}"
    return one

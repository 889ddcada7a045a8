"""Comparing captures: what is paired with what, what adds up, and what is said."""

from __future__ import annotations

import pytest

from eaglediag.analysis.comparison import compare
from eaglediag.analysis.findings import excess_ms
from eaglediag.analysis.pairing import Row
from eaglediag.capture.model import Blocks, Capture, Problem, Rank
from eaglediag.errors import NotComparable, UsageError
from tests.factories import batch, capture, cycle, decode, denial, pair, window


def row(baseline: Capture, candidate: Capture, size: int = 1) -> Row:
    return next(row for row in compare(baseline, candidate).rows if row.batch_size == size)


def test_the_founding_case() -> None:
    """12 ms a step, 29 ms a verify, 2.0 tokens and a 33 ms cycle: it loses, and the parts say where the rest went."""
    baseline = capture("baseline", {1: decode(11.8, gap=0.2)}, seed=1)
    eagle = capture("eagle", {1: cycle(29, draft=2.0, draft_extend=0.8, gap=1.3, accept_length=2.0)}, seed=2)
    found = compare(baseline, eagle)
    main = found.rows[0]
    assert found.outcome == "worse"
    assert main.break_even is not None
    assert main.break_even.verdict == "lose"
    assert main.break_even.break_even_accept_length == pytest.approx(33.1 / 12, rel=0.02)
    assert main.speedup.value == pytest.approx(2.0 * 12 / 33.1, rel=0.05)
    assert main.speedup.low < 2.0 * 12 / 33.1 < main.speedup.high
    assert "slower at batch 1 because a cycle costs 2.7" in found.headline
    assert "verify takes 29.0" in found.headline


def test_parts_and_gap_add_up_to_the_cycle() -> None:
    main = row(*pair())
    assert main.candidate.gap_ms is not None
    assert sum(main.candidate.parts.values()) + main.candidate.gap_ms == pytest.approx(main.candidate.period.value)
    assert main.candidate.gap_ms == pytest.approx(0.5, rel=0.02)
    found = compare(*pair())
    assert sum(share.ms for share in found.shares) == pytest.approx(excess_ms(found.rows[0]))
    assert [share.part for share in found.shares] == ["verify", "draft", "draft_extend", "gap", "acceptance"]


def test_seen_and_implied_reconcile() -> None:
    main = row(*pair())
    assert main.reconciliation == pytest.approx(0, abs=0.01)
    assert not [one for one in compare(*pair()).problems if one.problem.code == "irreconcilable"]


def test_a_throughput_that_does_not_follow_from_the_cycle_is_said() -> None:
    baseline, eagle = pair()
    eagle.windows[0].throughput = (eagle.windows[0].throughput or 0) * 0.7
    [problem] = compare(baseline, eagle).problems
    assert problem.problem.code == "irreconcilable"
    assert "30 % apart" in problem.problem.message


def test_a_denied_verify_is_the_cause() -> None:
    eager = capture(
        "eagle", {12: cycle(65, graph={"verify": False})}, seed=2, denials=[denial("draft", 12), denial("verify", 12)]
    )
    found = compare(capture("baseline", {12: decode(4.5)}, seed=1), eager)
    assert "verify takes 65" in found.headline
    assert "without a graph: `cuda_graph_bs <= self.max_bs` was `12 <= 8`" in found.headline
    assert found.candidate.graph_share == {"verify": 0.0, "draft": 1.0, "draft_extend": 1.0}


def test_batch_sizes_that_disagree_are_all_in_the_headline() -> None:
    baseline = capture("baseline", {1: decode(4.2), 12: decode(15.1)}, seed=1)
    eagle = capture("eagle", {1: cycle(9.2), 12: cycle(15.2)}, seed=2)
    found = compare(baseline, eagle)
    assert found.outcome == "worse"
    assert "; but at batch 12 it is 7" in found.headline
    assert [one.outcome for one in found.rows] == ["worse", "better"]


def test_equal_arms_are_equal_and_two_of_a_kind_are_compared() -> None:
    old = capture("old", {1: decode(5.0, blocks=60)}, seed=1)
    new = capture("new", {1: decode(5.0, blocks=60)}, seed=2)
    assert compare(old, new).outcome == "equal"
    slower = compare(old, capture("new", {1: decode(5.6, blocks=60)}, seed=2))
    assert slower.outcome == "worse"
    assert slower.rows[0].break_even is None
    assert "new is 10 % slower at batch 1" in slower.headline


def test_a_cycle_out_of_reach_of_any_drafter() -> None:
    found = compare(*pair(decode_ms=5.0, verify_ms=29.0))
    assert found.rows[0].break_even is not None
    assert found.rows[0].break_even.verdict == "impossible"
    assert "can never emit more than 4" in found.headline


def test_the_baseline_comes_first() -> None:
    baseline, eagle = pair()
    with pytest.raises(UsageError, match="give the baseline first"):
        compare(eagle, baseline)


def test_nothing_in_common() -> None:
    with pytest.raises(NotComparable, match="share no batch size"):
        compare(capture("baseline", {1: decode(5)}), capture("eagle", {4: cycle(6)}))


def test_sizes_with_few_steps_get_no_row() -> None:
    baseline = capture("baseline", {1: decode(5)}, seed=1)
    eagle = capture("eagle", {1: cycle(6)}, seed=2)
    for arm, cost in ((baseline, decode(5.2, blocks=1)), (eagle, cycle(6.5, blocks=1))):
        ramp = batch(3, cost)
        ramp.count = 12
        ramp.blocks = Blocks()
        arm.windows[0].ranks[0].batches.append(ramp)
    found = compare(baseline, eagle)
    assert [one.batch_size for one in found.rows] == [1]
    assert found.skipped[0].batch_size == 3
    assert "baseline 12 steps, eagle 12 steps" in found.skipped[0].why


def test_steps_of_a_ramp_do_not_mix_with_a_window_at_that_concurrency() -> None:
    baseline, eagle = pair()
    ramp = window(12, decode(15.0), seed=9)
    ramp.ranks[0].batches.append(batch(1, decode(40.0)))
    baseline.windows.append(ramp)
    assert row(baseline, eagle).baseline.period.value == pytest.approx(12.0, rel=0.02)


def test_one_rank_of_a_tensor_parallel_group_speaks_for_it() -> None:
    alone = row(capture("baseline", {1: decode(5)}, seed=1), capture("eagle", {1: cycle(6)}, seed=2))
    eight = row(capture("baseline", {1: decode(5)}, seed=1, tp=8), capture("eagle", {1: cycle(6)}, seed=2, tp=8))
    assert eight.speedup == alone.speedup


def test_data_parallel_ranks_are_pooled() -> None:
    baseline, eagle = (capture("baseline", {1: decode(5)}, tp=2), capture("eagle", {1: cycle(6)}, tp=2))
    for arm in (baseline, eagle):
        arm.instrumentation.ranks = [Rank(rank=0, dp=0), Rank(rank=1, dp=1)]
    assert row(baseline, eagle).baseline.period.blocks == 40


def test_an_import_without_parts_or_blocks() -> None:
    """A log gives a cycle's length but not its parts; one number without blocks supports no interval."""
    baseline, eagle = pair()
    for arm in (baseline, eagle):
        stats = arm.windows[0].ranks[0].batches[0]
        stats.parts, stats.gap_ms, stats.blocks = [], None, Blocks()
        arm.windows[0].ranks[0].phases = []
        arm.windows[0].requests = []
        arm.hosts = []
    found = compare(baseline, eagle)
    assert found.outcome == "inconclusive"
    assert found.rows[0].candidate.gap_ms is None
    assert found.rows[0].candidate.parts == {}
    assert "inconclusive: too little data" in found.headline


def test_requests_decide_when_there_are_too_few_blocks() -> None:
    baseline = capture("baseline", {1: decode(12, blocks=4)}, seed=1)
    eagle = capture("eagle", {1: cycle(29, blocks=4)}, seed=2)
    found = compare(baseline, eagle)
    assert found.rows[0].speedup.interval is None
    assert found.rows[0].decisive.interval is not None
    assert found.outcome == "worse"


def test_throughput_alone_still_gives_a_break_even() -> None:
    baseline, eagle = pair()
    for arm in (baseline, eagle):
        arm.windows[0].ranks = []
    found = compare(baseline, eagle)
    assert found.rows == ()
    assert found.loads[0].break_even is not None
    assert found.loads[0].break_even.break_even_accept_length == pytest.approx(30.9 / 12, rel=0.02)
    assert "at concurrency 1" in found.headline


def test_an_accept_length_sweep_is_left_out() -> None:
    baseline, eagle = pair()
    swept = window(1, cycle(99), seed=5)
    swept.simulated_accept_length = 3.0
    eagle.windows.append(swept)
    assert row(baseline, eagle).candidate.period.value == pytest.approx(30.9, rel=0.02)


def test_what_weakens_a_capture_is_passed_on() -> None:
    baseline, eagle = pair()
    eagle.problems.append(Problem(code="server_died", message="the server died", advice="see its log"))
    eagle.instrumentation.ranks_expected = 8
    baseline.windows[0].failed_requests = 2
    found = {(one.arm, one.problem.code) for one in compare(baseline, eagle).problems}
    assert {("eagle", "server_died"), ("eagle", "ranks_missing"), ("baseline", "failed_requests")} <= found

"""What-if: prices come from what was measured, and what was not is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from eaglediag.analysis.breakeven import Verdict, judged
from eaglediag.analysis.comparison import Comparison, compare
from eaglediag.analysis.held import hold
from eaglediag.analysis.sweep import crossings
from eaglediag.analysis.whatif import WhatIfRow, crossover, parse, what_if
from eaglediag.capture import store
from eaglediag.capture.model import Capture, Profile
from eaglediag.errors import NotComparable, UsageError
from tests.factories import capture, cycle, decode, window
from tests.invoke import eaglediag


def arms() -> tuple[Capture, Capture]:
    """Verify is a graph at batch 4 and 8, and eager at 1 and 12. Widths are 4 tokens."""
    baseline = capture("baseline", {1: decode(5), 4: decode(5.4), 8: decode(6), 12: decode(7)}, seed=1)
    eagle = capture(
        "eagle",
        {
            1: cycle(12, draft=1.5, graph={"verify": False}),
            4: cycle(6.6, draft=1.5),
            8: cycle(8.0, draft=1.5),
            12: cycle(16, draft=1.5, graph={"verify": False}),
        },
        seed=2,
    )
    return baseline, eagle


def asked(*changes: str, eagle: Capture | None = None) -> dict[int, WhatIfRow]:
    baseline, candidate = arms()
    candidate = eagle or candidate
    found = what_if(changes, (baseline, candidate), compare(baseline, candidate))
    return {row.batch_size: row for row in found.rows}


def eager_at_12() -> tuple[Capture, Capture]:
    """Both arms captured graphs up to batch 8."""
    baseline = capture(
        "baseline", {8: decode(4.6, gap=0.02), 12: decode(22, gap=1.2, sd=0.2, graph={"decode": False})}, seed=1
    )
    eager = {"verify": False, "draft": False, "draft_extend": False}
    eagle = capture(
        "eagle", {8: cycle(6.1, 0.3, 0.4, gap=0.05), 12: cycle(25, 3.5, 3, gap=2, sd=0.2, graph=eager)}, seed=2
    )
    return baseline, eagle


def advised() -> tuple[Capture, Capture]:
    """The same with graphs at batch 12."""
    return (
        capture("baseline-advised", {12: decode(4.7, gap=0.02)}, seed=3),
        capture("eagle-advised", {12: cycle(6.9, 0.33, 0.41, gap=0.08)}, seed=4),
    )


def test_a_graph_at_the_cost_of_the_nearest_captured_size() -> None:
    rows = asked("graph")
    after = rows[1].after
    assert after is not None
    assert after.cycle_ms == pytest.approx(12 + 1.5 + 0.5 + 0.5 - (12 - 6.6), rel=0.02)
    assert rows[1].before.verdict == "lose"
    assert after.verdict == "win"
    assert "verify at 6." in rows[1].notes[0]
    assert "as with graphs at batch 4" in rows[1].notes[0]
    assert "so at least that" not in rows[1].notes[0]
    assert "batch 8, so at least that" in rows[12].notes[0]
    prediction = rows[12].prediction
    assert prediction is not None
    assert (prediction.cycle_bound, prediction.break_even_bound) == ("at least", "at least")
    assert (prediction.step_bound, prediction.speedup_bound) == ("", "at most")
    assert rows[4].notes == ("every phase has its graph already",)
    assert rows[4].after is not None
    assert rows[4].after.cycle_ms == pytest.approx(rows[4].before.cycle_ms)


def test_a_graph_at_device_busy_time() -> None:
    _, eagle = arms()
    eagle.profiles = [
        Profile(
            phase="verify",
            batch_size=1,
            steps=4,
            kernels_per_step=650,
            launches_per_step=650,
            graph_launches_per_step=0,
            device_busy_ms=4.0,
            span_ms=12.0,
        )
    ]
    row = asked("graph", eagle=eagle)[1]
    assert row.after is not None
    assert row.after.cycle_ms == pytest.approx(6.5, rel=0.02)
    assert "device-busy time" in row.notes[0]


def test_the_flag_that_gives_one_arm_its_graph_gives_it_to_the_other() -> None:
    arms = eager_at_12()
    row = what_if(["graph"], arms, compare(*arms)).rows[1]
    assert row.after is not None
    assert row.prediction is not None
    assert row.prediction.step_ms == pytest.approx(4.62, rel=0.02)
    assert row.prediction.cycle_ms == pytest.approx(6.85, rel=0.02)
    assert row.prediction.gap_ms == pytest.approx(0.05, rel=0.05)
    assert row.after.break_even_accept_length == pytest.approx(6.85 / 4.62, rel=0.02)
    assert row.prediction.at_least == {"decode", "draft", "verify", "draft_extend"}
    assert row.prediction.gap_bound == "at least"
    assert (row.prediction.break_even_bound, row.prediction.speedup_bound) == ("about", "about")
    # The noise of the eager steps is not the noise of the graphs that price them.
    low, high = row.after.break_even_interval or (0, 0)
    assert high - low < 0.1


def test_a_baseline_that_nothing_prices_refuses_the_whole_batch_size() -> None:
    baseline, eagle = eager_at_12()
    baseline.windows = baseline.windows[1:]
    [row] = what_if(["graph"], (baseline, eagle), compare(baseline, eagle)).rows
    assert row.after is None
    assert row.refused == "nothing measured says what decode costs with a graph"


def test_a_prediction_held_against_a_later_capture() -> None:
    arms, (later_baseline, later) = eager_at_12(), advised()
    predicted = what_if(["graph"], arms, compare(*arms))
    found = {(one.batch_size, one.quantity): one for one in hold(predicted, arms, later, later_baseline)}
    assert {size for size, _ in found} == {12}
    cycle_ = found[12, "cycle"]
    assert cycle_.error == pytest.approx(6.85 / 7.72 - 1, abs=0.01)
    assert (cycle_.bound, cycle_.kept) == ("at least", True)
    assert found[12, "decode step"].error == pytest.approx(4.62 / 4.72 - 1, abs=0.01)
    assert found[12, "break-even"].kept is None
    assert found[12, "speed-up"].error == pytest.approx((4.62 / 6.85) / (4.72 / 7.72) - 1, abs=0.02)
    alone = hold(predicted, arms, later, None)
    assert {one.quantity for one in alone} == {"draft", "verify", "draft-extend", "host gap", "cycle"}
    faster = capture("eagle-advised", {12: cycle(4.0, 0.33, 0.41)}, seed=4)
    assert [one.kept for one in hold(predicted, arms, faster, None) if one.quantity == "verify"] == [False]


def test_a_prediction_is_not_held_against_anything_else() -> None:
    arms, (_, later) = eager_at_12(), advised()
    predicted = what_if(["graph"], arms, compare(*arms))
    with pytest.raises(NotComparable, match="none of the predicted batch sizes"):
        hold(predicted, arms, capture("eagle-advised", {2: cycle(5)}), None)
    later.server.tp = 2
    with pytest.raises(NotComparable, match="cannot prove a prediction from eagle: tp size"):
        hold(predicted, arms, later, None)


def test_a_graph_that_nothing_prices() -> None:
    eagle = capture("eagle", {1: cycle(12, graph={"verify": False})}, seed=2)
    row = asked("graph", eagle=eagle)[1]
    assert row.after is None
    assert row.refused == "nothing measured says what verify costs with a graph"


def test_another_accept_length() -> None:
    rows = asked("accept-length=3.5")
    after = rows[1].after
    assert after is not None
    assert after.break_even_accept_length == pytest.approx(rows[1].before.break_even_accept_length)
    assert after.speedup == pytest.approx(3.5 / after.break_even_accept_length)
    assert after.speedup_interval is not None
    assert after.speedup_interval[0] < 3.5 / after.break_even_accept_length < after.speedup_interval[1]
    assert asked("accept-length=4.5")[1].refused == "3 drafted tokens give at most 4"


def test_fewer_drafted_tokens() -> None:
    rows = asked("draft-tokens=2")
    row = rows[8]
    assert row.after is not None
    # 24 tokens lie between the 16 of batch 4 and the 32 of batch 8.
    assert "verify of 24 tokens at 7." in row.notes[0]
    assert row.after.max_accept_length == 3
    assert 1 < (row.after.accept_length or 0) < 2.0
    same = asked("draft-tokens=3")[8]
    assert same.after is not None
    assert same.after.cycle_ms == pytest.approx(same.before.cycle_ms)
    assert same.after.accept_length == same.before.accept_length
    assert asked("draft-tokens=5")[8].refused == "acceptance was measured for 3 drafted tokens, not 5"
    assert "no pass without a graph was measured on both sides" in asked("draft-tokens=1")[1].refused


def test_too_few_passes_for_positions() -> None:
    _, eagle = arms()
    stats = eagle.windows[2].ranks[0].batches[0]
    assert stats.accept is not None
    stats.accept.histogram = [10, 5, 5, 5]
    assert asked("draft-tokens=2", eagle=eagle)[8].refused == "25 verify passes say too little about single positions"


def test_changes_combine() -> None:
    both = asked("graph", "accept-length=3.5")[1].after
    assert both is not None
    assert both.verdict == "win"
    assert both.accept_length == 3.5


def test_the_best_number_of_drafted_tokens() -> None:
    baseline, eagle = arms()
    found = what_if(["draft-tokens=best"], (baseline, eagle), compare(baseline, eagle))
    choice = {one.batch_size: one for one in found.choices}
    assert len(choice[8].speedups) == 3
    assert choice[8].margin is not None
    assert choice[1].refused


def test_simulated_acceptance_says_nothing_about_positions() -> None:
    baseline, eagle = arms()
    assert eagle.server.speculation is not None
    eagle.server.speculation.simulated_accept_length = 2.0
    for one in eagle.windows:
        one.simulated_accept_length = 2.0
    found = what_if(["draft-tokens=2"], (baseline, eagle), compare(baseline, eagle))
    assert {row.refused.partition(":")[0] for row in found.rows} == {"the accept length is simulated"}
    assert not any(choice.best for choice in found.choices)


def comparison_points(*speedups: tuple[int, float]) -> Comparison:
    baseline = capture("baseline", {size: decode(10 + size / 10, gap=0.0) for size, _ in speedups}, seed=1)
    eagle = capture("eagle", {size: cycle(20 / speedup, 0, 0, 0) for size, speedup in speedups}, seed=2)
    return compare(baseline, eagle)


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        (("win", "break_even"), "wins at batch 1; at batch 2 the figures cannot tell"),
        (("break_even", "win"), "wins at batch 2; at batch 1 the figures cannot tell"),
        (("win", "break_even", "lose"), "between 1 and 3 on, about 2; at batch 2 the figures cannot tell"),
        (("impossible", "lose"), "loses from batch 1 to 2; not measured beyond"),
        (("break_even", "inconsistent"), "neither wins nor loses for certain at batch 1 and 2"),
    ],
)
def test_a_crossover_rests_on_verdicts(verdicts: tuple[Verdict, ...], said: str) -> None:
    speedups: dict[Verdict, float] = {"win": 1.5, "lose": 0.5, "impossible": 0.4, "break_even": 1.02, "inconsistent": 3}
    points = [
        (size, replace(judged(1.5, 2.0, speedups[verdict]), verdict=verdict))
        for size, verdict in enumerate(verdicts, 1)
    ]
    assert said in crossover(points)


@pytest.mark.parametrize(
    ("speedups", "said"),
    [
        (((1, 1.5), (4, 1.2), (12, 0.8)), "loses from a batch between 4 and 12 on"),
        (((1, 1.5), (4, 1.2)), "wins from batch 1 to 4; not measured beyond"),
        (((1, 0.7), (4, 0.8)), "loses from batch 1 to 4; not measured beyond"),
        (((1, 0.7), (4, 1.3)), "wins only from batch 4 on"),
        (((1, 0.7),), "loses at batch 1"),
    ],
)
def test_crossover(speedups: tuple[tuple[int, float], ...], said: str) -> None:
    rows = comparison_points(*speedups).rows
    assert said in crossover([(row.batch_size, row.break_even) for row in rows if row.break_even])
    assert crossover([]) == "not known"


@pytest.mark.parametrize(
    "text", ["graphs", "graph=1", "accept-length", "accept-length=0.5", "draft-tokens=0", "draft-tokens=x"]
)
def test_changes_that_cannot_be(text: str) -> None:
    with pytest.raises(UsageError, match="is not known"):
        parse(text)


def test_a_sweep_crosses_where_the_arithmetic_says() -> None:
    baseline = capture("baseline", {1: decode(12)}, seed=1)
    eagle = capture("eagle", {1: cycle(29)}, seed=2)
    for length in (1.5, 2.0, 2.5, 3.0):
        swept = window(1, cycle(29, accept_length=length), seed=int(10 * length))
        swept.simulated_accept_length = length
        eagle.windows.append(swept)
    [found] = crossings(eagle, compare(baseline, eagle))
    assert found.measured == pytest.approx(31 / 12.3, rel=0.03)
    assert found.apart == pytest.approx(0, abs=0.03)
    eagle.windows = eagle.windows[:3]
    [short] = crossings(eagle, compare(baseline, eagle))
    assert (short.measured, short.apart) == (None, None)


def test_a_sweep_prices_the_cycle_from_all_its_windows() -> None:
    """At concurrency 8 no window is pinned to what the server was started with, so there is no row for it."""
    baseline = capture("baseline", {1: decode(12), 8: decode(13)}, seed=1)
    eagle = capture("eagle", {1: cycle(29)}, seed=2)
    for length in (2.0, 3.0):
        for concurrency in (1, 8):
            swept = window(concurrency, cycle(29, accept_length=length), seed=int(10 * length))
            swept.simulated_accept_length = length
            eagle.windows.append(swept)
    found = compare(baseline, eagle)
    assert [row.batch_size for row in found.rows] == [1]
    crossing = crossings(eagle, found)[1]
    assert crossing.concurrency == 8
    assert crossing.computed is not None
    assert crossing.computed.value == pytest.approx(31 / 13.3, rel=0.02)
    assert crossing.computed.interval is not None
    assert crossing.apart == pytest.approx(0, abs=0.03)


def test_the_command_shows_a_sweep(tmp_path: Path) -> None:
    baseline, eagle = capture("baseline", {1: decode(12)}, seed=1), capture("eagle", {1: cycle(29)}, seed=2)
    for length in (2.0, 3.0):
        swept = window(1, cycle(29, accept_length=length), seed=int(10 * length))
        swept.simulated_accept_length = length
        eagle.windows.append(swept)
    paths = tmp_path / "baseline.json", tmp_path / "sweep.json"
    for path, one in zip(paths, (baseline, eagle), strict=True):
        store.write(one, path)
    ran = eaglediag("breakeven", paths[1], "--baseline", paths[0], width=80)
    assert "Where a sweep of accept lengths crosses break-even" in ran.out
    assert "× at 2, 1.19 × at 3" in ran.out
    [sweep] = json.loads(eaglediag("breakeven", paths[1], "--baseline", paths[0], "--json").out)["sweep"]
    assert sweep["computed"]["value"] == pytest.approx(sweep["measured"], rel=0.03)


def test_the_command(tmp_path: Path) -> None:
    paths = tmp_path / "baseline.json", tmp_path / "eagle.json"
    for path, one in zip(paths, arms(), strict=True):
        store.write(one, path)
    given = ("breakeven", paths[1], "--baseline", paths[0], "--what-if", "graph", "--what-if", "draft-tokens=best")
    for width in (80, 120):
        ran = eaglediag(*given, width=width)
        assert ran.code == 0
        assert "How this was priced" in ran.out
        assert "then: speculation" in ran.out
        assert max(map(len, ran.out.splitlines())) <= width
    document = json.loads(eaglediag(*given, "--json").out)
    assert len(document["what_if"]["by_batch_size"]) == 4
    assert document["sweep"] == []
    ran = eaglediag("breakeven", "--decode-ms", 12, "--verify-ms", 29, "--what-if", "graph")
    assert ran.code == 2
    assert "--what-if and --measured need captures" in ran.err


def test_the_command_holds_a_prediction(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.json" for i in range(4)]
    for path, one in zip(paths, (*eager_at_12(), *advised()), strict=True):
        store.write(one, path)
    given = ("breakeven", paths[1], "--baseline", paths[0])
    later = ("--measured", paths[3], "--measured-baseline", paths[2])
    for width in (80, 120):
        ran = eaglediag(*given, "--what-if", "graph", *later, width=width)
        assert ran.code == 0
        assert "Predicted and measured" in ran.out
        assert "bound kept" in ran.out
        assert max(map(len, ran.out.splitlines())) <= width
    [*_, speedup] = json.loads(eaglediag(*given, "--what-if", "graph", *later, "--json").out)["what_if"]["held"]
    assert speedup["quantity"] == "speed-up"
    assert speedup["error"] == pytest.approx(speedup["predicted"] / speedup["measured"]["value"] - 1)
    for wrong in (later, ("--what-if", "graph", *later[2:])):
        ran = eaglediag(*given, *wrong)
        assert ran.code == 2
        assert "--measured" in ran.err

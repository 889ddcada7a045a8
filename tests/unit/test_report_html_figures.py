"""The pictures of the HTML report: what is drawn where agrees with the figures, and the words claim no more."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from eaglediag.analysis import findings
from eaglediag.analysis.comparison import compare
from eaglediag.analysis.figures import interval
from eaglediag.analysis.measured import measure
from eaglediag.analysis.statistics import Estimate
from eaglediag.capture.model import Capture, Collective, Speculation
from eaglediag.reports import step_series
from eaglediag.reports.html import acceptance, batches, collectives, denials, estimates, page, speedup, time_axis
from eaglediag.reports.html.drawing import CHARACTER, Scale
from eaglediag.reports.html.figure import NARROW, WIDE, Material
from tests import recordings
from tests.factories import START, Cost, capture, cycle, decode, denial, gpu, pair
from tests.html_material import Shape, figures, material, rendered, shapes
from tests.report_material import full_pair

LONG = Speculation(algorithm="EAGLE3", num_steps=79, topk=1, num_draft_tokens=80)


def texts(picture: str) -> dict[str, Shape]:
    return {one.words: one for one in shapes(picture) if one.tag == "text"}


def noisy() -> tuple[Capture, Capture]:
    """The candidate's interval at batch 4 ends far above its value."""
    baseline = capture("baseline", {1: decode(4.0), 4: decode(4.5)}, seed=1)
    eagle = capture("eagle", {1: cycle(5.0), 4: cycle(9.0, sd=0.5, rho=0.6, blocks=8)}, seed=2)
    return baseline, eagle


def test_an_isolated_stretch_is_marked_where_it_was_measured() -> None:
    eagle = capture("eagle", {1: cycle(5.0, blocks=3)})
    blocks = eagle.windows[0].ranks[0].batches[0].blocks
    blocks.t = [START, START + 10, START + 20]
    picture = figures(eagle)["timeline0"].wide
    marks = [one for one in shapes(picture) if "mark" in one.looks]
    found = [re.fullmatch(r"translate\((\S+) \S+\) scale\(0\.7\)", one.attributes["transform"]) for one in marks]
    x = Scale(0.0, 21.0, 48.0, WIDE - 12)
    assert [float(one[1]) for one in found if one] == pytest.approx([x(0.5), x(10.5), x(20.5)], abs=0.1)
    assert "transform-box" not in rendered(eagle)


def test_whiskers_end_where_the_intervals_end() -> None:
    base, eagle = noisy()
    widest = compare(base, eagle).rows[1].candidate.period
    whiskers = [one for one in shapes(figures(base, eagle)["batches"].wide) if {"whisker", "key1"} <= one.looks]
    low, high = whiskers[-1]["y1"], whiskers[-1]["y2"]
    axis = Scale(0.0, 1.12 * widest.high, 224.0, 34.0)
    assert (low, high) == pytest.approx((axis(widest.low), axis(widest.high)), abs=0.01)
    assert high > axis.end


def test_an_axis_says_how_far_intervals_go_that_it_cuts_off() -> None:
    found = [Estimate(10.0, (9.0, 11.0)), Estimate(4.0, (1.0, 50.0))]
    assert estimates.reach(found) == 20.0
    assert estimates.titled("ms", Scale(0.0, 20.0, 0.0, 1.0), found) == "ms (intervals up to 50.0)"
    assert estimates.titled("ms", Scale(0.0, 60.0, 0.0, 1.0), found) == "ms"


def test_the_crossover_stands_where_the_lines_cross() -> None:
    rows = compare(*full_pair()).rows
    [(a, b, place)] = batches.crossovers(rows)
    x = Scale(1.0, 12.0, 0.0, 1.0, log=True)
    lines = []
    for value in ("break_even_length", "accept_length"):
        ends = [
            getattr(row if value == "break_even_length" else row.candidate, value).value
            for row in rows
            if row.batch_size in (a, b)
        ]
        share = (x(place) - x(a)) / (x(b) - x(a))
        lines.append(ends[0] + share * (ends[1] - ends[0]))
    assert lines[0] == pytest.approx(lines[1])


def test_break_even_is_crossed_only_where_the_outcomes_say_so() -> None:
    base, eagle = full_pair()
    assert "break-even is crossed between batch 4 and 12" in figures(base, eagle)["batches"].says
    for one in (base, eagle):
        for window in one.windows:
            window.requests = []
    stats = eagle.windows[1].ranks[0].batches[0]
    blocks = stats.blocks
    stats.blocks = blocks.model_copy(
        update={name: column[:4] for name, column in blocks if isinstance(column, list)}
        | {"parts_ms": {phase: column[:4] for phase, column in blocks.parts_ms.items()}}
    )
    assert compare(base, eagle).rows[1].outcome == "inconclusive"
    said = figures(base, eagle)["batches"].says
    assert "the lines of break-even and of what is reached cross between batch 4 and 12, but batch 4 is incon" in said
    assert "break-even is crossed" not in said


def test_two_arms_of_a_kind_have_no_break_even_to_cross() -> None:
    arms = capture("old", {1: cycle(5), 4: cycle(6)}, seed=1), capture("new", {1: cycle(4), 4: cycle(8)}, seed=2)
    one = figures(*arms)["batches"]
    assert "break-even" not in one.says
    assert "cross" not in one.wide


def test_each_half_of_the_waterfall_names_its_arm() -> None:
    one = figures(capture("old", {1: cycle(5)}, seed=1), capture("new", {1: cycle(4)}, seed=2))["cycle"]
    assert one.title == "One cycle, part by part, against one cycle of old"
    for picture in (one.wide, one.narrow):
        words = list(texts(picture))
        assert words.index("old: one cycle") < words.index("new: one cycle")
    assert figures(*pair())["cycle"].title.endswith("against one step of the baseline")


def test_parts_that_reach_into_the_next_step_are_drawn_as_overlap() -> None:
    base, eagle = pair()
    blocks = eagle.windows[0].ranks[0].batches[0].blocks
    blocks.parts_ms = {phase: [1.2 * ms for ms in column] for phase, column in blocks.parts_ms.items()}
    one = figures(base, eagle)["cycle"]
    whole = compare(base, eagle).rows[0].candidate
    assert whole.gap_ms is not None
    assert whole.gap_ms < 0
    parts = sum(whole.parts.values())
    [drawn] = [one for one in shapes(one.wide) if one.words.startswith("eagle, overlap")]
    [extend] = [one for one in shapes(one.wide) if one.words.startswith("eagle, draft-extend")]
    assert drawn["x"] + drawn["width"] == pytest.approx(extend["x"] + extend["width"], abs=0.02)
    scale = (extend["x"] + extend["width"] - 96.0) / parts
    assert drawn["width"] == pytest.approx(-whole.gap_ms * scale, abs=0.02)
    assert "overlap" in one.says
    assert "gap, or overlap" in [words for _, words in one.keys]
    assert "overlap" not in figures(*pair())["cycle"].measured


def test_a_long_chain_is_computed_whole_and_cut_only_in_the_picture() -> None:
    eagle = capture("eagle", {1: cycle(15.0, accept_length=70.0)}, speculation=LONG)
    cost = measure(eagle).batches[1]
    positions, lengths = acceptance.panels(cost, most=80)
    assert len(lengths) == 80
    assert sum(bar.share for bar in lengths) == pytest.approx(1.0)
    assert sum(bar.passes for bar in lengths) == sum(cost.histogram)
    assert positions[0].share == pytest.approx(1.0)
    one = figures(eagle)["acceptance"]
    assert len(one.table.rows) == 80
    assert "The picture ends at 64; of 80 accept lengths the table has all." in one.says
    assert "accept length, tokens (the first 64 of 80)" in texts(one.wide)
    assert sum({"verify", "bar"} <= shape.looks for shape in shapes(one.wide)) == 64


@pytest.mark.parametrize("drafted", [4, 8, 10, 16, 24, 32, 80])
def test_labels_under_and_on_bars_do_not_touch(drafted: int) -> None:
    settings = LONG.model_copy(update={"num_steps": drafted - 1, "num_draft_tokens": drafted})
    one = figures(capture("eagle", {1: cycle(15.0, accept_length=0.7 * drafted)}, speculation=settings))["acceptance"]
    for picture in (one.wide, one.narrow):
        for look in ("tick", "value"):
            labels = [text for text in shapes(picture) if look in text.looks and text["x"] > 40 and text.tag == "text"]
            for first, second in pairwise(labels):
                apart = second["x"] - first["x"]
                touching = (len(first.words) + len(second.words)) * (CHARACTER - 0.4) / 2
                assert apart <= 0 or apart >= touching


def test_collectives_are_told_by_arm_phase_and_window() -> None:
    base, eagle = full_pair()
    one = figures(base, eagle)["collectives"]
    assert one.says == (
        "Calls in one pass of baseline: decode 66 launched (c12), 66 inside its graph (c1). "
        "Calls in one pass of eagle: verify 66 launched (c12), 66 inside its graph (c1); "
        "draft 4 launched (c12), 4 inside its graph (c1); draft-extend 4 launched (c12), 4 inside its graph (c1)."
    )
    assert one.table.headers[4] == "concurrency"
    assert {(row[3], row[4]) for row in one.table.rows} == {("launched one by one", "12"), ("inside a graph", "1")}
    words = list(texts(one.wide))
    assert words.index("baseline") < words.index("eagle") < words.index("verify, launched (c12)")


def test_calls_of_a_row_are_of_one_window_and_one_batch_size() -> None:
    _, eagle = full_pair()
    few, many = (window.ranks[0] for window in eagle.windows[1:])
    many.collectives.append(few.collectives[0].model_copy(update={"backend": "quick", "in_graph": False}))
    many.collectives[-1].batch_size, many.collectives[-1].calls_per_step = 4, 3.0
    launched = [one for one in collectives.calls(eagle) if one.phase == "verify" and not one.in_graph]
    assert {one.concurrency for one in launched} == {12}
    assert sum(one.per_pass for one in launched) == 66


def test_no_two_backends_share_a_colour_unsaid() -> None:
    _, eagle = full_pair()
    eagle.windows[0].ranks[0].collectives = [
        Collective(phase="verify", backend=f"b{i}", operation="all_reduce", in_graph=True, calls=10, steps=10,
                   calls_per_step=1.0)
        for i in range(7)
    ]  # fmt: skip
    eagle.windows = eagle.windows[:1]
    one = figures(eagle)["collectives"]
    keys = [words for sample, words in one.keys if 'class="swatch key' in sample]
    assert keys == ["b0", "b1", "b2", "b3", "b4", "b5, b6"]
    bars = [shape for shape in shapes(one.wide) if "bar" in shape.looks]
    assert len({next(look for look in bar.looks if look.startswith("key")) for bar in bars}) == 6


def test_a_window_out_of_a_log_is_shaded_where_its_steps_ran() -> None:
    eagle = capture("eagle", {12: cycle(25.0, blocks=4)})
    [window] = eagle.windows
    assert time_axis.stretches(window) == [(window.started, window.started + window.duration_s)]
    window.duration_s = 3.79
    blocks = window.ranks[0].batches[0].blocks
    blocks.t = [START + at for at in (0, 13, 14, 14)]
    seconds = [ms / 1000 for ms in blocks.period_ms]
    first, second = time_axis.stretches(window)
    assert first == pytest.approx((START, START + seconds[0]))
    assert second == pytest.approx((START + 13, START + 14 + max(seconds[2:])))
    shaded = [one for one in shapes(figures(eagle)["timeline0"].wide) if "window0" in one.looks]
    assert len(shaded) == 2


def test_denied_graphs_link_to_the_finding_about_their_condition_alone() -> None:
    base, eagle = full_pair()
    eagle.denials = [denial(phase, 12, {0: 100 - i}) for i in range(30) for phase in ("draft", "verify")]
    for i, one in enumerate(eagle.denials):
        one.frames[0].line, one.frames[0].text = 100 + i // 2, f"condition_{i // 2} <= self.max_bs"
    whole = material(base, eagle)
    assert whole.comparison is not None
    rows, _ = denials.refused(whole)
    for row in rows:
        assert row.leaf is not None
        told = [one for one in whole.comparison.findings if row.is_in(one)]
        assert len(told) == 1
        assert row.leaf.text in told[0].evidence[0].fact
    text = rendered(base, eagle)
    caption = text[text.index('id="cycle"') :]
    caption = caption[: caption.index("<details>")]
    assert caption.count('href="#finding-') == page.MOST_LINKS
    assert 'more under <a href="#findings">what to do</a>' in caption


def test_of_two_first_values_the_lower_stands_below() -> None:
    for captures in (pair(), full_pair()):  # EAGLE loses, EAGLE wins
        placed = texts(figures(*captures)["batches"].wide)
        row = compare(*captures).rows[0]
        assert row.break_even_length is not None
        assert row.candidate.accept_length is not None
        needed, reached = (
            placed[interval(row.break_even_length).split()[0]],
            placed[interval(row.candidate.accept_length).split()[0]],
        )
        assert (needed["y"] < reached["y"]) == (row.outcome == "worse")
        assert abs(needed["y"] - reached["y"]) > 14


def outside(picture: str, width: float) -> list[str]:
    """The texts that stick out of a picture, by what a character takes."""
    out = []
    for one in shapes(picture):
        if one.tag == "text":
            length, anchor = len(one.words) * (CHARACTER - 0.4), one.attributes["text-anchor"]
            start = one["x"] - {"start": 0.0, "middle": length / 2, "end": length}[anchor]
            if start < -1 or start + length > width + 1:
                out.append(one.words)
    return out


@pytest.mark.parametrize("largest", [1, 8, 12])
@pytest.mark.parametrize("name", ["eagle", "eagle3-topk8-steps5-draft32-fa3-nocustomallreduce-h200x8"])
def test_no_label_sticks_out(largest: int, name: str) -> None:
    base, eagle = full_pair()
    eagle.arm = name
    for one in (base, eagle):
        for graphs in one.server.captured.values():
            graphs.sizes = [largest]
    for made in figures(base, eagle).values():
        assert outside(made.wide, WIDE) == []
        assert outside(made.narrow, NARROW) == []


def several_starts(starts: int) -> Capture:
    eagle = capture("eagle", {1: cycle(5.0)})
    for i in range(1, starts):
        window = eagle.windows[0].model_copy(deep=True)
        window.repeat, window.id, window.started = i, f"c1-r{i}", START + 700 * i
        for stats in window.ranks[0].batches:
            stats.blocks.t = [t + 700 * i for t in stats.blocks.t]
        eagle.windows.append(window)
    return eagle


def test_the_axis_title_of_several_starts_fits_a_phone() -> None:
    one = figures(several_starts(3))["timeline0"]
    assert "seconds, pauses between starts left out" in texts(one.narrow)
    assert outside(one.narrow, NARROW) == []


@pytest.mark.parametrize(("clocks", "labels"), [((1125.0, 1125.0), ["1125"]), ((1975.0, 1980.0), ["1980", "1975"])])
def test_clocks_are_labelled_where_they_are_lowest_and_highest(clocks: tuple[float, ...], labels: list[str]) -> None:
    device = gpu(0)
    device.series.sm_mhz = [clocks[i % 2] for i in range(20)]
    placed = texts(figures(capture("eagle", {1: cycle(5.0)}, gpus=[device]))["timeline0"].wide)
    found = sorted((one["y"], words) for words, one in placed.items() if words in labels)
    assert [words for _, words in found] == labels
    assert all(second[0] - first[0] >= 12 for first, second in pairwise(found))


def test_the_gpus_state_shows_wherever_the_pointer_rests() -> None:
    hovers = [one for one in shapes(figures(*full_pair())["timeline0"].wide) if "hover" in one.looks]
    clock = next(one for one in shapes(figures(*full_pair())["timeline0"].wide) if {"line1"} <= one.looks)
    lowest = max(float(y) for _, y in re.findall(r"[ML](\S+) ([\d.]+)", clock.attributes["d"]))
    assert all(one["y"] + one["height"] > lowest for one in hovers)
    assert "1980 MHz, 420 W a GPU" in hovers[0].words
    assert any("1455 to 1465 MHz" in one.words and "slowed by software power cap" in one.words for one in hovers)


def test_the_legend_shows_lines_and_marks_as_they_are_drawn() -> None:
    for name in ("speedup", "batches"):
        one = figures(*full_pair())[name]
        for i in range(3):
            drawn = [shape for shape in shapes(one.wide) if {"mark", f"key{i}"} <= shape.looks]
            [sample] = [sample for sample, _ in one.keys if f'class="line line{i} key{i}"' in sample]
            assert f'd="{drawn[0].attributes["d"]}"' in sample
    assert "double" not in rendered(*full_pair())


def test_labels_have_the_digits_of_the_text() -> None:
    base, eagle = noisy()
    rows = compare(base, eagle).rows
    drawn = texts(figures(base, eagle)["speedup"].wide)
    for row in rows:
        assert f"batch {row.batch_size}: ×{interval(row.speedup).split()[0]}" in drawn
    assert f"τ* {interval(rows[0].break_even_length).split()[0]}" in drawn


def test_text_is_drawn_above_all_lines() -> None:
    for one in figures(*full_pair()).values():
        tags = [shape.tag == "text" for shape in shapes(one.wide)]
        assert tags == sorted(tags)


def test_the_captured_line_leaves_the_numbers_of_the_axis_alone() -> None:
    limits = [one for one in shapes(figures(*full_pair())["batches"].wide) if "limit" in one.looks]
    ticks = texts(figures(*full_pair())["batches"].wide)["8"]["y"]
    assert len(limits) == 4
    assert not any(min(one["y1"], one["y2"]) < ticks - 5 < max(one["y1"], one["y2"]) for one in limits)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_step_that_ranks_take_together_is_one_step(groups: int) -> None:
    eagle = capture("eagle", {1: cycle(5.0), 4: cycle(6.0)}, tp=4)
    for rank in eagle.instrumentation.ranks:
        rank.dp = rank.rank * groups // 4
    eagle.windows[1].ranks = eagle.windows[1].ranks[:3]  # one was lost
    once = step_series.counted_once(step_series.from_blocks(eagle), eagle)
    pooled = sum(cost.steps for cost in measure(eagle).batches.values())
    assert sum(bucket.steps for _, bucket in once.buckets) == pytest.approx(pooled)
    assert figures(eagle)["timeline0"].says.startswith(f"{pooled} steps,")
    before = step_series.from_blocks(eagle).buckets
    assert [one.mean_ms for _, one in once.buckets] == pytest.approx([one.mean_ms for _, one in before])


def test_every_finding_is_linked_from_a_figure() -> None:
    folder = Path(findings.__file__).parent
    source = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    codes = set(re.findall(r'\bcode=f?"([a-z_]+)', source)) | set(
        re.findall(r'^CODE = "([a-z_]+)"', source, re.MULTILINE)
    )
    linked = tuple(code for one in figures(*full_pair()).values() for code in one.findings)
    assert len(codes) > 20
    assert {code for code in codes if not code.startswith(linked)} == set()


def test_bars_are_explained_only_where_there_are_bars() -> None:
    few: dict[str, Cost] = {"baseline": decode(12.0, blocks=3), "eagle": cycle(15.0, blocks=3)}
    arms = [capture(arm, {1: cost}, seed=i) for i, (arm, cost) in enumerate(few.items())]
    for one in arms:
        one.windows[0].requests = []
    made = figures(*arms)
    assert not any("whisker" in one.wide or "95 %" in one.measured for one in made.values())
    made = figures(*pair())
    assert "95 %" in made["speedup"].measured
    assert "95 %" in made["batches"].measured


def test_the_interval_that_the_outcome_rests_on_is_drawn() -> None:
    whole = material(*pair())
    assert whole.comparison is not None
    [row] = whole.comparison.rows
    row = replace(row, speedup=Estimate(row.speedup.value), seen=Estimate(0.7, (0.6, 0.8)))
    one = speedup.figure(Material(whole.candidate, whole.baseline, replace(whole.comparison, rows=(row,))))
    assert one is not None
    axis = Scale(0.0, 1.25, 272.0, 34.0)
    upright = [
        (shape["y1"], shape["y2"])
        for shape in shapes(one.wide)
        if "whisker" in shape.looks and shape["x1"] == shape["x2"]
    ]
    assert upright == [pytest.approx((axis(0.6), axis(0.8)), abs=0.01)]
    assert "batch 1: ×0.70" in texts(one.wide)
    assert "its requests saw 0.70 [0.60, 0.80]" in one.says
    assert "resampled by request" in one.measured
    assert "resampled by request" not in figures(*pair())["speedup"].measured


def test_real_captures_label_nothing_outside() -> None:
    for one in figures(*recordings.captures()).values():
        assert outside(one.wide, WIDE) == []
        assert outside(one.narrow, NARROW) == []

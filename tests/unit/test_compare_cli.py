"""`compare` and `breakeven` as a user meets them: exit codes, JSON keys, widths, hostile captures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eaglediag.analysis.comparison import compare
from eaglediag.analysis.figures import number
from eaglediag.capture import store
from eaglediag.capture.model import Capture
from tests.factories import capture, cycle, decode, denial, gpu, pair
from tests.invoke import eaglediag

SWEEP = Path(__file__).parents[2] / "benchmarks" / "results" / "h200-2026-11-29" / "sweep"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return written(tmp_path, *pair())


def written(folder: Path, baseline: Capture, eagle: Capture) -> tuple[Path, Path]:
    paths = folder / "baseline.json", folder / "eagle.json"
    for path, one in zip(paths, (baseline, eagle), strict=True):
        store.write(one, path)
    return paths


def test_the_verdict_comes_first(files: tuple[Path, Path]) -> None:
    ran = eaglediag("compare", *files)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("EAGLE-3 is 22 % slower at batch 1 because a cycle costs 2.57 decode steps")


@pytest.mark.parametrize("width", [80, 120, 200])
def test_reports_fit_the_terminal(width: int, tmp_path: Path) -> None:
    sizes = {1: (4.2, 9.2), 4: (4.6, 5.9), 12: (150.1, 165.2)}
    baseline = capture("baseline", {size: decode(one) for size, (one, _) in sizes.items()}, seed=1)
    eagle = capture(
        "eagle", {size: cycle(one, graph={"verify": False}) for size, (_, one) in sizes.items()}, denials=[denial()]
    )
    paths = written(tmp_path, baseline, eagle)
    for ran in (
        eaglediag("compare", *paths, width=width),
        eaglediag("breakeven", paths[1], "--baseline", paths[0], width=width),
        # figures with many digits, because they were measured well
        eaglediag("compare", SWEEP / "baseline.json", SWEEP / "sweep.json", "--verbose", width=width),
        eaglediag("breakeven", SWEEP / "sweep.json", "--baseline", SWEEP / "baseline.json", width=width),
    ):
        assert ran.code == 0
        assert max(map(len, ran.out.splitlines())) <= width
        assert "…" not in ran.out
        assert "\x1b" not in ran.out


def test_compare_json(files: tuple[Path, Path]) -> None:
    ran = eaglediag("compare", *files, "--json")
    document = json.loads(ran.out)
    assert document["outcome"] == "worse"
    row = document["by_batch_size"][0]
    low, high = row["speedup"]["interval"]
    assert low < row["speedup"]["value"] < high
    assert row["candidate"]["gap_ms"] + sum(row["candidate"]["parts_ms"].values()) == pytest.approx(
        row["candidate"]["period_ms"]["value"]
    )


def test_compare_markdown(files: tuple[Path, Path], tmp_path: Path) -> None:
    eaglediag("compare", *files, "--markdown", tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert text.startswith("**EAGLE-3 is 22 % slower")
    assert "| batch | steps |" in text
    assert eaglediag("compare", *files, "--markdown", "-").out == text
    assert eaglediag("compare", *files, "--markdown", tmp_path / "no" / "report.md").code == 2


def test_inconclusive_ends_with_3(tmp_path: Path) -> None:
    few = capture("baseline", {1: decode(5, blocks=3)}, seed=1), capture("eagle", {1: cycle(6, blocks=3)}, seed=2)
    for one in few:
        one.windows[0].requests = []
    paths = written(tmp_path, *few)
    ran = eaglediag("compare", *paths)
    assert ran.code == 3
    assert "inconclusive" in ran.out
    assert eaglediag("breakeven", paths[1], "--baseline", paths[0]).code == 3


def test_breakeven_says_why_it_ends_with_3(tmp_path: Path) -> None:
    baseline, eagle = pair()
    eagle.hosts[0].gpus = [gpu(sm_mhz=1410.0)]
    paths = written(tmp_path, baseline, eagle)
    ran = eaglediag("breakeven", paths[1], "--baseline", paths[0])
    assert ran.code == 3
    assert ran.out.startswith("Not comparable: GPU clock, median (1980 of 1980 MHz against 1410 of 1980 MHz).\n")
    assert "forbids a verdict: GPU clock" in ran.out
    document = json.loads(eaglediag("breakeven", paths[1], "--baseline", paths[0], "--json").out)
    assert (document["outcome"], document["comparability"]["grade"]) == ("not_comparable", "not_comparable")


def test_breakeven_says_that_the_accept_length_was_set(tmp_path: Path) -> None:
    baseline, eagle = pair()
    assert eagle.server.speculation is not None
    eagle.server.speculation.simulated_accept_length = 2.0
    paths = written(tmp_path, baseline, eagle)
    ran = eaglediag("breakeven", paths[1], "--baseline", paths[0])
    assert "the accept length is pinned to 2.00, not the draft's own" in ran.out
    assert "2.00 is set" in " ".join(ran.out.split())
    assert "is reached" not in ran.out


def test_breakeven_gives_no_digits_that_the_interval_does_not(tmp_path: Path) -> None:
    noisy = (capture("baseline", {1: decode(5, sd=0.6)}, seed=1), capture("eagle", {1: cycle(9, sd=0.6)}, seed=2))
    paths = written(tmp_path, *noisy)
    ran = eaglediag("breakeven", paths[1], "--baseline", paths[0])
    [answer] = [one.break_even for one in compare(*noisy).rows]
    assert answer is not None
    assert answer.break_even_interval is not None
    low, high = answer.break_even_interval
    said = number(answer.break_even_accept_length, (high - low) / 2)
    assert len(said) < len(number(answer.break_even_accept_length))
    assert f"an accept length of {said}," in " ".join(ran.out.split())


def test_a_file_that_is_no_capture(tmp_path: Path, files: tuple[Path, Path]) -> None:
    (tmp_path / "bad.json").write_text("{", encoding="utf-8")
    for other in (tmp_path / "bad.json", tmp_path / "missing.json"):
        ran = eaglediag("compare", files[0], other)
        assert ran.code == 2
        assert ran.err.count("\n") == 1
        assert ran.err.startswith("eaglediag: ")


def test_swapped_arms(files: tuple[Path, Path]) -> None:
    ran = eaglediag("compare", files[1], files[0])
    assert ran.code == 2
    assert "give the baseline first" in ran.err


def test_hostile_text_is_shown_not_obeyed(tmp_path: Path) -> None:
    baseline, eagle = pair()
    eagle.arm = "[bold]\x1b[2Jea\u202egle|<script>"
    eagle.denials = [denial()]
    paths = written(tmp_path, baseline, eagle)
    for ran in (eaglediag("compare", *paths), eaglediag("compare", *paths, "--markdown", "-")):
        assert ran.code == 0
        assert "\x1b" not in ran.out
        assert "\u202e" not in ran.out
    assert "<script>" not in eaglediag("compare", *paths, "--markdown", "-").out.replace("\\<script\\>", "")
    assert "[bold]" in eaglediag("compare", *paths, width=200).out


def test_breakeven_from_times() -> None:
    given = ("--decode-ms", 12, "--verify-ms", 29, "--accept-length", 2.0, "--draft-tokens", 2)
    answer = json.loads(eaglediag("breakeven", *given, "--json").out)
    assert answer["break_even_accept_length"] == pytest.approx(29 / 12)
    assert answer["speedup"] == pytest.approx(24 / 29)
    assert answer["max_accept_length"] == 3
    assert answer["required_acceptance_rate"] == pytest.approx(0.7910, abs=1e-4)
    assert (answer["verdict"], answer["accept_length"]) == ("lose", 2.0)
    assert answer["missing"] == ["draft", "draft-extend", "host"]
    shown = eaglediag("breakeven", *given)
    assert "The draft's, the draft-extend's and the host's time are not in this: at least 2.42." in shown.out
    assert shown.code == 0


def test_breakeven_with_all_parts_is_no_bound() -> None:
    parts = ("--draft-ms", 2, "--extend-ms", 1, "--host-ms", 1)
    ran = eaglediag(
        "breakeven", "--decode-ms", 12, "--verify-ms", 29, *parts, "--accept-length", 2.0, "--draft-tokens", 2
    )
    assert "at least" not in ran.out
    assert "2.75" in ran.out


def test_a_win_that_hangs_on_what_was_left_out() -> None:
    ran = eaglediag("breakeven", "--decode-ms", 12, "--verify-ms", 20, "--accept-length", 2.0)
    assert "only while the draft, the draft-extend and the host take less than 4.00 ms together" in ran.out


def test_breakeven_from_throughputs() -> None:
    given = ("--base-throughput", 57.0, "--spec-throughput", 40.6, "--accept-length", 1.87, "--draft-tokens", 1)
    answer = json.loads(eaglediag("breakeven", *given, "--json").out)
    assert answer["verdict"] == "impossible"
    assert answer["break_even_accept_length"] == pytest.approx(2.6254, abs=5e-5)
    assert answer["required_acceptance_rate"] is None
    assert eaglediag("breakeven", *given).out.startswith("No accept length can win")


def test_breakeven_from_both_names_what_is_unexplained() -> None:
    times = ("--decode-ms", 12, "--verify-ms", 29)
    rates = ("--base-throughput", 82.7, "--spec-throughput", 60, "--accept-length", 2.0, "--draft-tokens", 2)
    ran = eaglediag("breakeven", *times, *rates)
    assert "Unexplained: 4.33 ms of the 33.3 ms of a cycle are not in the 29.0 ms of the parts given." in ran.out
    document = json.loads(eaglediag("breakeven", *times, *rates, "--json").out)
    assert document["unexplained_ms"] == pytest.approx(4.33, abs=0.01)


def test_an_inconsistent_pair_ends_with_3() -> None:
    ran = eaglediag("breakeven", "--decode-ms", 12, "--verify-ms", 9, "--accept-length", 2.0)
    assert ran.code == 3
    assert "inconsistent" in ran.out


def test_breakeven_from_captures(files: tuple[Path, Path]) -> None:
    ran = eaglediag("breakeven", files[1], "--baseline", files[0], "--json")
    answer = json.loads(ran.out)
    assert ran.code == 0
    assert answer["batch_size"] == 1
    low, high = answer["break_even_interval"]
    assert low < answer["break_even_accept_length"] < high
    assert answer["by_batch_size"][0]["verdict"] == answer["verdict"] == "lose"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing given"),
        (("--decode-ms", 12), "--verify-ms not given"),
        (("--draft-ms", 12), "--decode-ms and --verify-ms not given"),
        (("--base-throughput", 12, "--spec-throughput", 12), "--accept-length not given"),
        (("--decode-ms", 12, "--verify-ms", 29, "--base-throughput", 3), "--spec-throughput and --accept-length not"),
        (("eagle.json", "--decode-ms", 12), "times and captures given"),
        (("eagle.json",), "--baseline not given"),
        (("--decode-ms", -1, "--verify-ms", 29), "must be more than 0 ms"),
    ],
)
def test_breakeven_usage(arguments: tuple[object, ...], message: str) -> None:
    ran = eaglediag("breakeven", *arguments)
    assert ran.code == 2
    assert message in ran.err


def test_one_screen_unless_everything_is_asked_for(files: tuple[Path, Path]) -> None:
    short, whole = eaglediag("compare", *files), eaglediag("compare", *files, "--verbose")
    assert "What the clients saw" not in short.out
    assert "--verbose shows" in short.out
    assert len(short.out.splitlines()) < 60
    assert "What the clients saw" in whole.out
    assert whole.out.count("refuted by") > short.out.count("refuted by")

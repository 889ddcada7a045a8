"""From an SGLang log to a capture: what is measured, what is left out, what is said not to be known."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from eaglediag.analysis.comparison import compare
from eaglediag.analysis.denials import refusals
from eaglediag.analysis.launch_lint import lint
from eaglediag.capture import store
from eaglediag.capture.model import BatchStats, Capture
from eaglediag.errors import UsageError
from eaglediag.probes.evidence.assemble import assemble, read
from eaglediag.probes.evidence.decode_series import MAX_BLOCKS, DecodeSeries, accept_rate_counts_bonus
from eaglediag.probes.evidence.sglang_import import SglangLog
from tests.invoke import eaglediag
from tests.sglang_lines import EAGLE3, codes, decode, imported, prefill, server_args, steady

H200 = Path(__file__).parents[1] / "data" / "h200"


def batch(capture: Capture, size: int) -> BatchStats:
    (found,) = [b for w in capture.windows for r in w.ranks for b in r.batches if b.batch_size == size]
    return found


def h200(name: str) -> Capture:
    return assemble(read([H200 / name]), name)


# The recordings.


def test_h200_baseline() -> None:
    capture = h200("h200x1-base.log.gz")
    assert [window.concurrency for window in capture.windows] == [1, 4, 12]
    # CUDA events beside this very run: 4.489 ms of GPU time a step.
    assert batch(capture, 1).period_ms.mean == pytest.approx(4.54, abs=0.01)
    assert batch(capture, 1).kind == "decode"
    assert batch(capture, 1).count == 9 * 40
    assert capture.server.speculation is None
    assert capture.server.captured["decode"].sizes == [1, 2, 4, 8]
    assert capture.server.captured["extend"].unit == "tokens"
    assert capture.server.ready_s == 106


def test_h200_eagle() -> None:
    capture = h200("h200x1-eagle.log.gz")
    cycle = batch(capture, 1)
    assert (cycle.kind, cycle.period_ms.method) == ("cycle", "log_line")
    assert cycle.period_ms.mean == pytest.approx(6.02, abs=0.01)
    assert cycle.accept is not None
    assert (cycle.accept.passes, cycle.accept.tokens, cycle.accept.method) == (160, 320, "log_line")
    assert sum(cycle.blocks.passes) == 160
    assert {phase: graphs.sizes[-1] for phase, graphs in capture.server.captured.items()} == {
        "verify": 8,
        "draft": 8,
        "draft_extend": 8,
    }
    assert capture.server.captured["verify"].tokens_per_request == 3
    assert "server_remark" in codes(capture)


def test_h200_eager_batch_is_a_denial_that_claims_no_more_than_the_log_shows() -> None:
    capture = h200("h200x1-eagle.log.gz")
    (denial,) = capture.denials
    assert (denial.phase, denial.batch_size, denial.explained) == ("verify", 12, False)
    assert denial.reason == "batch size 12 is above the largest captured size 8"
    assert not denial.frames


def test_h200_eager_batch_is_counted_in_lines_not_in_passes() -> None:
    """A line speaks of forty steps, and its flag is the last one's."""
    base, eagle = h200("h200x1-base.log.gz"), h200("h200x1-eagle.log.gz")
    (refusal,) = refusals(eagle)
    assert refusal.times == "seen in 4 of 4 log lines"
    (finding,) = [one for one in compare(base, eagle).findings if one.code == "graph_denied_verify"]
    assert [(one.fact.partition(", ")[2], one.source) for one in finding.evidence[1:]] == [
        ("batch 12, seen in 9 of 9 log lines", "the server's log"),
        ("batch 12, seen in 4 of 4 log lines", "the server's log"),
    ]


def test_h200_eager_batch_gets_the_advice_that_lint_gives() -> None:
    eagle = h200("h200x1-eagle.log.gz")
    (refusal,) = refusals(eagle)
    assert refusal.advice is not None
    command = "python -m sglang.launch_server --model-path m --cuda-graph-max-bs-decode 8"
    (finding,) = lint(command, [12])
    assert refusal.advice.flag == finding.advice == "--cuda-graph-max-bs-decode 12"
    assert "extend 59" not in refusal.advice.cost  # prefill's graphs stay as they are
    del eagle.server.arguments["cuda_graph_max_bs_decode"]
    eagle.server.arguments["cuda_graph_max_bs"] = 8
    (older,) = refusals(eagle)
    assert older.advice is not None
    assert older.advice.flag == "--cuda-graph-max-bs 12"


def test_a_size_that_was_captured_gets_no_advice_from_its_size() -> None:
    eagle = h200("h200x1-eagle.log.gz")
    eagle.server.captured["verify"].sizes = [1, 2, 16]
    (refusal,) = refusals(eagle)
    assert refusal.advice is None


def test_h200_arms_compare() -> None:
    comparison = compare(h200("h200x1-base.log.gz"), h200("h200x1-eagle.log.gz"))
    row = comparison.rows[0]
    assert row.break_even_length is not None
    assert row.break_even_length.value == pytest.approx(6.02 / 4.54, abs=0.01)
    assert row.speedup.value == pytest.approx(2.0 * 4.54 / 6.02, abs=0.01)


def test_h200_tensor_parallel_ranks_are_read_apart() -> None:
    capture = h200("h200x2-eagle-nccl.log.gz")
    assert capture.server.tp == 2
    assert [(rank.rank, rank.tp) for rank in capture.instrumentation.ranks] == [(0, 0)]
    assert batch(capture, 1).period_ms.mean == pytest.approx(7.88, abs=0.01)


def test_h200_pages_agree_with_the_log() -> None:
    names = ("h200x1-metrics-run.log.gz", "metrics.txt.gz", "server_info.json.gz", "torch-profile-eager-bs12.json.gz")
    capture = assemble(read([H200 / name for name in names]), "m")
    assert "contradiction" not in codes(capture)
    assert capture.server.release == "0.5.14"
    assert {profile.phase for profile in capture.profiles} == {"draft", "verify", "draft_extend"}
    assert "lifetime_accept_length" in codes(capture)
    assert "eager_passes" in codes(capture)


# The traps.


def test_first_line_after_idle_is_left_out(tmp_path: Path) -> None:
    capture = imported(tmp_path, server_args() + steady(10, 1, 5.0, lines=3) + steady(900, 1, 5.0, lines=3))
    assert batch(capture, 1).count == 6 * 40
    assert batch(capture, 1).period_ms.max == pytest.approx(5.0, abs=0.01)
    (problem,) = [problem for problem in capture.problems if problem.code == "first_lines_left_out"]
    assert "2 of 8" in problem.message


def test_idle_time_shows_in_decode_lines_alone(tmp_path: Path) -> None:
    """Somebody pasted only the decode lines: two loads, an hour between them, the second with longer prompts."""
    lines = [decode(i, 1, 100 + 40 * i, 200.0) for i in range(6)]
    lines += [decode(3600 + i, 1, 900 + 40 * i, 200.0 if i else 0.01) for i in range(6)]
    capture = imported(tmp_path, "".join(lines))
    assert batch(capture, 1).count == 10 * 40
    assert batch(capture, 1).period_ms.max == pytest.approx(5.0)


def test_one_decode_line_alone_is_no_measurement(tmp_path: Path) -> None:
    capture = imported(tmp_path, decode(0, 1, 100, 200.0))
    assert not capture.windows
    assert {"no_usable_lines", "nothing_measured"} <= set(codes(capture))


def test_a_line_after_another_batch_size_is_left_out(tmp_path: Path) -> None:
    lines = steady(10, 4, 5.0, lines=3) + decode(20, 3, 700, 200.0) + decode(21, 3, 820, 600.0)
    capture = imported(tmp_path, server_args() + lines)
    assert batch(capture, 3).count == 40
    assert batch(capture, 3).period_ms.mean == pytest.approx(5.0)


def test_steady_lines_are_preferred_to_those_with_prefills_inside(tmp_path: Path) -> None:
    text = server_args() + steady(10, 2, 5.0, lines=3) + prefill(20, 1) + decode(21, 2, 500, 100.0)
    assert batch(imported(tmp_path, text), 2).period_ms.max == pytest.approx(5.0, abs=0.01)
    text = server_args() + steady(10, 2, 5.0, lines=0)
    text += "".join(prefill(20 + i, 1) + decode(20 + i, 2, 500, 100.0) for i in range(3))
    capture = imported(tmp_path, text)
    assert batch(capture, 2).period_ms.mean == pytest.approx(20.0)
    assert "prefill_in_period" in codes(capture)


def test_steps_of_a_line_come_from_the_cache_when_the_arguments_are_cut_off(tmp_path: Path) -> None:
    capture = imported(tmp_path, steady(10, 2, 5.0, 2.5, lines=4))
    assert batch(capture, 2).count == 4 * 40
    assert "interval_inferred" in codes(capture)


@pytest.mark.parametrize(
    ("length", "rate", "width", "with_bonus"),
    [(2.17, 0.54, 4, True), (2.17, 0.39, 4, False), (2.0, 0.5, 3, False), (2.0, 0.67, 3, True), (4.0, 1.0, 4, None)],
)
def test_the_two_meanings_of_accept_rate(length: float, rate: float, width: int, with_bonus: bool | None) -> None:
    assert accept_rate_counts_bonus(length, rate, width) is with_bonus


def test_accept_rate_with_the_bonus_token_is_said_and_not_used(tmp_path: Path) -> None:
    def text(rate: float) -> str:
        lines = [decode(10 + i, 1, 100 + 87 * i, 200.0, 2.17, accept_rate=rate) for i in range(4)]
        return server_args(**EAGLE3) + prefill(9, 0) + "".join(lines)

    older, newer = imported(tmp_path, text(0.54)), imported(tmp_path, text(0.39))
    assert "accept_rate_counts_bonus" in codes(older)
    assert "accept_rate_counts_bonus" not in codes(newer)
    assert batch(older, 1).accept == batch(newer, 1).accept
    assert "accept_rate_inconsistent" in codes(imported(tmp_path, text(0.93)))


def test_the_graph_flag_speaks_of_verify_only(tmp_path: Path) -> None:
    capture = imported(tmp_path, server_args(**EAGLE3) + steady(10, 1, 6.0, 2.0))
    (phases,) = [rank.phases for window in capture.windows for rank in window.ranks]
    assert [(one.phase, one.graph) for one in phases] == [("verify", True)]
    (problem,) = [problem for problem in capture.problems if problem.code == "unknown_draft_graphs"]
    assert "eaglediag probe --host HOST --launch" in problem.advice


def test_a_plain_server_has_no_draft_to_know_of(tmp_path: Path) -> None:
    assert "unknown_draft_graphs" not in codes(imported(tmp_path, server_args() + steady(10, 1, 6.0)))


def test_phases_that_were_never_captured_are_named(tmp_path: Path) -> None:
    start = server_args(**EAGLE3, device="cuda")
    start += (
        "[2026-01-02 12:00:01] Capture target verify CUDA graph begin. backend=full, num_tokens_per_req=4, bs=[1, 2]\n"
    )
    start += (
        "[2026-01-02 12:00:02] Capture draft decode CUDA graph begin. backend=full, num_tokens_per_req=1, bs=[1, 2]\n"
    )
    start += "[2026-01-02 12:00:09] The server is fired up and ready to roll!\n"
    capture = imported(tmp_path, start + steady(10, 1, 6.0, 2.0))
    never = [problem.message for problem in capture.problems if problem.code == "never_captured"]
    assert len(never) == 1
    assert "draft extend" in never[0]


def test_target_graphs_of_an_older_speculating_server_are_verify_graphs(tmp_path: Path) -> None:
    start = (
        server_args(**EAGLE3) + "[2026-01-02 12:00:01] Capture cuda graph begin. This can take up to several minutes.\n"
    )
    start += "[2026-01-02 12:00:01] Capture cuda graph bs [1, 2, 4]\n"
    capture = imported(tmp_path, start + steady(10, 8, 6.0, 2.0, graph=False))
    assert capture.server.captured["verify"].sizes == [1, 2, 4]
    assert capture.denials[0].reason == "batch size 8 is above the largest captured size 4"


def test_a_pinned_accept_length_is_flagged(tmp_path: Path) -> None:
    assert "accept_length_pinned" in codes(imported(tmp_path, server_args(**EAGLE3) + steady(10, 1, 6.0, 2.0)))


def test_an_accept_length_beyond_the_draft_is_flagged(tmp_path: Path) -> None:
    assert "accept_length_impossible" in codes(imported(tmp_path, server_args(**EAGLE3) + steady(10, 1, 6.0, 4.7)))


def test_lossy_acceptance_is_flagged(tmp_path: Path) -> None:
    arguments = server_args(**EAGLE3, speculative_accept_threshold_single=0.5)
    assert "lossy_acceptance" in codes(imported(tmp_path, arguments + steady(10, 1, 6.0, 2.0)))


# What wraps a log.


def test_data_parallel_ranks_stay_apart(tmp_path: Path) -> None:
    one, two = steady(10, 1, 5.0, rank=" DP0 TP0"), steady(10, 1, 7.0, rank=" DP1 TP1")
    mixed = "".join(a + "\n" + b + "\n" for a, b in zip(one.splitlines(), two.splitlines(), strict=True))
    capture = imported(tmp_path, server_args(dp_size=2, tp_size=2) + mixed)
    (window,) = capture.windows
    assert [round(rank.batches[0].period_ms.mean, 2) for rank in window.ranks] == [5.0, 7.0]
    assert window.concurrency is None
    assert [(rank.rank, rank.dp, rank.tp) for rank in capture.instrumentation.ranks] == [(0, 0, 0), (1, 1, 1)]


def test_several_containers_in_one_log_are_not_mixed(tmp_path: Path) -> None:
    def wrapped(name: str, text: str) -> list[str]:
        return [f"{name}  | {line}" for line in text.splitlines()]

    one, two = wrapped("llm-1", steady(10, 1, 5.0)), wrapped("llm-2", steady(10, 1, 9.0, lines=3))
    text = "\n".join(line for pair in zip(one, [*two, *[""] * 5], strict=True) for line in pair)
    capture = imported(tmp_path, text)
    assert batch(capture, 1).period_ms.mean == pytest.approx(5.0, abs=0.01)
    assert "several_servers" in codes(capture)


def test_rotated_and_gzipped_parts_are_read_in_the_order_of_their_times(tmp_path: Path) -> None:
    whole = (server_args() + steady(10, 1, 5.0)).splitlines(keepends=True)
    new, old = tmp_path / "server.log", tmp_path / "server.log.1.gz"
    new.write_text("".join(whole[6:]))
    with gzip.open(old, "wt") as out:
        out.write("".join(whole[:6]))
    capture = assemble(read([new, old]), "arm")
    assert batch(capture, 1).count == 8 * 40


def test_a_gzip_that_is_cut_off_yields_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "server.log.gz"
    data = gzip.compress((server_args() + "".join(steady(60 * i, 1, 5.0) for i in range(500))).encode())
    path.write_bytes(data[: len(data) // 2])
    assert batch(assemble(read([path]), "arm"), 1).count > 40


def test_a_restart_with_other_arguments_begins_a_new_arm(tmp_path: Path) -> None:
    text = server_args() + steady(10, 1, 5.0) + server_args(1000, **EAGLE3) + steady(1010, 1, 8.0, 2.5)
    capture = imported(tmp_path, text)
    assert batch(capture, 1).kind == "cycle"
    assert batch(capture, 1).period_ms.mean == pytest.approx(8.0, abs=0.01)
    (problem,) = [problem for problem in capture.problems if problem.code == "several_launches"]
    assert problem.message == (
        "the log holds 2 launches with different arguments; number 2 is used, the last with decode lines, "
        "started 2026-01-02 12:16:40 with speculative_algorithm=EAGLE3, speculative_eagle_topk=1, "
        "speculative_num_draft_tokens=4 and 1 more of its own"
    )


def test_a_later_launch_that_served_nothing_is_not_the_one_used(tmp_path: Path) -> None:
    text = server_args(tp_size=2) + steady(10, 1, 5.0) + server_args(1000, tp_size=4)
    (problem,) = [one for one in imported(tmp_path, text).problems if one.code == "several_launches"]
    assert "number 1 is used, the last with decode lines, started 2026-01-02 12:00:00 with tp_size=2" in problem.message


def test_a_restart_alike_is_the_same_arm(tmp_path: Path) -> None:
    text = server_args(random_seed=1) + steady(10, 1, 5.0) + server_args(1000, random_seed=2) + steady(1010, 1, 5.0)
    capture = imported(tmp_path, text)
    assert batch(capture, 1).count == 16 * 40
    assert "several_launches" not in codes(capture)


def test_secrets_do_not_reach_the_capture(tmp_path: Path) -> None:
    capture = imported(
        tmp_path, server_args(api_key="sk-very-secret", ssl_keyfile_password="hunter2") + steady(10, 1, 5.0)
    )
    text = capture.model_dump_json()
    assert "sk-very-secret" not in text
    assert "hunter2" not in text


def test_files_of_different_servers_contradict_one_another(tmp_path: Path) -> None:
    info = '{"model_path": "other", "tp_size": 8, "internal_states": [{"avg_spec_accept_length": 3.5}]}'
    arguments = server_args(**EAGLE3, model_path="m", tp_size=1)
    capture = imported(tmp_path, arguments + steady(10, 1, 6.0, 2.0), info, names=["s.log", "i.json"])
    said = [problem.message for problem in capture.problems if problem.code == "contradiction"]
    assert any("the model" in text and "other in i.json" in text for text in said)
    assert any("tensor parallelism" in text for text in said)
    assert any("the accept length" in text and "since the server started" in text for text in said)


# Bounds and errors.


def test_memory_stays_bounded_and_nothing_is_lost() -> None:
    series = DecodeSeries()
    for i in range(20_000):
        series.decode("[2026-01-02 12:00:00] ", 2, 100 * i, 2.0, None, "True", 400.0)
    series.finish()
    lines = series.steady[2]
    blocks = lines.blocks(2, 40, True)
    assert len(blocks.steps) < MAX_BLOCKS
    assert sum(blocks.steps) == 40 * lines.lines
    assert lines.lines >= 20_000 - 2
    assert sum(blocks.tokens) == 2 * sum(blocks.passes)
    assert lines.distribution().p99 == pytest.approx(10.0)


def test_blocks_are_in_order_of_time() -> None:
    log = SglangLog()
    log.feed(server_args() + "".join(steady(60 * i, 1, 5.0 + i / 100) for i in range(50)))
    log.finish()
    (series,) = log.launches[-1].series.values()
    times = series.steady[1].blocks(1, 40, False).t
    assert times == sorted(times)
    assert times[0] > 1.7e9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("nothing of use\n" * 100, "holds nothing that eaglediag can read"),
        ("\0\0\0", "is empty"),
        (
            'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    x\nValueError: no such port: 65589\n',
            "holds no measurement, but ValueError: no such port: 65589; the server did not come up",
        ),
    ],
)
def test_what_is_no_evidence_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        imported(tmp_path, text)


def test_a_missing_file(tmp_path: Path) -> None:
    ran = eaglediag("import", tmp_path / "none.log", "-o", tmp_path / "c.json")
    assert ran.code == 2
    assert "cannot read" in ran.err
    assert "Traceback" not in ran.err


def test_a_capture_is_no_evidence(tmp_path: Path) -> None:
    assert eaglediag("import", H200 / "h200x1-base.log.gz", "-o", tmp_path / "c.json", "-q").code == 0
    ran = eaglediag("import", tmp_path / "c.json", "-o", tmp_path / "d.json")
    assert ran.code == 2
    assert "is a capture already" in ran.err


# The command.


def test_the_command_writes_a_capture_that_the_others_take(tmp_path: Path) -> None:
    ran = eaglediag("import", H200 / "h200x1-eagle.log.gz", "-o", tmp_path / "eagle.json")
    assert ran.code == 0
    assert "batch 1: cycle 6.02 ms over 160 steps, accept length 2.00" in ran.err
    capture = store.read(tmp_path / "eagle.json")
    assert (capture.arm, capture.source.kind, capture.source.files) == ("eagle", "import", ["h200x1-eagle.log.gz"])
    assert capture.instrumentation.route == "none"


def test_unreadable_lines_are_counted_and_shown(tmp_path: Path) -> None:
    (tmp_path / "s.log").write_text(
        server_args() + "[2026-01-02 12:00:05] Decode batch, #running-req: 1\x1b[2J\n" + steady(10, 1, 5.0)
    )
    ran = eaglediag("import", tmp_path / "s.log", "-o", tmp_path / "c.json", "--show-unparsed")
    assert ran.code == 0
    assert "#running-req: 1" in ran.out
    assert "\x1b" not in ran.out + ran.err
    assert store.read(tmp_path / "c.json").source.unparsed_lines == 1

"""Tensor-parallel ranks of the real SGLang on the CPU: collectives, skew, a sweep, a rank that is killed."""

from __future__ import annotations

import os
import signal

import pytest

from eaglediag.capture.model import Capture, RankWindow
from eaglediag.errors import InstrumentationError
from eaglediag.hosts import open_host
from eaglediag.probes.launch import LaunchCommand
from eaglediag.probes.session import Plan, Session
from eaglediag.probes.workload import Load, built_in_prompts
from tests.engine import launch_command, server_port

pytest_plugins = ["tests.engine"]
pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

LAYERS = 8


def probe(extra: list[str], sweep: tuple[float, ...] = ()) -> Capture:
    launch = LaunchCommand.parse(launch_command("eagle", server_port(), extra))
    if sweep:
        launch = launch.with_environment(SGLANG_SIMULATE_ACC_LEN=f"{sweep[0]:g}")
    load = Load(
        built_in_prompts(), concurrency=(1,), requests=4, max_new_tokens=24, endpoint="generate", ignore_eos=True
    )
    plan = Plan(launch, load, "eagle", ready_timeout_s=300.0, overhead_pairs=0, profile_steps=3, sweep=sweep)
    session = Session(plan)
    with open_host("local") as host:
        session.run([host])
    return session.capture()


def per_pass(window: RankWindow) -> dict[tuple[str, str], float]:
    return {(one.phase, one.operation): one.calls_per_step for one in window.collectives}


def test_two_ranks() -> None:
    capture = probe(["--tp-size", "2"])
    assert [rank.refused for rank in capture.instrumentation.ranks] == [[], []]
    window = capture.windows[0]
    first, second = window.ranks
    assert per_pass(first) == per_pass(second)
    # Two all-reduces a layer and one for the embedding; the logits are gathered. The draft has one layer, two passes.
    assert per_pass(first)["verify", "all_reduce"] == 2 * LAYERS + 1
    assert per_pass(first)["verify", "all_gather"] == 1
    assert per_pass(first)["draft", "all_reduce"] == 2 * 3
    assert per_pass(first)["draft", "all_gather"] == 2
    assert per_pass(first)["draft_extend", "all_reduce"] == 3
    assert per_pass(first)["draft_extend", "all_gather"] == 1
    assert {one.backend for one in first.collectives} == {"gloo"}
    assert not any(one.in_graph for one in first.collectives)
    assert first.collectives_counted == ["draft", "draft_extend", "extend", "verify"]
    assert [one.operation for one in first.collectives_outside] == ["broadcast"]
    (skew,) = window.rank_skew
    verifies = sum(phase.count for phase in first.phases if phase.phase == "verify")
    assert verifies - 3 <= skew.skew_ms.count <= verifies
    assert sum(skew.starts_last.values()) == skew.skew_ms.count
    assert [problem.code for problem in capture.problems if problem.code == "profile"] == ["profile"]


def test_one_rank_looks_and_finds_none_and_a_sweep_needs_no_restart() -> None:
    capture = probe([], sweep=(1.0, 3.0))
    assert [(window.id, window.simulated_accept_length) for window in capture.windows] == [
        ("c1-a1", 1.0),
        ("c1-a3", 3.0),
    ]
    for window in capture.windows:
        (rank,) = window.ranks
        assert rank.collectives == []
        assert "verify" in rank.collectives_counted
        assert window.rank_skew == []
        accept = rank.batches[0].accept
        assert accept is not None
        assert accept.tokens / accept.passes == window.simulated_accept_length


def test_a_rank_that_is_killed_is_named_and_what_was_measured_is_kept() -> None:
    launch = LaunchCommand.parse(launch_command("eagle", server_port(), ["--tp-size", "2"]))
    load = Load(
        built_in_prompts(), concurrency=(1,), requests=8, max_new_tokens=48, endpoint="generate", ignore_eos=True
    )
    killed: list[int] = []

    def progress(stage: str, detail: str = "", fraction: float | None = None) -> None:
        if stage == "measuring" and fraction and not killed:
            killed.append(session.ranks[1]["pid"])
            os.kill(killed[0], signal.SIGKILL)

    session = Session(Plan(launch, load, "eagle", ready_timeout_s=300.0, overhead_pairs=0), progress=progress)
    with open_host("local") as host, pytest.raises(InstrumentationError, match=r"^rank 1 \(process \d+ on .*\) ended"):
        session.run([host])
    capture = session.capture()
    assert capture.status == "partial"
    assert not capture.instrumentation.ranks[1].seen
    assert [window.id for window in capture.windows] == ["c1"]
    assert sum(request.error is None for request in capture.windows[0].requests) >= 1
    assert capture.problems[-1].message.startswith("rank 1 ")

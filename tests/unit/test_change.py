"""Between two captures of one kind: what is first to blame, how sure that is, and what is said when nothing moved."""

from __future__ import annotations

from typing import Any

import pytest

from eaglediag.analysis.comparison import compare
from eaglediag.analysis.findings.finding import Finding
from eaglediag.capture.model import Capture
from tests.factories import capture, cycle, decode, gpu


def blamed(old: Capture, new: Capture) -> Finding:
    [finding] = [one for one in compare(old, new).findings if one.code == "first_to_blame"]
    return finding


def slower(**more: Any) -> tuple[Capture, Capture]:
    old, new = (
        capture(name, {1: decode(ms)}, seed=seed, **more) for name, ms, seed in (("old", 12, 1), ("new", 14, 2))
    )
    old.server.commit, new.server.commit = "bba2fc4", "0be30d4"
    return old, new


def test_clocks_come_before_code() -> None:
    old, new = slower()
    new.hosts[0].gpus = [gpu(sm_mhz=1410.0)]
    finding = blamed(old, new)
    assert "first to blame: GPU clock, median" in finding.what
    assert "undo" not in finding.advice
    assert finding.sure == "possible"


def test_without_clocks_on_record_the_time_between_stands_for_them() -> None:
    old, new = slower(gpus=[])
    new.created = old.created + 3 * 3600
    finding = blamed(old, new)
    assert "first to blame: time" in finding.what
    assert "their clocks on record" in finding.advice


def test_nothing_is_likely_while_something_is_not_on_record() -> None:
    assert blamed(*slower()).sure == "likely"
    finding = blamed(*slower(gpus=[]))
    assert "first to blame: sglang commit" in finding.what
    assert finding.sure == "possible"
    assert finding.evidence[-1].fact == "GPUs and their clocks: not on record"


@pytest.mark.parametrize(
    ("name", "values", "what"),
    [
        ("SGLANG_SIMULATE_ACC_LEN", (None, "2.8"), "environment SGLANG_SIMULATE_ACC_LEN"),
        ("--speculative-num-steps", ("2", "5"), "--speculative-num-steps"),
    ],
)
def test_what_sets_the_accept_length_is_blamed_for_it(name: str, values: tuple[str | None, str], what: str) -> None:
    old = capture("old", {1: cycle(29, accept_length=2.0)}, seed=1)
    new = capture("new", {1: cycle(29, accept_length=2.6)}, seed=2)
    new.hosts[0].gpus = [gpu(sm_mhz=1930.0)]  # doubtful, but no clock accepts a token
    for one, value in zip((old, new), values, strict=True):
        if value is not None and name.startswith("--"):
            one.server.command += [name, value]
        elif value is not None:
            one.server.environment[name] = value
    finding = blamed(old, new)
    assert finding.what.startswith("a cycle of new takes ")
    assert (
        f"less than old needs for as many tokens, most of it in accept length; first to blame: {what}" in finding.what
    )


def test_speculation_is_no_difference_where_it_is_what_is_compared() -> None:
    plain, eagle = capture("baseline", {1: decode(12)}, seed=1), capture("eagle", {1: cycle(14)}, seed=2)
    eagle.server.command += ["--speculative-num-steps", "3"]
    eagle.server.environment["SGLANG_SIMULATE_ACC_LEN"] = "2.8"
    assert compare(plain, eagle).comparability.differences == ()


def test_a_file_is_called_as_it_is_written_and_what_did_not_move_is_not_said_to() -> None:
    one = capture("monday/eagle", {1: cycle(14)}, seed=1)
    assert compare(one, one).headline.endswith("at batch 1: a cycle takes 15.96 ms in both.")
    assert compare(one, one).headline.startswith("monday/eagle")

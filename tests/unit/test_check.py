"""`check`: gates, exit codes, policies that cannot be, and the reports that CI reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from junitparser import Error, Failure, JUnitXml, Skipped

from eaglediag.analysis import policy as gates
from eaglediag.analysis.policy import Check, Policy, Status
from eaglediag.capture import store
from eaglediag.capture.model import Capture, Overhead, Problem
from eaglediag.errors import UsageError
from tests.factories import capture, cycle, decode, denial, gpu, pair
from tests.invoke import eaglediag


def winning() -> tuple[Capture, Capture]:
    return pair(verify_ms=14.0, accept_length=2.4)


def ask(policy: Policy, baseline: Capture, eagle: Capture, previous: Capture | None = None) -> Check:
    return gates.check(policy, eagle, baseline, previous)


def status(check: Check, name: str) -> Status:
    [gate] = [gate for gate in check.gates if gate.name.startswith(name)]
    return gate.status


@pytest.mark.parametrize(("least", "expected"), [(1.0, "pass"), (1.8, "inconclusive"), (3.0, "fail")])
def test_minimum_speedup(least: float, expected: str) -> None:
    check = ask(Policy(minimum_speedup=least), *winning())
    assert status(check, "speed-up at batch 1") == expected
    assert check.exit_code == {"pass": 0, "inconclusive": 3, "fail": 1}[expected]


def test_limits_on_break_even_and_accept_length() -> None:
    check = ask(Policy(maximum_break_even=1.5, minimum_accept_length=2.0), *winning())
    assert check.exit_code == 0
    check = ask(Policy(maximum_break_even=1.2, minimum_accept_length=3.0), *winning())
    assert (status(check, "break-even"), status(check, "accept length")) == ("fail", "fail")


@pytest.mark.parametrize(("verify", "expected"), [(14.0, "pass"), (14.7, "inconclusive"), (16.0, "fail")])
def test_only_a_regression_that_the_data_support_fails(verify: float, expected: str) -> None:
    baseline, previous = winning()
    eagle = capture("eagle", {1: cycle(verify, accept_length=2.4)}, seed=7)
    check = ask(Policy(maximum_regression={"verify": 0.05, "draft_extend": 0.5}), baseline, eagle, previous)
    assert status(check, "verify time at batch 1") == expected
    assert status(check, "draft-extend time at batch 1") == "pass"


@pytest.mark.parametrize(("limit", "warned"), [(0.2, False), (0.03, True), (0.0, True)])
def test_a_limit_as_close_as_two_starts_are_to_each_other(limit: float, warned: bool) -> None:
    baseline, previous = winning()
    eagle = capture("eagle", {1: cycle(14.1, accept_length=2.4, sd=0.001)}, seed=7)
    for batch in previous.windows[0].ranks[0].batches:
        batch.blocks.period_ms = [16 * steps for steps in batch.blocks.steps]
    check = ask(Policy(maximum_regression={"step": limit}), baseline, eagle, previous)
    [gate] = [gate for gate in check.gates if gate.name.startswith("step time")]
    assert gate.status == ("fail" if limit == 0.0 else "pass")
    assert ("probe with --repeat 3" in gate.detail) is warned


def test_a_regression_needs_a_previous_capture() -> None:
    with pytest.raises(UsageError, match="--previous"):
        ask(Policy(maximum_regression={"step": 0.05}), *winning())


def test_a_phase_nobody_measured_is_inconclusive() -> None:
    baseline, eagle = winning()
    policy = Policy(maximum_regression={"decode": 0.05}, graphed_phases=("extend",), maximum_overhead=0.01)
    check = ask(policy, baseline, eagle, eagle)
    assert {status(check, name) for name in ("decode time", "prefill graphed", "agent's overhead")} == {"inconclusive"}


def test_graphs_and_denials() -> None:
    baseline = capture("baseline", {1: decode(12)}, seed=1)
    eagle = capture("eagle", {1: cycle(14, graph={"verify": False})}, seed=2, denials=[denial("verify", 1)])
    policy = Policy(graphed_phases=("verify", "draft"), allowed_denials=())
    check = ask(policy, baseline, eagle)
    assert (status(check, "verify graphed"), status(check, "draft graphed")) == ("fail", "pass")
    assert status(check, "denials") == "fail"
    for pattern in ("verify", "*can_run_graph", "cuda_graph_bs <= *"):
        assert status(ask(Policy(allowed_denials=(pattern,)), baseline, eagle), "denials") == "pass"


def test_what_cannot_be_compared_never_passes() -> None:
    baseline, eagle = winning()
    eagle.hosts[0].gpus = [gpu(sm_mhz=1500.0)]
    check = ask(Policy(minimum_speedup=1.0), baseline, eagle)
    assert status(check, "comparable") == "inconclusive"
    assert check.exit_code == 3
    assert ask(Policy(minimum_speedup=1.0, require_comparable=False), baseline, eagle).exit_code == 0


def test_an_older_capture_may_be_of_another_release() -> None:
    baseline, eagle = winning()
    previous = capture("previous", {1: cycle(14.0, accept_length=2.4)}, seed=5, release="0.5.9")
    check = ask(Policy(maximum_regression={"step": 0.1}), baseline, eagle, previous)
    assert status(check, "comparable with the previous") == "pass"


def test_what_cannot_be_compared_is_no_regression() -> None:
    baseline, previous = winning()
    eagle = capture("eagle", {1: cycle(29.0, accept_length=2.4)}, seed=7, gpus=[gpu(sm_mhz=1410.0)])
    slow_baseline = capture("baseline", {1: decode(11.7, gap=0.3)}, seed=1, gpus=[gpu(sm_mhz=1410.0)])
    policy = Policy(maximum_regression={"step": 0.1}, minimum_accept_length=2.0)
    check = ask(policy, slow_baseline, eagle, previous)
    assert status(check, "step time") == "inconclusive"
    assert status(check, "accept length") == "pass"  # it needs no other capture
    assert check.exit_code == 3
    assert ask(replace(policy, require_comparable=False), slow_baseline, eagle, previous).exit_code == 1
    losing = ask(Policy(minimum_speedup=2.0), baseline, eagle)
    assert (status(losing, "speed-up"), losing.exit_code) == ("inconclusive", 3)


def test_an_accept_length_that_was_set_is_no_evidence() -> None:
    baseline, eagle = winning()
    assert eagle.server.speculation is not None
    eagle.server.speculation.simulated_accept_length = 2.4
    policy = Policy(minimum_speedup=1.0, minimum_accept_length=2.0, maximum_break_even=2.0)
    check = ask(policy, baseline, eagle)
    assert [status(check, name) for name in ("speed-up", "accept length", "break-even")] == [
        "inconclusive", "inconclusive", "pass",
    ]  # fmt: skip
    assert "set to 2.40, not reached by the draft" in check.gates[2].detail
    _, eagle = winning()
    eagle.problems.append(Problem(code="accept_length_pinned", message="2.00 in all 300 decode lines"))
    assert status(ask(policy, baseline, eagle), "speed-up") == "inconclusive"


def test_a_cycle_cheaper_than_a_step_is_not_believed() -> None:
    check = ask(Policy(minimum_speedup=1.0, maximum_break_even=2.0), *pair(verify_ms=7.0, accept_length=2.4))
    assert (status(check, "speed-up"), status(check, "break-even")) == ("inconclusive", "inconclusive")
    assert "less time than one decode step" in check.gates[2].detail


def test_prefill_may_run_without_graphs() -> None:
    baseline, eagle = winning()
    eagle.denials = [denial("extend", 1)]
    assert status(ask(Policy(allowed_denials=()), baseline, eagle), "denials") == "pass"


@pytest.mark.parametrize("which", ["baseline", "previous"])
def test_a_partial_capture_beside_it_is_said(which: str) -> None:
    (baseline, eagle), (_, previous) = winning(), winning()
    {"baseline": baseline, "previous": previous}[which].status = "partial"
    [gate] = [one for one in ask(Policy(), baseline, eagle, previous).gates if one.name == "complete capture"]
    assert (gate.status, gate.detail) == ("inconclusive", f"the {which} capture is partial, 1 of 1 ranks")


def test_missing_ranks_and_partial_captures_never_pass() -> None:
    baseline, eagle = winning()
    eagle.instrumentation.ranks_expected = 8
    assert status(ask(Policy(), baseline, eagle), "complete") == "inconclusive"
    baseline, eagle = winning()
    eagle.status = "partial"
    assert status(ask(Policy(), baseline, eagle), "complete") == "inconclusive"


def test_overhead() -> None:
    baseline, eagle = winning()
    eagle.instrumentation.overhead = Overhead(ratio=1.004, interval=(1.001, 1.007))
    assert status(ask(Policy(maximum_overhead=0.01), baseline, eagle), "agent's overhead") == "pass"
    assert status(ask(Policy(maximum_overhead=0.0005), baseline, eagle), "agent's overhead") == "fail"


def test_inconclusive_may_warn_but_is_said() -> None:
    check = ask(Policy(minimum_speedup=1.8, on_inconclusive="warn"), *winning())
    assert check.exit_code == 0
    assert check.headline.startswith("Pass, with a warning: 1 inconclusive")


def test_reading_a_policy() -> None:
    table = {
        "minimum-speedup": 1.05,
        "maximum-regression": {"verify": 0.05, "step": 0.1},
        "graphed-phases": ["verify"],
        "allowed-denials": ["*draft*"],
        "require-comparable": False,
        "batch-sizes": [1],
        "on-inconclusive": "warn",
    }
    policy = gates.read(table, "policy.toml")
    assert policy.minimum_speedup == 1.05
    assert policy.maximum_regression == {"verify": 0.05, "step": 0.1}
    assert policy.graphed_phases == ("verify",)
    assert (policy.require_comparable, policy.on_inconclusive, policy.batch_sizes) == (False, "warn", (1,))
    assert gates.read({"maximum-regression": 0.1}, "p").maximum_regression == {"step": 0.1}


@pytest.mark.parametrize(
    "table",
    [
        {"minimum-speed": 1},
        {"minimum-speedup": "fast"},
        {"minimum-speedup": True},
        {"minimum-speedup": -1},
        {"maximum-regression": {"verfy": 0.1}},
        {"graphed-phases": ["verfy"]},
        {"allowed-denials": "all"},
        {"batch-sizes": [0]},
        {"on-inconclusive": "ignore"},
        {"require-comparable": "yes"},
    ],
)
def test_policies_that_cannot_be(table: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"policy\.toml"):
        gates.read(table, "policy.toml")


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    baseline, eagle = winning()
    store.write(baseline, tmp_path / "baseline.json")
    store.write(eagle, tmp_path / "eagle.json")
    return tmp_path / "eagle.json", tmp_path / "baseline.json"


def policy_file(folder: Path, text: str) -> Path:
    path = folder / "policy.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_command_with_all_its_reports(files: tuple[Path, Path], tmp_path: Path) -> None:
    policy = policy_file(tmp_path, "minimum-speedup = 1.8\nminimum-accept-length = 3.0\nmaximum-break-even = 2.0\n")
    reports = ("--junit", tmp_path / "check.xml", "--markdown", tmp_path / "summary.md", "--github")
    (tmp_path / "summary.md").write_text("earlier\n", encoding="utf-8")
    ran = eaglediag("check", files[0], "--baseline", files[1], "--policy", policy, *reports)
    assert ran.code == 1
    assert ran.out.startswith("Fail: 1 failed and 1 inconclusive of 5 gates.")
    assert ran.out.count("::error title=eaglediag%3A fail::accept length at batch 1") == 1
    cases = {case.name: case for suite in JUnitXml.fromfile(str(tmp_path / "check.xml")) for case in suite}
    assert isinstance(cases["accept length at batch 1"].result[0], Failure)
    assert isinstance(cases["speed-up at batch 1"].result[0], Error)
    assert cases["break-even at batch 1"].result == []
    summary = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert summary.startswith("earlier\n**Fail: 1 failed")


def test_warnings_are_skipped_cases(files: tuple[Path, Path], tmp_path: Path) -> None:
    policy = policy_file(tmp_path, "minimum-speedup = 1.8\n")
    options = ("--on-inconclusive", "warn", "--junit", tmp_path / "check.xml", "--github")
    ran = eaglediag("check", files[0], "--baseline", files[1], "--policy", policy, *options)
    assert ran.code == 0
    assert "::warning title=eaglediag%3A inconclusive::speed-up at batch 1" in ran.out
    cases = {case.name: case for suite in JUnitXml.fromfile(str(tmp_path / "check.xml")) for case in suite}
    assert isinstance(cases["speed-up at batch 1"].result[0], Skipped)


def test_json_and_exit_codes(files: tuple[Path, Path], tmp_path: Path) -> None:
    for least, code in ((1.0, 0), (1.8, 3), (3.0, 1)):
        policy = policy_file(tmp_path, f"[tool.eaglediag.check]\nminimum-speedup = {least}\n")
        ran = eaglediag("check", files[0], "--baseline", files[1], "--policy", policy, "--json", "--github")
        assert ran.code == code
        assert json.loads(ran.out)["exit_code"] == code


def test_denials_of_a_baseline_of_the_same_name_are_not_the_candidates(tmp_path: Path) -> None:
    baseline, eagle = winning()
    baseline.arm, baseline.denials = eagle.arm, [denial("decode", 1)]
    paths = [tmp_path / "old.json", tmp_path / "new.json"]
    for path, one in zip(paths, (baseline, eagle), strict=True):
        store.write(one, path)
    (tmp_path / "policy.toml").write_text("allowed-denials = []\n")
    ran = eaglediag("check", paths[1], "--baseline", paths[0], "--policy", tmp_path / "policy.toml")
    assert ran.code == 0, ran.out


def test_where_a_policy_comes_from(files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "speed-up at batch 1" in eaglediag("check", files[0], "--baseline", files[1]).out
    (tmp_path / "pyproject.toml").write_text("[tool.eaglediag.check]\nminimum-accept-length = 3.5\n", encoding="utf-8")
    ran = eaglediag("check", files[0], "--baseline", files[1])
    assert ran.code == 1
    assert "accept length at batch 1" in ran.out


@pytest.mark.parametrize("text", ["minimum-speedup = ", "", "nonsense = 1"])
def test_a_policy_that_cannot_be_read(text: str, files: tuple[Path, Path], tmp_path: Path) -> None:
    ran = eaglediag("check", files[0], "--baseline", files[1], "--policy", policy_file(tmp_path, text))
    assert ran.code == 2
    assert ran.err.startswith("eaglediag: ")
    assert eaglediag("check", files[0], "--baseline", files[1], "--policy", tmp_path / "none.toml").code == 2


def test_annotations_cannot_be_forged(tmp_path: Path) -> None:
    baseline, eagle = winning()
    forged = denial("verify", 1)
    forged.frames[-1].text = "x\n::error::forged"
    eagle.denials = [forged]
    store.write(baseline, tmp_path / "b.json")
    store.write(eagle, tmp_path / "e.json")
    policy = policy_file(tmp_path, "allowed-denials = []\n")
    ran = eaglediag("check", tmp_path / "e.json", "--baseline", tmp_path / "b.json", "--policy", policy, "--github")
    assert not [line for line in ran.out.splitlines() if line.startswith("::error::")]

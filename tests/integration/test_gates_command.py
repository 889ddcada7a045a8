"""`eaglediag gates` on published releases, and on a host behind a real sshd."""

from __future__ import annotations

import json
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from eaglediag.analysis.gates import Installation, answers, difference, parse_question
from eaglediag.analysis.gates.arguments import depends_on
from eaglediag.probes.evidence.release_source import read_rules
from eaglediag.probes.installation import in_folder
from eaglediag.probes.payload.gate_table import CHECKED
from tests.invoke import eaglediag
from tests.sshd import ALIAS, Sshd
from tests.wheels import release_source

wheels = pytest.mark.wheels


@cache
def installed(release: str) -> Installation:
    return in_folder(release_source(release))


def asked(release: str, question: str) -> dict[str, set[str]]:
    """Verdict -> the conditions of the gates for GPUs that have it."""
    installation = installed(release)
    found: dict[str, set[str]] = {"denies": set(), "allows": set(), "not asked": set(), "unknown": set()}
    for one in answers(installation, parse_question(question, installation)):
        if not one.gate.device:
            found[one.verdict].add(one.condition.text)
    return found


@wheels
@pytest.mark.parametrize("release", CHECKED)
def test_every_gate_of_a_checked_release_is_known_and_every_option_is_the_release_s_own(release: str) -> None:
    installation = installed(release)
    assert installation.release == release
    assert installation.missing == ()
    assert {gate.status for gate in installation.gates} == {"known"}
    assert installation.options == read_rules(release_source(release)).options
    for gate in installation.gates:
        assert set(gate.places) == {(one.text, one.line) for one in gate.conditions}, gate.target
        for condition in gate.conditions:
            assert set(depends_on(gate, condition, installation.options)) <= installation.options


@wheels
@pytest.mark.parametrize("release", CHECKED)
def test_sizes_depend_on_the_options_for_sizes(release: str) -> None:
    installation = installed(release)
    newer = "--cuda-graph-max-bs-decode" in installation.options
    expected = ["--cuda-graph-max-bs-decode", "--cuda-graph-bs-decode"] if newer else [
        "--cuda-graph-max-bs", "--cuda-graph-bs"
    ]  # fmt: skip
    sized = [
        (gate, one)
        for gate in installation.gates
        if not gate.device
        for one in gate.conditions
        if one.text == "cuda_graph_bs <= self.max_bs"
    ]
    assert len(sized) >= 3
    for gate, one in sized:
        assert gate.when(one) == ("not self.disable_padding",)
        assert list(depends_on(gate, one, installation.options)) == [*expected, "--disable-cuda-graph-padding"]


@wheels
@pytest.mark.parametrize("release", CHECKED)
@pytest.mark.parametrize("phase", ["decode", "verify", "draft", "draft_extend"])
def test_a_batch_beyond_the_largest_size_is_denied_on_paper(release: str, phase: str) -> None:
    assert asked(release, f"phase={phase} batch=12 max_bs=8")["denies"] == {"cuda_graph_bs <= self.max_bs"}
    within = asked(release, f"phase={phase} batch=8 max_bs=8")
    assert within["denies"] == set()
    assert "cuda_graph_bs <= self.max_bs" in within["allows"]
    # The constructor of every release computes the one from the other.
    assert asked(release, f"phase={phase} batch=12 capture_bs=1,2,8 disable_padding=0")["denies"] == {
        "cuda_graph_bs <= self.max_bs"
    }


@wheels
@pytest.mark.parametrize("release", CHECKED)
def test_an_exact_size_without_padding_on_paper(release: str) -> None:
    between = asked(release, "phase=verify batch=3 capture_bs=1,2,4 disable_padding=1")
    assert len(between["denies"]) == 1
    assert "cuda_graph_bs <= self.max_bs" in between["not asked"]
    assert asked(release, "phase=verify batch=2 capture_bs=1,2,4 disable_padding=1")["denies"] == set()


@wheels
def test_a_width_that_was_not_captured_on_paper() -> None:
    found = asked("0.5.23", "phase=verify num_tokens_per_req=4 captured_req_width=3 batch=1")
    assert any("num_tokens_per_req != self.captured_req_width" in text for text in found["denies"])


@wheels
def test_from_one_layout_to_the_other() -> None:
    found = difference(installed("0.5.9"), installed("0.5.23"))
    moved = {change.old.qualname: change.new.qualname for change in found.changed if change.moved}
    assert moved["CudaGraphRunner.can_run"] == "DecodeCudaGraphRunner.can_run_graph"
    assert moved["EAGLEDraftCudaGraphRunner.can_run"] == "EAGLEDraftCudaGraphRunner.can_run_graph"
    assert moved["EAGLEDraftExtendCudaGraphRunner.can_run"] == "EAGLEDraftExtendCudaGraphRunner.can_run_graph"
    assert moved["EagleVerifyInputV2Mixin.prepare_for_v2_verify"] == "eagle_prepare_for_verify"
    assert "EAGLEWorker.draft" in {gate.qualname for gate in found.removed}
    assert "DecodeCudaGraphRunner._can_run_ragged_verify_graph" in {gate.qualname for gate in found.added}
    target = next(change for change in found.changed if change.old.qualname == "CudaGraphRunner.can_run")
    assert "forward_batch.can_run_dp_cuda_graph" in target.removed
    assert "forward_batch.replace_embeds is not None" in target.added
    assert "cuda_graph_bs <= self.max_bs" not in (*target.removed, *target.added)
    assert "--cuda-graph-max-bs" in found.options_removed
    assert "--cuda-graph-max-bs-decode" in found.options_added


@wheels
@pytest.mark.parametrize(("old", "new"), list(pairwise(CHECKED)))
def test_neighbours_share_their_gates(old: str, new: str) -> None:
    before, after = installed(old), installed(new)
    found = difference(before, after)
    assert len(found.changed) + found.same + len(found.removed) == len(before.gates)
    assert len(found.changed) + found.same + len(found.added) == len(after.gates)
    assert difference(after, after).same == len(after.gates)


@wheels
@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("arguments", [(), ("--phase", "verify"), ("--explain", "phase=verify batch=12 max_bs=8")])
def test_a_real_list_fits_the_terminal(width: int, arguments: tuple[str, ...]) -> None:
    ran = eaglediag("gates", "--source", release_source("0.5.23"), *arguments, width=width)
    assert ran.code == 0
    assert max(map(len, ran.out.splitlines())) <= width


@wheels
@pytest.mark.timeout(600)
def test_a_release_is_fetched_with_pip(tmp_path: Path) -> None:
    ran = eaglediag("gates", "--release", "0.5.2", "--json", EAGLEDIAG_CACHE=str(tmp_path))
    if ran.code == 2 and "pip cannot fetch" in ran.err:
        pytest.skip(ran.err)
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["headline"] == "SGLang 0.5.2, a checked release: 7 gates, every one of them known."
    kept = tmp_path / "releases" / "0.5.2" / "sglang"
    assert sorted(one.name for one in kept.iterdir()) == ["srt", "version.py"]


@pytest.mark.sshd
def test_the_sglang_of_a_host_over_ssh(sshd: Sshd, tmp_path: Path) -> None:
    """Listed by the host's own Python, in a folder that is gone afterwards; the package is never imported."""
    gates = tmp_path / "site/sglang/srt/model_executor/cuda_graph_runner.py"
    gates.parent.mkdir(parents=True)
    gates.write_text(
        "class CudaGraphRunner:\n    def can_run(self, forward_batch):\n"
        "        return forward_batch.batch_size <= self.max_bs\n"
    )
    (tmp_path / "site/sglang/__init__.py").write_text("raise RuntimeError('imported')\n")
    (tmp_path / "site/sglang/version.py").write_text('__version__ = "0.5.9"\n')
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path / "site"} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    parent = tmp_path / "parent"
    parent.mkdir()
    host = ("--host", ALIAS, "--ssh-config", sshd.ssh_config, "--python", python, "--remote-parent", parent)
    ran = eaglediag("gates", *host, "--json")
    assert ran.code == 0, ran.err
    listed: dict[str, Any] = json.loads(ran.out)
    assert [one["gate"] for one in listed["gates"]] == ["model_executor.cuda_graph_runner:CudaGraphRunner.can_run"]
    assert list(parent.iterdir()) == []
    ran = eaglediag("gates", *host, "--explain", "phase=verify batch=12 max_bs=8")
    assert "verify is denied its graph by 1 condition" in ran.out

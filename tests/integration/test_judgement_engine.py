"""Judgement on the real thing: the same server probed twice, and one that was slowed on purpose."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from eaglediag.analysis.comparison import Comparison, compare
from eaglediag.capture.model import Capture
from eaglediag.hosts import open_host
from eaglediag.probes.launch import LaunchCommand
from eaglediag.probes.progress import silent
from eaglediag.probes.run import Arm, probe_arms
from eaglediag.probes.session import Plan
from eaglediag.probes.workload import Load, built_in_prompts
from tests.engine import launch_command, server_port
from tests.invoke import eaglediag

pytestmark = [pytest.mark.engine, pytest.mark.alone, pytest.mark.timeout(900)]

#: An SGLang plugin that makes every pass of the target model 15 ms longer, inside the pass.
SLOW = """
import time


def register():
    from sglang.srt.layers.logits_processor import LogitsProcessor

    forward = LogitsProcessor.forward

    def slowed(self, *args, **kwargs):
        time.sleep(0.015)
        return forward(self, *args, **kwargs)

    LogitsProcessor.forward = slowed
"""
POLICY = "maximum-regression = { step = 0.10, decode = 0.10 }\n"


@dataclass(frozen=True)
class Arms:
    """The captures, and where they lie."""

    folder: Path
    captures: dict[str, Capture]

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def compared(self, old: str, new: str) -> Comparison:
        return compare(self.captures[old], self.captures[new])

    def started(self, starts: Sequence[tuple[str, int]]) -> Capture:
        """A capture of these starts, by arm and turn, as if they were all there was."""
        windows = [
            window.model_copy(update={"repeat": turn})
            for turn, (name, repeat) in enumerate(starts)
            for window in self.captures[name].windows
            if window.repeat == repeat
        ]
        return self.captures["old"].model_copy(update={"windows": windows})


def slow_plugin(folder: Path) -> Path:
    metadata = folder / "slow_on_purpose-1.dist-info"
    metadata.mkdir(parents=True)
    (folder / "slow_on_purpose.py").write_text(SLOW, encoding="utf-8")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-on-purpose\nVersion: 1\n", encoding="utf-8")
    (metadata / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\nslow_on_purpose = slow_on_purpose:register\n", encoding="utf-8"
    )
    return folder


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> Arms:
    """Probed in the order old, same, slow, slow, same, old: a drift of the machine weighs on all alike."""
    folder = tmp_path_factory.mktemp("judgement")
    slowed = {**os.environ, "PYTHONPATH": str(slow_plugin(folder / "plugin"))}
    launches = {
        "old": launch_command("baseline", server_port()),
        "same": launch_command("baseline", server_port()),
        "slow": launch_command("baseline", server_port(), env=slowed),
    }
    load = Load(
        built_in_prompts(), concurrency=(1,), requests=12, max_new_tokens=64, endpoint="generate", ignore_eos=True
    )
    with open_host("local") as host:
        captures = probe_arms(
            [host],
            [Arm(name, LaunchCommand.parse(launch), folder / f"{name}.json") for name, launch in launches.items()],
            lambda arm, turn: Plan(arm.launch, load, arm.name, ready_timeout_s=180.0, overhead_pairs=0, repeat=turn),
            2,
            keep_steps=False,
            progress=silent,
        )
    return Arms(folder, dict(zip(launches, captures, strict=True)))


def test_equal_arms_are_not_called_better_or_worse(arms: Arms) -> None:
    """Four starts of one server can be told apart as two and two in three ways.

    A 95 % interval is wrong once in twenty, so that one verdict alone proves little. On a machine whose starts differed
    by 10 %, one of the three was wrong in 28 of 250 draws of four starts, and never two.
    """
    starts = [(name, turn) for name in ("old", "same") for turn in range(2)]
    wrong = []
    for other in starts[1:]:
        old = [starts[0], other]
        found = compare(arms.started(old), arms.started([one for one in starts if one not in old]))
        assert not found.comparability.graded("not_comparable")
        if found.outcome not in ("equal", "inconclusive"):
            wrong.append(found.headline)
    assert len(wrong) <= 1, wrong


def test_an_arm_slowed_on_purpose_is_called_worse(arms: Arms) -> None:
    found = arms.compared("old", "slow")
    assert found.outcome == "worse", found.headline
    [row] = found.rows
    old, new = row.baseline.parts["decode"], row.candidate.parts["decode"]
    assert 14 < new - old < 30
    assert found.shares[0].part == "decode"
    [finding] = [one for one in found.findings if one.code == "first_to_blame"]
    assert "most of it in decode" in finding.what


def test_a_policy_fails_the_slowed_arm_alone(arms: Arms, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY, encoding="utf-8")

    def checked(name: str, *more: object) -> tuple[int, dict[str, str]]:
        old = arms.path("old")
        given = ("--baseline", old, "--previous", old, "--policy", policy, "--json", *more)
        ran = eaglediag("check", arms.path(name), *given)
        return ran.code, {gate["name"]: gate["status"] for gate in json.loads(ran.out)["gates"]}

    code, gates = checked("slow")
    assert code == 1
    assert gates["step time at batch 1, new / old"] == gates["decode time at batch 1, new / old"] == "fail"
    code, gates = checked("same")
    assert code in (0, 3)
    assert "fail" not in gates.values()
    assert (code == 0) == (set(gates.values()) == {"pass"})
    # An inconclusive gate warns when that is asked for, and never fails.
    assert checked("same", "--on-inconclusive", "warn")[0] == 0

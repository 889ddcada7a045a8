"""One arm started several times, over the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from eaglediag.capture import store
from tests.engine import launch_command, server_port
from tests.invoke import eaglediag

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def test_one_arm_started_twice(tmp_path: Path) -> None:
    output = tmp_path / "baseline.json"
    argv = [
        *("probe", "--host", "local", "--launch", launch_command("baseline", server_port()), "-o", output),
        *("--repeat", "2", "--concurrency", "1", "--requests", "3", "--max-new-tokens", "24", "--overhead-pairs", "0"),
        *("--ignore-eos", "--endpoint", "generate", "--steps"),
    ]
    ran = eaglediag(*argv)
    assert ran.code == 0, ran.err
    capture = store.read(output)
    assert [(window.id, window.repeat) for window in capture.windows] == [("c1", 0), ("c1-r1", 1)]
    assert capture.windows[0].started + capture.windows[0].duration_s < capture.windows[1].started
    assert all(window.ranks[0].steps_recorded > 20 for window in capture.windows)
    assert [line.split()[:2] for line in ran.out.splitlines() if line.split()[:1] in (["start"], ["1"], ["2"])] == [
        ["start", "rency"],
        ["1", "1"],
        ["2", "1"],
    ]
    exported = eaglediag("export", output, "--csv", tmp_path / "steps.csv")
    assert exported.code == 0, exported.err
    rows = (tmp_path / "steps.csv").read_text(encoding="utf-8").splitlines()[1:]
    assert {row.split(",")[0] for row in rows} == {"c1", "c1-r1"}

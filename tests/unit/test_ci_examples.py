"""The CI examples in docs/ci.md: their check commands are run as they stand there, by a shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from eaglediag.analysis import policy
from eaglediag.capture import store
from tests.factories import pair

TEXT = (Path(__file__).parents[2] / "docs" / "ci.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def check_commands() -> dict[str, str]:
    """The shell command that holds `eaglediag check`, by where it is from."""
    github, gitlab = blocks("yaml")
    [step] = re.findall(r"name: Check\n +run: \|\n((?: {10}.*\n)+)", github)
    [line] = re.findall(r"^ +- (eaglediag check .*)$", gitlab, re.MULTILINE)
    return {"github": re.sub(r"^ {10}", "", step, flags=re.MULTILINE), "gitlab": line}


@pytest.mark.parametrize("where", ["github", "gitlab"])
@pytest.mark.parametrize(("verify_ms", "code"), [(14.0, 0), (29.0, 1)])
def test_the_jobs(where: str, verify_ms: float, code: int, tmp_path: Path) -> None:
    captures = tmp_path / "captures"
    captures.mkdir()
    baseline, eagle = pair(verify_ms=verify_ms, accept_length=2.4)
    store.write(baseline, captures / "baseline.json")
    store.write(eagle, captures / "eagle.json")
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "eaglediag"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m eaglediag "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", check_commands()[where]],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == code, ran.stderr
    assert (captures / "check.xml").is_file()
    if where == "github":
        assert (tmp_path / "summary.md").is_file()
        assert ("::notice" if code == 0 else "::error") in ran.stdout


def test_the_policy_of_the_example_is_valid() -> None:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    [example] = blocks("toml")
    table = tomllib.loads(example)["tool"]["eaglediag"]["check"]
    read = policy.read(table, "docs/ci.md")
    assert read.batch_sizes == (1, 4, 12)
    assert read.maximum_regression == {"step": 0.05, "verify": 0.10}

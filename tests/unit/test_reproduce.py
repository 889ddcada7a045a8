"""A bug report's command sends the load that was measured: it goes through the command line and back."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest

from eaglediag.capture.model import Capture, Workload
from eaglediag.cli import probe
from eaglediag.errors import UsageError
from eaglediag.probes.workload import Load, Prompt, built_in_prompts, describe
from eaglediag.reports import issue
from tests.invoke import eaglediag
from tests.report_material import full_pair

LOADS = {
    "defaults": Load(built_in_prompts(), source="built-in prompts"),
    "to the last token": Load(built_in_prompts(), source="built-in prompts", ignore_eos=True, endpoint="generate"),
    "chat": Load(built_in_prompts(), (2, 9), 40, 77, 0.6, 3, "chat", source="built-in prompts"),
    "random": Load([], requests=24, source="random ids, 64 tokens", random_input_len=64, ignore_eos=True),
}


def eagle(workload: Workload) -> Capture:
    _, capture = full_pair()
    capture.workload = workload
    return capture


def command_in(report: str) -> list[str]:
    found = re.search(r"^(eaglediag probe .*?)^```$", report, re.DOTALL | re.MULTILINE)
    assert found is not None
    return shlex.split(found[1].replace("\\\n", " "))


def load_of(command: list[str], monkeypatch: pytest.MonkeyPatch) -> Load:
    """What the command line makes of it, taken before anything is started."""
    loads: list[Load] = []
    make = probe._load

    def spy(*arguments: Any) -> Load:
        loads.append(make(*arguments))
        raise UsageError("far enough", "")

    monkeypatch.setattr(probe, "_load", spy)
    ran = eaglediag(*command[1:])
    assert "far enough" in ran.err
    return loads[0]


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS.keys())
def test_the_load_comes_back(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    report = issue.render([eagle(describe(load, load.endpoint))], None)
    assert load_of(command_in(report), monkeypatch) == load


def test_prompts_of_a_file_are_asked_for_and_its_name_is_kept_back() -> None:
    load = Load([Prompt("file", "Why?")] * 7, source="customers.jsonl")
    report = issue.render([eagle(describe(load, "chat"))], None)
    assert "--prompts prompts.jsonl --endpoint chat" in " ".join(command_in(report))
    assert "`prompts.jsonl`: 7 prompts from a file" in report
    assert "customers" not in report


def test_a_load_of_others_is_said() -> None:
    report = issue.render([eagle(Workload(source="what others asked of the server"))], None)
    assert "came from other clients" in report


def test_variables_of_the_server_are_not_forgotten() -> None:
    _, capture = full_pair()
    assert "Set the environment variables" not in issue.render([capture], None)
    capture.server.environment = {"SGLANG_SIMULATE_ACC_LEN": "2.0"}
    assert "Set the environment variables above first." in issue.render([capture], None)


def test_the_chosen_endpoint_is_on_record_and_no_other() -> None:
    load = Load(built_in_prompts())
    assert describe(load, "auto").endpoint is None
    assert describe(load, "chat").endpoint == "chat"
    assert describe(Load(built_in_prompts(), endpoint="generate"), "auto").endpoint == "generate"

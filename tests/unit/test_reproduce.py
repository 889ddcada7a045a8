"""A bug report's command sends the load that was measured: it goes through the command line and back."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from eaglediag.capture import store
from eaglediag.capture.model import Capture, Profile, Workload
from eaglediag.cli import probe
from eaglediag.errors import UsageError
from eaglediag.probes.launch import LaunchCommand
from eaglediag.probes.workload import Load, Prompt, built_in_prompts, describe
from eaglediag.reports import issue
from tests.invoke import eaglediag
from tests.report_material import full_pair

ROOT = Path(__file__).parents[2]
RECORDED = sorted((ROOT / "benchmarks" / "results").glob("*/*/*.json"))

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


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


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


LAUNCHES = (
    "python3 -m sglang.launch_server --model-path /m/target --load-format dummy --skip-tokenizer-init --tp 8",
    "CUDA_VISIBLE_DEVICES=0 SGLANG_SIMULATE_ACC_LEN=2.0 /opt/venv/bin/python -m sglang.launch_server --model-path m "
    "--skip-server-warmup --json-model-override-args '{\"a b\": 1}' --tokenizer-path /m/a/tokenizer",
)


@pytest.mark.parametrize("launch", LAUNCHES)
def test_the_launch_command_comes_back_with_its_variables_and_paths_replaced(launch: str) -> None:
    _, capture = full_pair()
    command = LaunchCommand.parse(launch)
    capture.server.command, capture.server.environment = list(command.argv), command.environment
    report = issue.render([capture], None)
    again = option(command_in(report), "--launch")
    paths = list(dict.fromkeys(word for word in command.argv if word.startswith("/")))
    assert paths
    for number, path in enumerate(paths, 1):
        again = again.replace(f"<path-{number}>", path)
    assert LaunchCommand.parse(again).argv == command.argv
    assert LaunchCommand.parse(again).environment == command.environment


def test_names_give_the_shell_nothing_to_obey() -> None:
    _, capture = full_pair()
    capture.arm, capture.server.speculation = "x; touch PWN #", None
    capture.server.environment = {"A; touch PWN #": "1", "B": "$(touch PWN)"}
    command = command_in(issue.render([capture], None))
    assert option(command, "-o") == "x; touch PWN #.json"
    assert LaunchCommand.parse(option(command, "--launch")).environment == {"B": "$(touch PWN)"}
    capture.arm = "monday/eagle"
    assert option(command_in(issue.render([capture], None)), "-o") == "eagle.json"


def test_quoted_values_of_the_launch_command_keep_no_key() -> None:
    _, capture = full_pair()
    capture.server.command = ["python", "-m", "sglang.launch_server", "--api-key", "p$ssword-12"]
    report = issue.render([capture], None)
    assert "ssword" not in report
    assert option(command_in(report), "--launch").endswith("--api-key '<key>'")


@pytest.mark.parametrize("capture", RECORDED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_recorded_launches_come_back(capture: Path) -> None:
    read = store.read(capture)
    again = LaunchCommand.parse(option(command_in(issue.render([read], None)), "--launch"))
    assert again.environment == read.server.environment
    assert [word for word in again.argv if "<" not in word] == [word for word in read.server.command if "/" not in word]
    assert len(again.argv) == len(read.server.command)


def test_a_sweep_is_swept_again() -> None:
    _, capture = full_pair()
    for window, length in zip(capture.windows, (1.0, 1.25, 2.0), strict=True):
        window.simulated_accept_length = length
    command = command_in(issue.render([capture], None))
    assert probe._sweep(option(command, "--sweep-accept-length")) == (1.0, 1.25, 2.0)
    for window in capture.windows:
        window.simulated_accept_length = 2.0
    assert "--sweep-accept-length" not in command_in(issue.render([capture], None))


def test_profiled_evidence_is_profiled_again() -> None:
    _, capture = full_pair()
    assert "--profile-steps" not in command_in(issue.render([capture], None))
    capture.profiles = [
        Profile(phase="verify", steps=steps, kernels_per_step=9, launches_per_step=9, graph_launches_per_step=0,
                device_busy_ms=1, span_ms=2)
        for steps in (1, 19)
    ]  # fmt: skip
    assert option(command_in(issue.render([capture], None)), "--profile-steps") == "19"


def test_figures_from_files_have_no_launch_command() -> None:
    _, capture = full_pair()
    capture.server.command = []
    report = issue.render([capture], None)
    assert "Launch command:" not in report
    assert "The launch command is not on record" in report


def test_the_chosen_endpoint_is_on_record_and_no_other() -> None:
    load = Load(built_in_prompts())
    assert describe(load, "auto").endpoint is None
    assert describe(load, "chat").endpoint == "chat"
    assert describe(Load(built_in_prompts(), endpoint="generate"), "auto").endpoint == "generate"

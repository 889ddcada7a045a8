"""The launch command: taken apart as a shell would, and put together without speculation."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from eaglediag.errors import HostError, InstrumentationError, UsageError
from eaglediag.hosts.local import LocalHost
from eaglediag.probes.folder import RemoteFolder
from eaglediag.probes.launch import DEFAULT_PORT, LaunchCommand
from eaglediag.probes.preflight import find_python

EAGLE = (
    "env SGLANG_SIMULATE_ACC_LEN=2.0 CUDA_VISIBLE_DEVICES=0,1 "
    "python3 -m sglang.launch_server --model-path '/m/two words' "
    "--speculative-algorithm EAGLE3 --speculative-draft-model-path=/m/draft --speculative-num-steps 2 --tp 8 "
    "--speculative-eagle-topk 1 --port 31000 --api-key sk-123 --speculative-num-draft-tokens 3"
)


def test_words_assignments_and_port() -> None:
    command = LaunchCommand.parse(EAGLE)
    assert command.environment == {"SGLANG_SIMULATE_ACC_LEN": "2.0", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert command.argv[:3] == ("python3", "-m", "sglang.launch_server")
    assert (command.python, command.port, command.api_key, command.speculative) == ("python3", 31000, "sk-123", True)
    assert not command.shell


def test_the_baseline_is_the_same_command_without_speculation() -> None:
    baseline = LaunchCommand.parse(EAGLE).without_speculation()
    assert shlex.join(baseline.argv) == (
        "python3 -m sglang.launch_server --model-path '/m/two words' --tp 8 --port 31000 --api-key sk-123"
    )
    assert baseline.environment == {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert not baseline.speculative
    assert LaunchCommand.parse(baseline.text) == baseline


def test_keys_do_not_reach_the_capture() -> None:
    words = LaunchCommand.parse(
        "python -m x --api-key sk-1 --hf-token=hf_2 --max-total-tokens 8 --tokenizer-path t"
    ).redacted()
    assert words[3:] == [
        "--api-key",
        "<redacted>",
        "--hf-token=<redacted>",
        "--max-total-tokens",
        "8",
        "--tokenizer-path",
        "t",
    ]


@pytest.mark.parametrize(
    "text",
    ["source venv/bin/activate && python -m x", "python -m x > log", "python -m x --tp $TP", "a; b", "x | y", "`x`"],
)
def test_what_only_a_shell_can_run(text: str) -> None:
    command = LaunchCommand.parse(text)
    assert command.shell
    with pytest.raises(UsageError, match="plain command"):
        command.without_speculation()


@pytest.mark.parametrize("text", ["python -m x --a 'b && c'", 'python -m x --a "b; c"', r"python -m x --a b\;c"])
def test_quoted_shell_characters_are_only_characters(text: str) -> None:
    assert not LaunchCommand.parse(text).shell


def test_defaults_and_mistakes() -> None:
    assert LaunchCommand.parse("python -m x").port == DEFAULT_PORT
    for text in ("", "A=1", "python 'x"):
        with pytest.raises(UsageError):
            LaunchCommand.parse(text)
    with pytest.raises(UsageError, match="not a number"):
        _ = LaunchCommand.parse("python -m x --port http").port


def test_a_server_over_several_nodes() -> None:
    command = LaunchCommand.parse("python -m x --nnodes 2")
    assert command.on_node(1, 2).argv[-2:] == ("--node-rank", "1")
    assert command.on_node(0, 1) is command
    assert LaunchCommand.parse("python -m x --node-rank {node_rank}").on_node(1, 2).argv[-1] == "1"
    both = LaunchCommand.parse("python -m x --nnodes 2 --port 3000{node_rank}").on_node(1, 2)
    assert (both.port, both.argv[-2:]) == (30001, ("--node-rank", "1"))
    for text in ("python -m x", "python -m x --nnodes 2 --node-rank 0"):
        with pytest.raises(UsageError, match="2 hosts"):
            LaunchCommand.parse(text).on_node(0, 2)


@pytest.mark.parametrize(
    ("first_line", "found"),
    [
        ("#!/opt/venv/bin/python3.12", "/opt/venv/bin/python3.12"),
        ("#! /usr/bin/env python3", "python3"),
        ("#!/usr/bin/env -S uv run python", "python"),
        ("#!/bin/sh\n'''exec' /srv/long/venv/bin/python3 \"$0\" \"$@\"\n' '''", "/srv/long/venv/bin/python3"),
    ],
)
def test_a_script_names_its_python(first_line: str, found: str, tmp_path: Path) -> None:
    script = tmp_path / "sglang"
    script.write_text(f"{first_line}\nimport sglang\n")
    script.chmod(0o755)
    with LocalHost() as host:
        assert find_python(host, LaunchCommand.parse(f"{script} serve --model-path m"), None) == found


@pytest.mark.parametrize("launch", ["ls", "bash start.sh", "cd /srv && ./start.sh"])
def test_another_program_is_not_taken_for_python(launch: str) -> None:
    with LocalHost() as host:
        with pytest.raises(InstrumentationError, match="is neither Python nor a script of one"):
            find_python(host, LaunchCommand.parse(launch), None)
        assert find_python(host, LaunchCommand.parse(launch), sys.executable) == sys.executable


def test_a_wrapper_that_is_named_is_taken_as_it_is(tmp_path: Path) -> None:
    wrapper = tmp_path / "venv-python"
    wrapper.write_text('#!/bin/sh\nPYTHONPATH=/srv exec /usr/bin/python3 "$@"\n')
    wrapper.chmod(0o755)
    with LocalHost() as host:
        assert find_python(host, LaunchCommand.parse("ls"), str(wrapper)) == str(wrapper)


def test_a_folder_that_cannot_be_made_and_a_python_that_is_none_are_told_apart(tmp_path: Path) -> None:
    with LocalHost() as host:
        with pytest.raises(HostError, match="cannot write into"):
            RemoteFolder(host, str(tmp_path / "not there")).ship(sys.executable)
        with pytest.raises(InstrumentationError, match="ls does not run as a Python"):
            RemoteFolder(host, str(tmp_path)).ship("ls")
        assert not list(tmp_path.iterdir())

"""Launch commands, judged before anything runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eaglediag.analysis.launch_lint import Rules, lint
from eaglediag.errors import UsageError
from tests.invoke import eaglediag

EAGLE = (
    "python -m sglang.launch_server --model-path m --speculative-algorithm EAGLE3 --speculative-draft-model-path d "
    "--speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3 --max-running-requests 16"
)
VLLM = 'vllm serve m --speculative-config \'{"method": "eagle3", "num_speculative_tokens": 3}\''


def codes(command: str, concurrency: list[int] | None = None, release: str = "0.5.9") -> list[str]:
    return [finding.code for finding in lint(command, concurrency or [], Rules(release))]


def test_a_sound_command_has_no_findings() -> None:
    assert codes(EAGLE, [1, 4, 12]) == []
    assert codes(VLLM, [1, 4, 12]) == []


def test_the_captured_maximum_against_the_concurrency() -> None:
    command = EAGLE + " --cuda-graph-max-bs 8"
    assert codes(command, [1, 8]) == []
    (finding,) = lint(command, [1, 4, 12], Rules("0.5.9"))
    assert finding.code == "beyond_largest_graph"
    assert "the largest captured batch size is 8" in finding.message
    assert finding.advice == "--cuda-graph-max-bs 12"


def test_the_advice_uses_the_release_s_own_option() -> None:
    (finding,) = lint(EAGLE + " --cuda-graph-max-bs-decode 8", [12], Rules("0.5.20"))
    assert finding.advice == "--cuda-graph-max-bs-decode 12"


def test_data_parallel_ranks_share_the_requests() -> None:
    assert codes(EAGLE + " --cuda-graph-max-bs 8 --dp 4", [32]) == []
    assert codes(EAGLE + " --cuda-graph-max-bs 8 --dp-size 2", [32]) == ["beyond_largest_graph"]


@pytest.mark.parametrize(
    ("release", "maximum", "off"),
    [("0.5.9", 9, True), ("0.5.9", 50, True), ("0.5.9", 48, False), ("0.5.12", 50, False), ("0.5.2", 50, True)],
)
def test_maximum_off_the_grid_is_silently_lower_until_0_5_9(release: str, maximum: int, off: bool) -> None:
    found = codes(f"{EAGLE} --cuda-graph-max-bs {maximum}", [1], release)
    assert ("maximum_off_grid" in found) is off


def test_a_maximum_copied_from_a_model_card() -> None:
    command = EAGLE.replace("--max-running-requests 16", "--max-running-requests 64") + " --cuda-graph-max-bs 16"
    assert codes(command) == ["maximum_from_a_model_card"]
    assert codes(command, [16]) == []


@pytest.mark.parametrize(
    "option",
    [
        "--disable-cuda-graph",
        "--attention-backend torch_native",
        "--deepep-mode normal",
        "--debug-tensor-dump-output-folder /tmp/x",
    ],
)
def test_flags_that_disable_graphs(option: str) -> None:
    assert codes(f"{EAGLE} {option}") == ["graphs_disabled"]


def test_sizes_without_padding() -> None:
    command = EAGLE + " --disable-cuda-graph-padding --cuda-graph-bs 1 2 16"
    assert codes(command, [12]) == ["size_not_captured"]
    assert codes(command, [16]) == []


def test_flags_that_disable_speculation() -> None:
    assert codes("python -m sglang.launch_server --model m --speculative-num-steps 2") == ["speculation_off"]
    assert "no_draft_model" in codes(EAGLE.replace("--speculative-draft-model-path d ", ""))
    assert codes(EAGLE.replace("--speculative-eagle-topk 1 ", "")) == ["incomplete_speculation"]


def test_the_verify_width() -> None:
    assert codes(EAGLE.replace("draft-tokens 3", "draft-tokens 4")) == ["draft_tokens_adjusted"]
    tree = EAGLE.replace("topk 1", "topk 2")
    assert codes(tree.replace("draft-tokens 3", "draft-tokens 7")) == []
    assert codes(tree.replace("draft-tokens 3", "draft-tokens 8")) == ["draft_tokens_do_not_fit"]
    assert codes(tree + " --page-size 64") == ["tree_with_pages"]
    assert codes(tree + " --page-size 64 --attention-backend fa3") == []


def test_what_makes_accept_lengths_untrue() -> None:
    assert codes(EAGLE + " --speculative-accept-threshold-single 0.5") == ["lossy_acceptance"]
    assert codes("SGLANG_SIMULATE_ACC_LEN=2.0 " + EAGLE) == ["accept_length_pinned"]
    assert codes("env SGLANG_SIMULATE_ACC_LEN=2.0 " + EAGLE) == ["accept_length_pinned"]
    assert codes("docker run -e SGLANG_SIMULATE_ACC_LEN=2.0 image " + EAGLE) == ["accept_length_pinned"]


def test_continuous_decode_steps_in_one_arm_only() -> None:
    assert codes(EAGLE + " --num-continuous-decode-steps 4") == ["continuous_decode_steps"]


def test_an_option_the_release_does_not_know() -> None:
    rules = Rules("0.5.9", frozenset({"--model-path", "--tp-size"}))
    (finding,) = lint("python -m sglang.launch_server --model-path m --tp-sise 2", [], rules)
    assert (finding.level, finding.code, finding.advice) == ("error", "unknown_option", "did you mean --tp-size?")
    assert lint("python -m sglang.launch_server --model-pa m", [], rules) == []
    (finding,) = lint("python -m sglang.launch_server --model-path m --foo", [], rules)
    assert finding.advice == "see its --help"


def test_the_old_maximum_option_is_gone() -> None:
    assert codes(EAGLE + " --cuda-graph-max-bs 16", [1], "0.5.20") == ["unknown_option"]


def test_vllm_sizes_count_tokens() -> None:
    command = VLLM + " --compilation-config '{\"cudagraph_capture_sizes\": [1, 2, 4, 8, 16, 32]}'"
    assert codes(command, [8]) == ["token_sized_graphs"]
    assert codes(command, [12]) == ["beyond_largest_graph"]
    assert codes(VLLM, [200]) == ["beyond_largest_graph"]
    assert codes(VLLM + " --max-num-seqs 16", [200]) == ["requests_wait"]


def test_vllm_flags() -> None:
    assert codes(VLLM + " --enforce-eager") == ["graphs_disabled"]
    assert codes(VLLM + " -O 3") == []
    assert codes(VLLM + ' -O \'{"cudagraph_mode": "NONE"}\'') == ["graphs_disabled"]
    assert codes("vllm serve m --speculative-config not-json") == ["not_json"]
    assert codes('vllm serve m --speculative-config \'{"method": "ngram"}\'') == ["no_draft_tokens"]
    assert codes("vllm serve m --speculative-model d --num-speculative-tokens 3") == [
        "removed_option",
        "removed_option",
    ]
    limited = VLLM.replace("3}", '3, "disable_by_batch_size": 8}')
    assert codes(limited, [12]) == ["speculation_off_at_batch"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("ls -l", "starts neither SGLang nor vLLM"),
        ("python -m sglang.launch_server --port '", "cannot be read"),
        (EAGLE + " --cuda-graph-max-bs many", "--cuda-graph-max-bs many is not a number"),
    ],
)
def test_commands_that_cannot_be_read(command: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        lint(command, [])


def test_the_command() -> None:
    ran = eaglediag("lint", EAGLE + " --cuda-graph-max-bs 8", "--concurrency", "1,12", "--release", "0.5.9")
    assert ran.code == 0
    assert ran.out.startswith("warning: at concurrency 12 every decode and verify step is eager")
    ran = eaglediag(
        "lint", "python -m sglang.launch_server --model m --speculative-num-steps 2", "--json", "--release", "0.5.9"
    )
    assert ran.code == 1
    assert json.loads(ran.out)["findings"][0]["code"] == "speculation_off"


@pytest.mark.parametrize(
    ("release", "said"),
    [
        ("0.5.9", "by the rules of 0.5.9, built in;"),
        ("0.5.21", "by the rules of 0.5.21, built in;"),
        ("9.9.9", "by the rules of 0.5.23, built in: 9.9.9 is not known, only 0.5.2 to 0.5.23;"),
        ("0.4.1", "by the rules of 0.5.2, built in: 0.4.1 is not known, only 0.5.2 to 0.5.23;"),
    ],
)
def test_it_says_by_which_rules_it_judged(release: str, said: str) -> None:
    ran = eaglediag("lint", EAGLE, "--release", release)
    assert ran.err.startswith(f"0 findings ({said}")
    assert "options are not checked for existence, which --source FOLDER does" in ran.err
    told = json.loads(eaglediag("lint", EAGLE, "--release", release, "--json").out)
    assert (told["release"], told["options_checked"]) == (release, False)
    assert f"by the rules of {told['judged_as']}," in ran.err


def test_options_are_checked_by_a_source(tmp_path: Path) -> None:
    arguments = tmp_path / "sglang" / "srt" / "server_args.py"
    arguments.parent.mkdir(parents=True)
    arguments.write_text("class ServerArgs:\n    model_path: str\n    tp_size: int = 1\n")
    (tmp_path / "sglang-9.9.9.dist-info").mkdir()
    ran = eaglediag("lint", "python -m sglang.launch_server --model-path m --foo 3", "--source", tmp_path)
    assert (ran.code, ran.out) == (1, "error: SGLang 9.9.9 has no option --foo; see its --help\n")
    assert ran.err == f"1 finding (by the rules of 9.9.9, {tmp_path / 'sglang'})\n"


def test_a_vllm_command_is_not_judged_by_an_sglang_release() -> None:
    ran = eaglediag("lint", VLLM + " --foo")
    assert (ran.code, ran.err) == (0, "0 findings (a vLLM command; options are not checked for existence)\n")


def test_usage_errors_of_the_command() -> None:
    assert "main is not a release; give one like 0.5.23" in eaglediag("lint", EAGLE, "--release", "main").err
    assert eaglediag("lint", EAGLE, "--concurrency", "many").code == 2
    assert eaglediag("lint", EAGLE, "--source", "/nonexistent").code == 2
    assert eaglediag("lint", "make coffee").code == 2

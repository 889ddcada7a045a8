"""The embedded host serves: the real SGLang, with and without speculation, gives the same tokens."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from tests.engine import HOST, Engine, RunningServer, engine_environment, start_server

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

TOPICS = ["ships", "tea", "rust", "rain"]
PROMPTS = [f"{number}. Say something about {TOPICS[number % 4]}." for number in range(12)]
NEW_TOKENS = 48
EVERY_STEP = ["--decode-log-interval", "1"]


def one_by_one(server: RunningServer) -> list[Any]:
    return [server.generate(prompt, NEW_TOKENS) for prompt in PROMPTS]


def together(server: RunningServer) -> list[Any]:
    answers: list[Any] = server.generate(PROMPTS, NEW_TOKENS)
    return answers


def tokens(answers: list[Any]) -> list[list[int]]:
    return [answer["output_ids"] for answer in answers]


def decode_lines(server: RunningServer) -> list[str]:
    return [line for line in server.log_text().splitlines() if "] Decode batch" in line]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return engine_environment()


@pytest.fixture(scope="module")
def plain(engine: Engine) -> list[list[int]]:
    """What the target says without speculation: the truth for every other arm."""
    with start_server("baseline", extra_args=EVERY_STEP) as server:
        answers = together(server)
        assert any("#running-req: 12," in line for line in decode_lines(server))
    assert all(not answer["meta_info"].get("spec_verify_ct") for answer in answers)
    return tokens(answers)


def test_reference_kernels(engine: Engine) -> None:
    command = [str(engine.python), "-m", "unittest", "discover", "-s", str(HOST / "tests")]
    done = subprocess.run(command, env=engine.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_models_are_deterministic(engine: Engine, tmp_path: Any) -> None:
    subprocess.run([engine.python, HOST / "models.py", tmp_path / "again"], check=True, env=engine.environment())
    written = sorted(path.relative_to(engine.models) for path in engine.models.rglob("*") if path.is_file())
    assert written
    for path in written:
        assert (engine.models / path).read_bytes() == (tmp_path / "again" / path).read_bytes(), path


def test_text_depends_on_the_prompt(plain: list[list[int]]) -> None:
    assert len({tuple(answer) for answer in plain}) > len(PROMPTS) / 2
    assert all(len(set(answer)) > NEW_TOKENS / 4 for answer in plain), "the target goes round in circles"


@pytest.mark.parametrize("arm", ["eagle", "standalone", "ngram"])
def test_speculation_gives_the_same_tokens(plain: list[list[int]], arm: str) -> None:
    with start_server(arm) as server:
        for complete in (one_by_one, together):
            answers = complete(server)
            assert tokens(answers) == plain, complete.__name__
            passes = sum(answer["meta_info"]["spec_verify_ct"] for answer in answers)
            # The first token of an answer comes from the prompt's pass, not from a verify pass.
            accept_length = sum(answer["meta_info"]["completion_tokens"] - 1 for answer in answers) / passes
            assert 1 < accept_length <= 4
            if arm == "eagle":
                assert 2 < accept_length < 3


@pytest.mark.parametrize("extra_args", [("--tp", "2"), ("--dp", "2")], ids=["tp2", "dp2"])
def test_two_ranks(plain: list[list[int]], extra_args: tuple[str, str]) -> None:
    with start_server("eagle", extra_args=extra_args) as server:
        assert tokens(together(server)) == plain
        rank = "TP1" if extra_args[0] == "--tp" else "DP1"
        assert f" {rank}]" in server.log_text()


def test_cpu_graph_up_to_its_largest_batch(plain: list[list[int]]) -> None:
    """The CPU graph runner serves decode up to --torch-compile-max-bs, and its gate refuses larger batches."""
    more = ["--enable-torch-compile", "--torch-compile-max-bs", "8", *EVERY_STEP]
    with start_server("baseline", extra_args=more) as server:
        assert tokens(one_by_one(server)) == plain
        assert all("cpu graph: True" in line for line in decode_lines(server))
        assert tokens(together(server)) == plain
        full = [line for line in decode_lines(server) if "#running-req: 12," in line]
        assert full
        assert all("cpu graph: False" in line for line in full)

"""The embedded host serves: the real SGLang, with and without speculation, gives the same tokens."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.engine import HOST, Engine, RunningServer, start_server

pytest_plugins = ["tests.engine"]
pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

TOPICS = ["ships", "tea", "rust", "rain"]
PROMPTS = [f"{number}. Say something about {TOPICS[number % 4]}." for number in range(12)]
NEW_TOKENS = 48


def complete(server: RunningServer, concurrency: int) -> list[Any]:
    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(lambda prompt: server.generate(prompt, NEW_TOKENS), PROMPTS))


def tokens(answers: list[Any]) -> list[list[int]]:
    return [answer["output_ids"] for answer in answers]


@pytest.fixture(scope="module")
def plain(engine: Engine) -> list[list[int]]:
    """What the target says without speculation: the truth for every other arm."""
    with start_server("baseline") as server:
        answers = complete(server, 12)
        assert "#running-req: 12" in server.log_text()
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
    assert len({tuple(answer) for answer in plain}) == len(PROMPTS)
    assert all(len(set(answer)) > NEW_TOKENS / 4 for answer in plain), "the target goes round in circles"


@pytest.mark.parametrize("arm", ["eagle", "standalone", "ngram"])
def test_speculation_gives_the_same_tokens(plain: list[list[int]], arm: str) -> None:
    with start_server(arm) as server:
        for concurrency in (1, 12):
            answers = complete(server, concurrency)
            assert tokens(answers) == plain, f"concurrency {concurrency}"
            passes = sum(answer["meta_info"]["spec_verify_ct"] for answer in answers)
            # The first token of an answer comes from the prompt's pass, not from a verify pass.
            accept_length = sum(answer["meta_info"]["completion_tokens"] - 1 for answer in answers) / passes
            assert 1 < accept_length <= 4 if arm != "ngram" else 1 <= accept_length <= 4
            if arm == "eagle":
                assert 2 < accept_length < 3


@pytest.mark.parametrize("extra_args", [("--tp", "2"), ("--dp", "2")], ids=["tp2", "dp2"])
def test_two_ranks(plain: list[list[int]], extra_args: tuple[str, str]) -> None:
    with start_server("eagle", extra_args=extra_args) as server:
        assert tokens(complete(server, 4)) == plain
        rank = "TP1" if extra_args[0] == "--tp" else "DP1"
        assert f" {rank}]" in server.log_text()


def test_cpu_graph_up_to_its_largest_batch(plain: list[list[int]]) -> None:
    """The CPU graph runner serves decode up to --torch-compile-max-bs, and its gate refuses larger batches."""
    more = ["--enable-torch-compile", "--torch-compile-max-bs", "8", "--decode-log-interval", "1"]
    with start_server("baseline", extra_args=more) as server:
        assert tokens(complete(server, 4)) == plain
        assert "cpu graph: True" in server.log_text()
        assert "cpu graph: False" not in server.log_text()
        assert tokens(complete(server, 12)) == plain
        refused = [line for line in server.log_text().splitlines() if "cpu graph: False" in line]
        assert refused
        assert any("#running-req: 12," in line for line in refused)

"""vLLM logs: SpecDecoding lines in every order they had, engine lines, graphs that are sized in tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from eaglediag.probes.evidence.vllm_log import VllmServer, parse_engine_line, parse_spec_line, stamp
from tests.sglang_lines import codes, imported

NOW = (
    "(APIServer pid=1) INFO 05-18 11:19:54 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 3.42, "
    "Accepted throughput: 67.60 tokens/s, Drafted throughput: 83.70 tokens/s, Accepted: 676 tokens, "
    "Drafted: 837 tokens, Per-position acceptance rate: 0.921, 0.828, 0.674, Avg Draft acceptance rate: 80.8%"
)
BEFORE_MAY_2025 = (
    "INFO 04-28 11:19:54 [metrics.py:82] SpecDecoding metrics: Draft acceptance rate: 80.8%, "
    "Mean acceptance length: 2.42, Accepted: 676 tokens, Drafted: 837 tokens, "
    "Per-position acceptance rate: 0.921, 0.828, 0.674"
)
FIRST = "INFO 03-20 11:19:54 metrics.py:82] SpecDecoding metrics: Draft acceptance rate: 80.8%, Accepted: 676 tokens, "
FIRST += "Drafted: 837 tokens"

CONFIG = (
    "(EngineCore_DP0 pid=178) INFO 05-18 11:00:00 [core.py:97] Initializing a V1 LLM engine (v0.11.0) with config: "
    "model='meta/Llama', speculative_config=SpeculativeConfig(method='eagle3', model='draft', num_spec_tokens=3), "
    "tokenizer='meta/Llama', tensor_parallel_size=2, pipeline_parallel_size=1, data_parallel_size=1, "
    "enforce_eager=False, compilation_config={'mode': 3, "
    "'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>, 'cudagraph_capture_sizes': [1, 2, 4, 8, 16, 32]}\n"
)


def engine(second: int, running: int, throughput: float, prompt: float = 0.0, waiting: int = 0) -> str:
    return (
        f"(APIServer pid=1) INFO 05-18 11:{second // 60:02}:{second % 60:02} [loggers.py:127] Engine 000: "
        f"Avg prompt throughput: {prompt:.1f} tokens/s, Avg generation throughput: {throughput:.1f} tokens/s, "
        f"Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: 1.0%, Prefix cache hit rate: 0.0%\n"
    )


def spec(accepted: int, drafted: int, rates: str) -> str:
    return (
        "(APIServer pid=1) INFO 05-18 11:19:54 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 9.99, "
        f"Accepted throughput: 1.00 tokens/s, Drafted throughput: 1.00 tokens/s, Accepted: {accepted} tokens, "
        f"Drafted: {drafted} tokens, Per-position acceptance rate: {rates}, Avg Draft acceptance rate: 1.0%\n"
    )


def test_the_length_is_recomputed_with_the_bonus_token() -> None:
    line = parse_spec_line(NOW)
    assert line is not None
    assert line.drafts == 279
    assert line.accept_length == pytest.approx(1 + 676 / 279)
    assert line.printed_without_bonus is False


def test_before_may_2025_the_printed_length_left_the_bonus_token_out() -> None:
    line = parse_spec_line(BEFORE_MAY_2025)
    assert line is not None
    assert line.accept_length == pytest.approx(3.42, abs=0.01)
    assert line.printed_length == 2.42
    assert line.printed_without_bonus is True


def test_the_first_lines_need_the_number_of_draft_tokens_from_elsewhere() -> None:
    without, told = parse_spec_line(FIRST), parse_spec_line(FIRST, positions=3)
    assert without is not None
    assert told is not None
    assert without.accept_length is None
    assert told.accept_length == pytest.approx(1 + 676 / 279)


def test_per_position_rates_are_unconditional() -> None:
    """They add up to accepted / drafts, and their ratios are the conditional rates."""
    line = parse_spec_line(NOW)
    assert line is not None
    assert sum(line.by_position) == pytest.approx(line.accepted / (line.drafts or 0), abs=0.01)


@pytest.mark.parametrize("cut", [40, 80, 120, 160])
def test_torn_lines(cut: int) -> None:
    assert parse_spec_line(NOW[:cut]) is None
    assert parse_engine_line(engine(0, 1, 100.0)[:cut]) is None


def test_times_have_no_year() -> None:
    first, second = stamp("INFO 01-01 00:00:10 x"), stamp("(APIServer pid=1) INFO 01-01 00:00:20 [x.py:1] y")
    assert (first, second) == (10.0, 20.0)
    assert stamp("INFO 13-45 99:00:00 x") is None


def test_the_engine_line_with_the_arguments() -> None:
    server = VllmServer()
    server.take(CONFIG)
    assert server.release == "0.11.0"
    assert server.positions == 3
    assert server.capture_sizes == [1, 2, 4, 8, 16, 32]
    assert server.config["cudagraph_mode"] == "FULL_AND_PIECEWISE"


def test_a_speculating_server(tmp_path: Path) -> None:
    # 4 requests, tau 2.5, 25 ms a cycle: 400 tokens/s; in ten seconds 400 cycles, 1600 passes, 2400 accepted
    interval = spec(2400, 4800, "0.750, 0.500, 0.250")
    text = CONFIG + engine(0, 4, 99.0, prompt=50.0) + interval
    text += "".join(engine(10 * (i + 1), 4, 400.0) + interval for i in range(6))
    capture = imported(tmp_path, text)
    (window,) = capture.windows
    (batch,) = window.ranks[0].batches
    assert (batch.kind, batch.batch_size) == ("cycle", 4)
    assert batch.period_ms.mean == pytest.approx(25.0)
    assert batch.accept is not None
    assert batch.accept.tokens / batch.accept.passes == pytest.approx(2.5)
    assert batch.accept.passes == 6 * 1600
    assert batch.count == 6 * 400
    assert capture.server.engine == "vllm"
    assert capture.server.speculation is not None
    assert capture.server.speculation.max_accept_length == 4
    assert capture.server.tp == 2


def test_a_plain_server(tmp_path: Path) -> None:
    text = CONFIG.replace("SpeculativeConfig(method='eagle3', model='draft', num_spec_tokens=3)", "None")
    text += "".join(engine(10 * i, 2, 100.0) for i in range(4))
    capture = imported(tmp_path, text)
    (batch,) = capture.windows[0].ranks[0].batches
    assert batch.kind == "decode"
    assert batch.period_ms.mean == pytest.approx(20.0)
    assert capture.server.speculation is None


def test_graph_sizes_count_tokens(tmp_path: Path) -> None:
    interval = spec(2400, 4800, "0.750, 0.500, 0.250")
    text = CONFIG + "".join(engine(10 * i, 12, 900.0) + interval for i in range(4))
    capture = imported(tmp_path, text)
    assert capture.server.captured["verify"].unit == "tokens"
    (denial,) = capture.denials
    assert denial.reason == "12 requests x 4 tokens are above the largest captured size, 32"
    (problem,) = [problem for problem in capture.problems if problem.code == "token_sized_graphs"]
    assert "32 are 8 requests of 4 tokens" in problem.message


def test_idle_and_prefill_intervals_are_left_out(tmp_path: Path) -> None:
    text = CONFIG.replace("SpeculativeConfig(method='eagle3', model='draft', num_spec_tokens=3)", "None")
    text += engine(0, 0, 0.0) + engine(10, 2, 5.0) + engine(20, 2, 100.0) + engine(30, 2, 60.0, prompt=500.0)
    capture = imported(tmp_path, text + engine(40, 2, 100.0))
    (batch,) = capture.windows[0].ranks[0].batches
    assert batch.period_ms.mean == pytest.approx(20.0)
    assert "first_lines_left_out" in codes(capture)


def test_downgrades_are_said(tmp_path: Path) -> None:
    warning = (
        "(EngineCore pid=1) WARNING 05-18 11:00:00 [vllm.py:385] Some backend cannot. "
        "Overriding cudagraph_mode to PIECEWISE.\n"
    )
    capture = imported(tmp_path, CONFIG + warning + "".join(engine(10 * i, 2, 100.0) for i in range(4)))
    assert any("PIECEWISE" in problem.message for problem in capture.problems if problem.code == "server_remark")


def test_an_eager_engine_denies_every_graph(tmp_path: Path) -> None:
    text = CONFIG.replace("enforce_eager=False", "enforce_eager=True")
    capture = imported(
        tmp_path, text + "".join(engine(10 * i, 2, 100.0) + spec(9, 9, "0.9, 0.5, 0.1") for i in range(4))
    )
    assert capture.denials[0].reason == "the engine captured no graphs"


def test_keys_do_not_reach_the_capture(tmp_path: Path) -> None:
    text = (
        "(APIServer pid=1) INFO 05-18 11:00:00 [utils.py:233] non-default args: {'api_key': ['sk-secret'], 'seed': 1}\n"
    )
    capture = imported(tmp_path, CONFIG + text + "".join(engine(10 * i, 2, 100.0) for i in range(4)))
    assert "sk-secret" not in capture.model_dump_json()

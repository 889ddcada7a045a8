"""Saved /metrics and /server_info pages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eaglediag.errors import UsageError
from eaglediag.probes.evidence.metrics_page import drafting, parse_metrics, rank_gauges, verified
from eaglediag.probes.evidence.server_info import parse_server_info
from eaglediag.probes.evidence.sglang_args import REDACTED
from eaglediag.probes.evidence.stream import whole
from tests.sglang_lines import codes, imported

H200 = Path(__file__).parents[1] / "data" / "h200"


def vllm(drafts: int, accepted: int, *positions: int) -> str:
    label = 'model_name="m",engine="0"'
    lines = [
        f"vllm:spec_decode_num_drafts_total{{{label}}} {drafts}.0",
        f"vllm:spec_decode_num_draft_tokens_total{{{label}}} {3 * drafts}.0",
        f"vllm:spec_decode_num_accepted_tokens_total{{{label}}} {accepted}.0",
        f"vllm:generation_tokens_total{{{label}}} {drafts + accepted}.0",
    ]
    lines += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{label},position="{i}"}} {count}.0'
        for i, count in enumerate(positions)
    ]
    return "\n".join(lines) + "\n"


def test_h200_page() -> None:
    page = parse_metrics(whole(H200 / "metrics.txt.gz"))
    assert (page.engine, page.model) == ("sglang", "models/target")
    assert page.accept_length == 2.0
    assert page.graph_passes == {"prefill_none": 8, "decode_cuda_graph": 127, "decode_none": 127}
    assert not page.unreadable


def test_a_request_s_first_token_is_not_verifys() -> None:
    """completion_tokens / spec_verify_ct counts the token that prefill made: 3258 / 1629, 27 of them."""
    page = parse_metrics(whole(H200 / "metrics.txt.gz"))
    assert verified(page) == (1629, 3258 - 27)


def test_gauges_say_what_a_decode_line_says() -> None:
    (gauges,) = rank_gauges(parse_metrics(whole(H200 / "metrics.txt.gz")))
    assert (gauges.running, gauges.accept_length, gauges.graph) == (12, 2.0, False)
    assert gauges.period_ms == pytest.approx(1000 * 12 * 2.0 / 592.242, rel=1e-5)
    (idle,) = rank_gauges(parse_metrics('sglang:gen_throughput{tp_rank="0"} 0.0\n'))
    assert idle.period_ms is None
    assert idle.graph is None


def test_gauges_by_data_parallel_rank() -> None:
    page = parse_metrics(
        'sglang:spec_accept_length{dp_rank="0",tp_rank="0"} 2.0\n'
        'sglang:spec_accept_length{dp_rank="0",tp_rank="1"} 9.0\n'
        'sglang:spec_accept_length{dp_rank="1",tp_rank="2"} 3.0\n'
        'sglang:spec_accept_length{dp_rank="2",tp_rank="4"} 0.0\n'
        "sglang:fwd_occupancy NaN\n"
    )
    assert page.accept_length == 2.5
    assert "sglang:fwd_occupancy" not in page.samples


def test_counters_give_the_histogram() -> None:
    counted = drafting(parse_metrics(vllm(100, 150, 90, 50, 10)))
    assert counted is not None
    assert counted.histogram == [10, 40, 40, 10]
    assert sum(counted.histogram) == counted.passes
    assert sum((i + 1) * n for i, n in enumerate(counted.histogram)) == counted.tokens == 250


def test_one_page_is_a_lifetime_and_two_are_a_load(tmp_path: Path) -> None:
    before, after = vllm(100, 50, 30, 15, 5), vllm(300, 450, 210, 155, 85)
    alone = imported(tmp_path, after, names=["after.txt"])
    assert alone.windows[0].accept_length == pytest.approx(1 + 450 / 300)
    assert "lifetime_accept_length" in codes(alone)
    both = imported(tmp_path, after, before, names=["after.txt", "before.txt"])
    assert both.windows[0].accept_length == pytest.approx(1 + 400 / 200)
    assert "lifetime_accept_length" not in codes(both)


@pytest.mark.parametrize("text", ["", "process_cpu_seconds_total 3\n", "garbage { } }\n"])
def test_pages_of_nothing_known(text: str) -> None:
    with pytest.raises(UsageError, match="no metrics of SGLang or vLLM"):
        parse_metrics(text)


def test_a_torn_page_says_which_lines() -> None:
    page = parse_metrics('sglang:num_running_reqs{tp_rank="0"} 3\nsglang:gen_throughput{tp_rank="0"\n')
    assert page.total("sglang:num_running_reqs") == 3
    assert page.unreadable == ['sglang:gen_throughput{tp_rank="0"']


def test_h200_server_info() -> None:
    info = parse_server_info(json.loads(whole(H200 / "server_info.json.gz")))
    assert info.release == "0.5.14"
    (state,) = info.states
    assert state.lifetime_accept_length == 2.0
    assert sorted(state.step_times_s) == [1, 12]
    server = info.server()
    assert server.speculation is not None
    assert server.speculation.max_accept_length == 3
    assert server.captured["verify"].sizes == list(range(1, 9))
    assert server.captured["verify"].method == "server_info"


def test_step_times_without_idle_ones() -> None:
    document = {"model_path": "m", "internal_states": [{"step_time_dict": {"4": [0.010, 0.010, 0.011, 5.0]}}]}
    info = parse_server_info(document)
    (batch,) = info.batches(info.states[0])
    assert batch.period_ms.max == pytest.approx(11.0)
    assert batch.count == 3 * 40


def test_null_accept_lengths_of_data_parallel_ranks(tmp_path: Path) -> None:
    states = [{"avg_spec_accept_length": 2.0}, {"avg_spec_accept_length": None}]
    text = json.dumps({"model_path": "m", "dp_size": 2, "internal_states": states})
    capture = imported(tmp_path, text, names=["info.json"])
    assert {"lifetime_accept_length", "ranks_without_accept_length", "nothing_measured"} <= set(codes(capture))


def test_secrets_are_redacted() -> None:
    info = parse_server_info({"model_path": "m", "api_key": "sk-1", "tokenizer_path": "t", "internal_states": []})
    assert info.arguments["api_key"] == REDACTED
    assert info.arguments["tokenizer_path"] == "t"


def test_what_is_no_server_info() -> None:
    with pytest.raises(UsageError, match="not a /server_info"):
        parse_server_info({"status": "ready"})

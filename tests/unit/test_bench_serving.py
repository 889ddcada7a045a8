"""Benchmark results of both engines' clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eaglediag.analysis.comparison import compare
from eaglediag.capture.model import Capture
from tests.sglang_lines import codes, imported

RESULT: dict[str, Any] = {
    "backend": "sglang",
    "max_concurrency": 4,
    "duration": 10.0,
    "completed": 40,
    "total_output_tokens": 4000,
    "output_throughput": 400.0,
    "mean_itl_ms": 55.0,
    "accept_length": 2.5,
}


def read(folder: Path, *records: dict[str, Any]) -> Capture:
    return imported(folder, "".join(json.dumps(record) + "\n" for record in records), names=["bench.jsonl"])


def test_one_window_a_result(tmp_path: Path) -> None:
    capture = read(tmp_path, RESULT, {**RESULT, "max_concurrency": 8, "output_throughput": 800.0, "duration": 5.0})
    assert [(window.concurrency, window.throughput) for window in capture.windows] == [(4, 400.0), (8, 800.0)]
    assert {window.throughput_method for window in capture.windows} == {"benchmark"}


def test_the_accept_length_is_the_servers_average_over_its_life(tmp_path: Path) -> None:
    capture = read(tmp_path, RESULT)
    assert capture.windows[0].accept_length == 2.5
    assert "lifetime_accept_length" in codes(capture)


def test_inter_token_latencies_are_not_taken(tmp_path: Path) -> None:
    """With speculation several tokens arrive at once: they are no step times."""
    assert not read(tmp_path, RESULT).windows[0].ranks


def test_a_pasted_ratio_is_recomputed(tmp_path: Path) -> None:
    capture = read(tmp_path, {**RESULT, "output_throughput": 900.0})
    assert capture.windows[0].throughput == 400.0
    assert "ratio_mismatch" in codes(capture)


def test_an_open_load_is_of_no_concurrency(tmp_path: Path) -> None:
    capture = read(tmp_path, {**RESULT, "max_concurrency": None})
    assert capture.windows[0].concurrency is None
    assert "open_load" in codes(capture)


def test_details_become_requests(tmp_path: Path) -> None:
    details = {
        "input_lens": [8, 8],
        "output_lens": [3, 0],
        "ttfts": [0.5, 0.0],
        "itls": [[0.1, 0.2], []],
        "errors": ["", "boom"],
    }
    (window,) = read(tmp_path, {**RESULT, **details}).windows
    (request,) = window.requests
    assert (request.completion_tokens, request.prompt_tokens) == (3, 8)
    assert request.latency_ms == pytest.approx(800.0)
    assert window.failed_requests == 1


def test_vllm_counts_the_runs_own_drafts(tmp_path: Path) -> None:
    record = {
        **RESULT,
        "model_id": "m",
        "date": "20260102-120000",
        "num_prompts": 42,
        "spec_decode_num_drafts": 1000,
        "spec_decode_accepted_tokens": 1500,
        "spec_decode_acceptance_length": 9.9,
    }
    record.pop("accept_length")
    (tmp_path / "result.json").write_text(json.dumps(record, indent=2))
    capture = imported(tmp_path, json.dumps(record, indent=2), names=["result.json"])
    (window,) = capture.windows
    assert window.accept_length == 2.5
    assert window.failed_requests == 2
    assert window.started == 1767355200.0
    assert "lifetime_accept_length" not in codes(capture)
    assert capture.server.engine == "vllm"


@pytest.mark.parametrize("date", ["99990101-000000", "00010101-000000", "20261329-000000", 20260102])
def test_a_date_that_no_result_is_from(tmp_path: Path, date: object) -> None:
    (window,) = imported(tmp_path, json.dumps({**RESULT, "date": date}), names=["bench.jsonl"]).windows
    assert window.started == 0.0


def test_the_printed_table(tmp_path: Path) -> None:
    table = (
        "============ Serving Benchmark Result ============\n"
        "Max request concurrency:                 4\n"
        "Successful requests:                     40\n"
        "Benchmark duration (s):                  10.00\n"
        "Total generated tokens:                  4000\n"
        "Output token throughput (tok/s):         400.00\n"
        "Accept length:                           2.50\n"
    )
    (window,) = imported(tmp_path, "some shell output\n" + table, names=["out.txt"]).windows
    assert (window.concurrency, window.throughput, window.accept_length) == (4, 400.0, 2.5)


def test_lines_that_are_no_result_are_counted(tmp_path: Path) -> None:
    capture = imported(tmp_path, json.dumps(RESULT) + "\n" + json.dumps(RESULT)[:50] + "\n", names=["bench.jsonl"])
    assert len(capture.windows) == 1
    assert capture.source.unparsed_lines == 1


def test_results_of_both_arms_compare(tmp_path: Path) -> None:
    plain = {**RESULT, "accept_length": None}
    base = imported(tmp_path, json.dumps(plain), names=["a.jsonl"])
    info = {"model_path": "m", "speculative_algorithm": "EAGLE3", "speculative_num_steps": 3, "internal_states": []}
    faster = {**RESULT, "total_output_tokens": 5000, "output_throughput": 500.0, "server_info": info}
    other = imported(tmp_path, json.dumps(faster), names=["b.jsonl"])
    (load,) = compare(base, other).loads
    assert load.speedup.value == pytest.approx(1.25)
    assert load.break_even is not None
    assert load.break_even.break_even_accept_length == pytest.approx(2.0)

"""Garbage, torn and mutated logs: no crash, no hang, no silent nonsense."""

from __future__ import annotations

import contextlib
import gzip
import json
import math
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eaglediag.analysis.launch_lint import lint
from eaglediag.capture.model import Capture
from eaglediag.errors import UsageError
from eaglediag.probes.evidence import sglang_evidence, sglang_log, vllm_evidence
from eaglediag.probes.evidence.assemble import assemble, read
from eaglediag.probes.evidence.metrics_page import parse_metrics
from eaglediag.probes.evidence.server_info import parse_server_info
from eaglediag.probes.evidence.sglang_import import SglangLog
from eaglediag.probes.evidence.vllm_evidence import VllmLog
from tests.sglang_lines import EAGLE3, decode, prefill, server_args, steady

H200 = Path(__file__).parents[1] / "data" / "h200"


@lru_cache
def recorded() -> tuple[str, ...]:
    with gzip.open(H200 / "h200x1-eagle.log.gz", "rt", encoding="utf-8") as lines:
        return tuple(line.rstrip("\n") for line in lines)


def imported(text: str) -> Capture:
    log = SglangLog()
    log.feed(text)
    log.finish()
    return assemble([sglang_evidence.evidence(log, ["x"])], "arm")


def plausible(capture: Capture) -> None:
    """What is measured is finite, adds up and validates."""
    again = Capture.model_validate_json(capture.model_dump_json())
    for window in again.windows:
        for rank in window.ranks:
            for batch in rank.batches:
                assert batch.batch_size > 0
                assert 0 < batch.period_ms.min <= batch.period_ms.p50 <= batch.period_ms.max < math.inf
                assert batch.period_ms.min <= batch.period_ms.mean * (1 + 1e-9)
                assert batch.period_ms.mean <= batch.period_ms.max * (1 + 1e-9)
                assert sum(batch.blocks.steps) == batch.count
                if batch.accept:
                    assert sum(batch.blocks.passes) == batch.accept.passes == batch.count * batch.batch_size


mutations = st.lists(
    st.tuples(
        st.sampled_from(["cut", "glue", "swap", "flip", "drop", "double", "tear"]),
        st.integers(0, 10_000),
        st.integers(0, 400),
        st.characters(),
    ),
    max_size=30,
)


def mutated(lines: list[str], changes: list[tuple[str, int, int, str]]) -> str:
    for kind, at, column, char in changes:
        i = at % len(lines)
        line = lines[i]
        column = column % (len(line) + 1)
        if kind == "cut":
            lines[i] = line[:column]
        elif kind == "glue" and i + 1 < len(lines):
            lines[i : i + 2] = [line + lines[i + 1]]
        elif kind == "swap":
            j = (at * 7 + column) % len(lines)
            lines[i], lines[j] = lines[j], lines[i]
        elif kind == "flip":
            lines[i] = line[:column] + char + line[column + 1 :]
        elif kind == "drop" and len(lines) > 1:
            del lines[i]
        elif kind == "double":
            lines.insert(i, line)
        elif kind == "tear" and i + 1 < len(lines):
            # two writers: half of one record, all of another, the other half
            lines[i : i + 2] = [line[:column] + lines[i + 1], line[column:]]
    return "\n".join(lines) + "\n"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mutations)
def test_mutated_recordings(changes: list[tuple[str, int, int, str]]) -> None:
    plausible(imported(mutated(list(recorded()), changes)))


@settings(max_examples=100, deadline=None)
@given(mutations)
def test_mutated_lines_of_several_ranks(changes: list[tuple[str, int, int, str]]) -> None:
    text = server_args(**EAGLE3) + steady(10, 4, 6.0, 2.3, rank=" DP0 TP0") + steady(99, 4, 6.0, 2.3, rank=" DP1 TP1")
    plausible(imported(mutated(text.splitlines(), changes)))


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=400))
def test_any_text_is_no_crash(text: str) -> None:
    for line in text.splitlines():
        sglang_log.parse_line(line)
    log = VllmLog()
    log.feed(text)
    log.finish()
    assemble([vllm_evidence.evidence(log, ["x"])], "arm")
    plausible(imported(text))


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(
        ["Decode batch", "Prefill batch", "Capture ", "server_args=", "Capturing ", "Engine startup timings"]
    ),
    st.text(alphabet=" ,.:#[]()={}'\"-0123456789abcdeTP\n\\%", max_size=200),
)
def test_a_mark_and_any_text(mark: str, text: str) -> None:
    for line in (mark + text).splitlines():
        sglang_log.parse_line(line)
    plausible(imported(mark + text))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 10**12), st.integers(0, 10**12), st.floats(0, 1e9), st.floats(0, 1e6), st.booleans()),
        max_size=40,
    )
)
def test_any_numbers(lines: list[tuple[int, int, float, float, bool]]) -> None:
    text = server_args(**EAGLE3)
    for i, (running, token, throughput, length, first) in enumerate(lines):
        text += prefill(i, running % 3) if first else ""
        text += decode(i, running, token, throughput, length) * 2
    plausible(imported(text))


LONG = 200_000


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "line",
    [
        "Decode batch, #running-req: 1, #token: 1, " + "a: 1, " * LONG,
        "Decode batch, #running-req: 1, #token: 1, " + "a" * LONG,
        "Decode batch" * LONG,
        "[2026-01-02 12:00:00] " * LONG + "Decode batch",
        "Prefill batch, #new-seq: 1, #new-token: 1, #cached-token: 1" + ", a: 1" * LONG,
        "Capture " + "draft " * LONG,
        "Capture " * LONG,
        "Capturing batches:" * LONG,
        "Capturing batches (" * LONG,
        "Disable " * LONG,
        "server_args=" + "(" * LONG,
        "server_args=ServerArgs(a=" + "-" * LONG + "1)",
        "server_args=" * LONG,
        "Engine startup timings (s): " + "cuda_graph={" * LONG,
        "SpecDecoding metrics: " + "Accepted: " * LONG,
        "LLM engine (v0.11.0) " + "SpeculativeConfig(" * LONG,
        "cudagraph_mode " * LONG,
        "Per-position acceptance rate: " + "0.1, " * LONG,
    ],
    ids=lambda line: line[:24],
)
def test_long_lines_take_no_long_time(line: str) -> None:
    sglang_log.parse_line(line)
    log = VllmLog()
    log.feed(line + "\n")
    log.finish()
    plausible(imported(line + "\n" + steady(10, 2, 5.0)))


def test_the_quick_reading_of_a_line_agrees_with_the_thorough_one() -> None:
    """Feeding a log takes shortcuts; every line that takes one must read as `parse_line` reads it."""
    quick, thorough = SglangLog(), SglangLog()
    text = "\n".join(recorded()) + "\n"
    quick.feed(text)
    for line in recorded():
        for event in sglang_log.parse_line(line):
            thorough.take(event)
    quick.finish()
    thorough.finish()
    a, b = sglang_evidence.evidence(quick, ["x"]), sglang_evidence.evidence(thorough, ["x"])
    assert [window.model_dump() for window in a.windows] == [window.model_dump() for window in b.windows]
    assert a.server == b.server


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=300) | st.binary(max_size=300).map(lambda data: data.decode("latin-1")))
def test_any_metrics_page(text: str) -> None:
    try:
        page = parse_metrics(text + '\nsglang:num_running_reqs{tp_rank="0"} 1\n')
    except UsageError:
        return
    assert page.total("sglang:num_running_reqs") is not None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=150, deadline=None)
@given(json_values, json_values, json_values)
def test_any_server_info(states: object, times: object, size: object) -> None:
    document = {
        "model_path": "m",
        "tp_size": size,
        "speculative_algorithm": size,
        "cuda_graph_config": times,
        "internal_states": [states, {"step_time_dict": times, "avg_spec_accept_length": size, "memory_usage": times}],
    }
    info = parse_server_info(document)
    for state in info.states:
        info.batches(state)


@pytest.mark.parametrize("fields", ["duration", "total_output_tokens", "output_throughput", "max_concurrency", "itls"])
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=json_values)
def test_any_benchmark_result(tmp_path: Path, fields: str, value: object) -> None:
    record = {"duration": 1.0, "output_throughput": 2.0, "total_output_tokens": 2, "output_lens": [1], "ttfts": [1.0]}
    path = tmp_path / "b.jsonl"
    path.write_text(json.dumps({**record, fields: value}) + "\n")
    with contextlib.suppress(UsageError):
        assemble(read([path]), "arm")


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200))
def test_any_launch_command(text: str) -> None:
    with contextlib.suppress(UsageError):
        lint("python -m sglang.launch_server " + text, [12])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=600))
def test_any_bytes_are_refused_or_read(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "any"
    path.write_bytes(data)
    with contextlib.suppress(UsageError):
        plausible(assemble(read([path]), "arm"))

"""One line of an SGLang log: every wording, every wrapper around it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from eaglediag.probes.evidence import sglang_log as log
from eaglediag.probes.evidence.sglang_args import REDACTED, parse_server_args
from eaglediag.probes.evidence.sglang_log import Rank

DATA = Path(__file__).parents[1] / "data" / "h200"

PLAIN = "[2026-11-29 16:01:47] Decode batch, #running-req: 1, #token: 173, token usage: 0.00, cuda graph: True, "
PLAIN += "gen throughput (token/s): 341.05, #queue-req: 2"
SPECULATIVE = "[2026-11-29 16:01:47 DP1 TP2 PP3] Decode batch [812], #running-req: 12, #token: 173, token usage: 0.01, "
SPECULATIVE += "accept len: 2.17, accept rate: 0.54, cuda graph: False, gen throughput (token/s): 900.39, #queue-req: 0"


def one(line: str) -> log.Event:
    events = log.parse_line(line)
    assert len(events) == 1, events
    return events[0]


def decode(line: str) -> log.DecodeLine:
    event = one(line)
    assert isinstance(event, log.DecodeLine), event
    return event


def test_plain_decode_line() -> None:
    line = decode(PLAIN)
    assert line == log.DecodeLine(log.Stamp(1795968107.0, Rank()), "", 1, 173, None, None, True, 341.05, 2)


def test_speculative_decode_line_with_ranks_and_iteration() -> None:
    line = decode(SPECULATIVE)
    assert line.stamp.rank == Rank(dp=1, tp=2, pp=3)
    assert (line.running, line.accept_len, line.accept_rate, line.graph) == (12, 2.17, 0.54, False)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # 0.4.6
        (
            "[2025-05-01 10:00:00 TP0] Decode batch. #running-req: 3, #token: 900, token usage: 0.02, "
            "accept len: 2.50, cuda graph: True, gen throughput (token/s): 250.00, #queue-req: 0",
            (3, 900, 2.5, None, True, 250.0, 0),
        ),
        # 0.5.2 to 0.5.8 leave a comma at the end; pre-allocated and retracted are a disaggregated decode server's
        (
            "[2025-09-01 10:00:00] Decode batch. #running-req: 3, #token: 900, token usage: 0.02, accept len: 2.50, "
            "pre-allocated usage: 0.00, #retracted-req: 0, cuda graph: True, gen throughput (token/s): 250.00, "
            "#queue-req: 7, ",
            (3, 900, 2.5, None, True, 250.0, 7),
        ),
        # sliding windows and state-space models name their tokens otherwise
        (
            "[2026-01-01 10:00:00] Decode batch, #running-req: 3, #full token: 900, full token usage: 0.02, "
            "#swa token: 40, swa token usage: 0.10, mamba num: 3, mamba usage: 0.20, npu graph: True, "
            "gen throughput (token/s): 9.00, #queue-req: 0",
            (3, 900, None, None, True, 9.0, 0),
        ),
        # 0.5.16 on
        (
            "[2026-08-01 10:00:00] Decode batch, #running-req: 3, #token: 900, token usage: 0.02, accept len: 3.10, "
            "accept rate: 0.70, cap len: 4.00, block accept len: 3.00, est uncap acc len: 3.20 [3.00, 3.40], "
            "waiting-image-req: 0, cuda graph: True, gen throughput (token/s): 9.00, #queue-req: 0, "
            "est. decode TFLOPS/s (per GPU): 1.00, fwd occupancy: 97.00%",
            (3, 900, 3.1, 0.7, True, 9.0, 0),
        ),
        # before 0.4.5: no graph flag
        (
            "[2025-02-01 10:00:00] Decode batch. #running-req: 3, #token: 900, token usage: 0.02, "
            "gen throughput (token/s): 9.00, #queue-req: 0",
            (3, 900, None, None, None, 9.0, 0),
        ),
    ],
)
def test_decode_lines_of_every_family(line: str, expected: tuple[object, ...]) -> None:
    assert tuple(decode(line))[2:] == expected


@pytest.mark.parametrize(
    ("wrapped", "source"),
    [
        (f"sglang-1  | {PLAIN}", "sglang-1"),
        (f"2026-11-29T16:01:47.123456789Z stderr F {PLAIN}", ""),
        (f"2026-11-29T16:01:47.1Z {PLAIN}", ""),
        (f"(SGLangEngine pid=4242, ip=10.0.0.1) {PLAIN}", "(SGLangEngine pid=4242, ip=10.0.0.1)"),
        (f"Nov 29 16:01:47 gpu01 sglang[4242]: {PLAIN}", "gpu01 sglang[4242]"),
        (f"[pod/llm-0/server] {PLAIN}", "[pod/llm-0/server]"),
        (f"\x1b[32m{PLAIN}\x1b[0m", ""),
        (PLAIN + "\r", ""),
    ],
)
def test_wrappers_do_not_matter(wrapped: str, source: str) -> None:
    line = decode(wrapped)
    assert line[2:] == decode(PLAIN)[2:]
    assert line.stamp == decode(PLAIN).stamp
    assert line.source.strip("[]") == source.strip("[]")


def test_docker_json_lines() -> None:
    wrapped = json.dumps({"log": PLAIN + "\n", "stream": "stderr", "time": "2026-11-29T16:01:47Z"})
    assert decode(wrapped)[2:] == decode(PLAIN)[2:]
    arguments = '[2026-11-29 16:01:47] server_args=ServerArgs(model_path="m", tp_size=2)\n'
    event = one(json.dumps({"log": arguments, "stream": "stderr"}))
    assert isinstance(event, log.ServerArgs)
    assert event.arguments == {"model_path": "m", "tp_size": 2}


def test_milliseconds_in_the_prefix() -> None:
    assert decode(PLAIN.replace(":47]", ":47.250]")).stamp.time == 1795968107.25


def test_two_records_glued_together_are_both_read() -> None:
    events = log.parse_line(PLAIN + SPECULATIVE)
    assert [type(event).__name__ for event in events] == ["DecodeLine", "DecodeLine"]
    assert [event.running for event in events if isinstance(event, log.DecodeLine)] == [1, 12]


def test_a_torn_record_is_named_and_the_other_read() -> None:
    torn, whole = log.parse_line(PLAIN[:60] + SPECULATIVE)
    assert isinstance(torn, log.Unreadable)
    assert isinstance(whole, log.DecodeLine)
    assert whole.running == 12


def test_a_progress_bar_glued_to_a_record() -> None:
    line = "Capturing batches (bs=8 avail_mem=39.02 GB):   0%|          | 0/8 [00:00<?, ?it/s]" + PLAIN
    progress, found = log.parse_line(line)
    assert progress == log.CaptureProgress(8, "requests", 0, 8)
    assert isinstance(found, log.DecodeLine)


@pytest.mark.parametrize(
    ("line", "running", "graph"),
    [
        ("[2025-05-01 10:00:00] Prefill batch. #new-seq: 1, #new-token: 64, #cached-token: 0, token usage: 0.00, "
         "#running-req: 4, #queue-req: 0", 4, None),
        ("[2026-11-29 16:01:47] Prefill batch, #new-seq: 1, #new-token: 2, #cached-token: 62, token usage: 0.00, "
         "#running-req: 0, #queue-req: 0, #pending-token: 0, cuda graph: False, input throughput (token/s): 0.47",
         0, False),
        ("[2025-09-01 10:00:00] Prefill batch. #new-seq: 1, #new-token: 64, #cached-token: 0, token usage: 0.00, "
         "#unbootstrapped-req: 0, #queue-req: 0, #transferring-req: 0, input throughput (token/s): 1.00, ", None, None),
    ],
)  # fmt: skip
def test_prefill_lines(line: str, running: int | None, graph: bool | None) -> None:
    event = one(line)
    assert isinstance(event, log.PrefillLine)
    assert (event.running, event.graph) == (running, graph)


@pytest.mark.parametrize(
    ("message", "phase", "draft", "sizes"),
    [
        ("Capture cuda graph begin. This can take up to several minutes. avail mem=10.00 GB", "decode", False, None),
        ("Capture draft cuda graph begin. This can take up to several minutes. avail mem=1.00 GB", "draft", True, None),
        ("Capture draft extend cuda graph begin (step 1). This can take a while.", "draft_extend", True, None),
        ("Capture piecewise CUDA graph begin. avail mem=10.00 GB", "extend", False, None),
        ("Capture target verify CUDA graph begin. backend=full, num_tokens_per_bs=3, bs=[1, 2], avail mem=3.0 GB",
         "verify", False, [1, 2]),
        ("Capture draft decode CUDA graph begin. backend=full, num_tokens_per_req=1, bs=[4], avail mem=3.0 GB",
         "draft", True, [4]),
        ("Capture target prefill CUDA graph begin. backend=tc_piecewise, num_tokens=[4, 8], avail mem=97.14 GB",
         "extend", False, [4, 8]),
    ],
)  # fmt: skip
def test_capture_begins(message: str, phase: str, draft: bool, sizes: list[int] | None) -> None:
    event = one(f"[2026-11-29 16:01:47 TP0] {message}")
    assert isinstance(event, log.CaptureBegin)
    assert (event.phase, event.draft, event.sizes) == (phase, draft, sizes)
    assert event.unit == ("tokens" if phase == "extend" else "requests")


def test_capture_ends() -> None:
    new = one(
        "[2026-11-29 16:01:47] Capture target verify CUDA graph end. bs=[1, 2], elapsed=34.12 s, mem usage=0.07 GB."
    )
    assert isinstance(new, log.CaptureEnd)
    assert (new.seconds, new.memory_gb, new.sizes) == (34.12, 0.07, [1, 2])
    old = one(
        "[2025-05-01 10:00:00] Capture draft cuda graph end. Time elapsed: 3.10 s. mem usage=0.50 GB. avail mem=9 GB."
    )
    assert isinstance(old, log.CaptureEnd)
    assert (old.phase, old.seconds, old.memory_gb) == ("draft", 3.1, 0.5)


def test_sizes_on_their_own_line() -> None:
    event = one("[2025-05-01 10:00:00] Capture cuda graph bs [1, 2, 4, 8]")
    assert isinstance(event, log.CaptureSizes)
    assert event.sizes == [1, 2, 4, 8]


def test_startup_timings() -> None:
    event = one(
        "[2026-11-01 10:00:00] Engine startup timings (s): load_weight=1.20, kv_cache_allocation=0.10, "
        "scheduler_e2e=9.00, cuda_graph={prefill=0.00, target_verify=3.10, draft_extend=0.00}, tokenizer_e2e=10.00"
    )
    assert isinstance(event, log.StartupTimings)
    assert event.parts == {"load_weight": 1.2, "kv_cache_allocation": 0.1, "scheduler_e2e": 9.0, "tokenizer_e2e": 10.0}
    assert event.graphs == {"prefill": 0.0, "target_verify": 3.1, "draft_extend": 0.0}


@pytest.mark.parametrize("year", ["0026", "1969", "2199", "9026"])
def test_a_date_that_no_log_is_from_is_no_time(year: str) -> None:
    event = one(f"[{year}-11-29 16:01:22 TP1] The server is fired up and ready to roll!")
    assert isinstance(event, log.Ready)
    assert event.stamp == log.Stamp(None, log.Rank(tp=1))


def test_ready_disabled_and_trouble() -> None:
    assert isinstance(one("[2026-11-29 16:01:22] The server is fired up and ready to roll!"), log.Ready)
    disabled = one("[2026-11-29 16:01:22] Disable prefill CUDA graph because the capture size is not set")
    assert isinstance(disabled, log.GraphDisabled)
    assert isinstance(
        one("[2026-11-29 16:01:22 TP0] Scheduler hit an exception: Traceback (most recent call last):"), log.Trouble
    )
    assert isinstance(one("[2026-11-29 16:01:22] Capture cuda graph failed: CUDA out of memory"), log.Trouble)


@pytest.mark.parametrize("release", ["0.4.6.post5", "0.5.2", "0.5.9", "0.5.10.post1"])
def test_accept_rate_counted_the_bonus_token(release: str) -> None:
    assert log.accept_rate_with_bonus(release)


@pytest.mark.parametrize("release", ["0.5.12", "0.5.14", "0.5.23", "0.6.0"])
def test_accept_rate_no_longer_counts_the_bonus_token(release: str) -> None:
    assert not log.accept_rate_with_bonus(release)


def test_arguments_as_a_dataclass_and_as_a_dict() -> None:
    dataclass = (
        "ServerArgs(model_path='m', api_key='sk-1', config=Graphs(decode=Phase(bs=[1, 2])), kind=<Kind.A: 'a'>, x=-1.5)"
    )
    expected = {
        "model_path": "m",
        "api_key": REDACTED,
        "config": {"decode": {"bs": [1, 2]}},
        "kind": "<Kind.A: 'a'>",
        "x": -1.5,
    }
    assert parse_server_args(dataclass) == expected
    assert parse_server_args("{'model_path': 'm', 'admin_api_key': None, 'tokenizer_path': 't'}") == {
        "model_path": "m",
        "admin_api_key": None,
        "tokenizer_path": "t",
    }


@pytest.mark.parametrize("text", ["ServerArgs(model_path='m', tok", "{'a': ", "[1, 2]", "", "ServerArgs(" * 5000])
def test_arguments_that_are_cut_off(text: str) -> None:
    with pytest.raises(ValueError, match="server_args"):
        parse_server_args(text)


def test_every_line_of_the_recorded_logs_is_understood() -> None:
    for path in sorted(DATA.glob("*.log.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            events = [event for line in lines for event in log.parse_line(line.rstrip("\n"))]
        assert not [event for event in events if isinstance(event, log.Unreadable)], path
        arguments = [event for event in events if isinstance(event, log.ServerArgs)]
        assert [event.arguments["decode_log_interval"] for event in arguments] == [40]

"""The line that says what was raised, out of tracebacks as loggers, wrappers and several ranks write them."""

from __future__ import annotations

import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglediag.probes.evidence.exceptions import LONGEST_TRACEBACK, OPENING, Exceptions
from eaglediag.probes.evidence.sglang_import import SglangLog
from eaglediag.probes.evidence.vllm_evidence import VllmLog
from eaglediag.probes.progress import silent
from eaglediag.probes.server import ServerLog


def raised(text: str) -> list[str]:
    exceptions = Exceptions()
    return [one for one in map(exceptions.take, text.splitlines()) if one]


FRAMES = '  File "/srv/scheduler.py", line 66, in run\n    raise ValueError(\n          ^^^^^^^^^^^\n'


@pytest.mark.parametrize(
    "before",
    [
        "",
        "[2026-11-29 16:01:22 TP0] Scheduler hit an exception: ",
        "\x1b[36m(RayWorker pid=616)\x1b[0m ",
        "sglang-1  | ",
    ],
)
def test_whatever_stands_before_the_traceback(before: str) -> None:
    assert raised(f"{before}{OPENING}\n{FRAMES}ValueError: no such port: 65589") == ["ValueError: no such port: 65589"]


@pytest.mark.parametrize(
    "before",
    [
        "(APIServer pid=1179246) ",
        "(EngineCore_DP0 pid=9) ERROR 11-29 16:01:22 [core.py:708] ",
        "Nov 29 18:42:18 host vllm[8052]: (APIServer pid=8052) ",
        "2026-06-27 12:57:51,690 - __main__ - INFO - ",
        "\x1b[1;36m(APIServer pid=1)\x1b[0;0m ",
        "vllm-1  | ",
    ],
)
def test_a_logger_that_writes_before_every_line(before: str) -> None:
    text = f"{OPENING}\n{FRAMES}RuntimeError: Engine core initialization failed"
    assert raised("\n".join(before + line for line in text.splitlines())) == [
        "RuntimeError: Engine core initialization failed"
    ]


def test_docker_s_json_file() -> None:
    lines = [OPENING, *FRAMES.splitlines(), "\\u001b[31mKeyError: 'bs'"]
    escaped = [line.replace('"', '\\"') for line in lines]
    text = "\n".join(f'{{"log":"{line}\\n","stream":"stderr","time":"2026-11-29T16:01:22Z"}}' for line in escaped)
    assert raised(text) == ["KeyError: 'bs'"]


@pytest.mark.parametrize(
    "line", ["KeyboardInterrupt", "queue.Empty", "torch.OutOfMemoryError: CUDA out of memory.", "zmq.error.Again: busy"]
)
def test_any_exception_s_name(line: str) -> None:
    assert raised(f"{OPENING}\n{FRAMES}{line}") == [line]


def test_other_writers_lines_in_between() -> None:
    between = "[2026-11-29 16:01:22 TP1] Load weight begin. avail mem=100 GB\nINFO:     Shutting down\n"
    assert raised(f"{OPENING}\n{FRAMES}{between}ValueError: x") == ["ValueError: x"]


def test_a_chain_gives_each() -> None:
    try:
        try:
            raise OSError("the first")
        except OSError:
            raise ValueError("the second\nin two lines")  # noqa: B904
    except ValueError:
        text = traceback.format_exc()
    assert raised(text) == ["OSError: the first", "ValueError: the second"]


def test_only_in_a_traceback() -> None:
    assert raised("ValueError: quoted by somebody\nKeyError") == []


def test_an_endless_one_is_given_up() -> None:
    assert raised(f"{OPENING}\n{'  more' * 3}\n" + "  frame\n" * LONGEST_TRACEBACK + "ValueError: late") == []


@given(st.lists(st.text(max_size=200) | st.just(OPENING), max_size=20))
def test_any_lines(lines: list[str]) -> None:
    exceptions = Exceptions()
    for line in lines:
        exceptions.take(line)


# -- who uses it -------------------------------------------------------------------------------------------------

TEXT = (
    f"[2026-11-29 16:01:22 TP0] Scheduler hit an exception: {OPENING}\n"
    f"{FRAMES}torch.OutOfMemoryError: CUDA out of memory\n"
)


def test_an_imported_sglang_log() -> None:
    read = SglangLog()
    read.feed(TEXT + TEXT)
    read.finish()
    assert read.launches[-1].trouble == {"torch.OutOfMemoryError: CUDA out of memory": 2}


def test_an_imported_log_that_ends_too_early() -> None:
    cut = TEXT.rpartition("torch")[0]
    sglang, vllm = SglangLog(), VllmLog()
    sglang.feed(cut)
    sglang.finish()
    vllm.feed(cut)
    vllm.finish()
    assert list(sglang.launches[-1].trouble) == vllm.server.trouble == ["a traceback whose end is not in the log"]


def test_an_imported_vllm_log() -> None:
    read = VllmLog()
    read.feed("".join(f"(EngineCore pid=9) ERROR 11-29 16:01:22 [core.py:708] {line}\n" for line in TEXT.splitlines()))
    read.finish()
    assert read.server.trouble == ["torch.OutOfMemoryError: CUDA out of memory"]


def server_log(text: str, ready: bool) -> ServerLog:
    log = ServerLog(silent)
    log.ready = ready
    for line in text.splitlines():
        log.add(line)
    return log


@pytest.mark.parametrize("ready", [False, True])
def test_why_a_server_ended(ready: bool) -> None:
    assert server_log(TEXT, ready).why == "torch.OutOfMemoryError: CUDA out of memory"


def test_why_a_server_ended_by_a_consequence() -> None:
    log = server_log(f"{TEXT}{OPENING}\n{FRAMES}EOFError\n", False)
    assert log.why == "torch.OutOfMemoryError: CUDA out of memory; then EOFError"


def test_why_a_server_ended_among_many_exceptions() -> None:
    text = "".join(
        f"{OPENING}\n{FRAMES}{one}\n" for one in ["ImportError: a", "OSError: b", "C1Error", "OSError: b", "EOFError"]
    )
    assert server_log(text, False).why == "ImportError: a; then OSError: b; then EOFError"


def test_why_a_server_ended_without_a_traceback() -> None:
    assert server_log("warming up\nlaunch_server.py: error: unrecognized arguments: --x\nbye\n", False).why == (
        "launch_server.py: error: unrecognized arguments: --x"
    )
    assert server_log("", False).why == "it printed nothing"

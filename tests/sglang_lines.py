"""SGLang log lines as a server of 0.5.14 writes them, for tests that need logs of their own making."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from eaglediag.capture.model import Capture
from eaglediag.probes.evidence.assemble import assemble, read


def decode(
    second: int,
    running: int,
    token: int,
    throughput: float,
    accept_len: float | None = None,
    *,
    accept_rate: float | None = None,
    graph: bool = True,
    rank: str = "",
) -> str:
    """A decode line, `second` seconds after noon."""
    accept = "" if accept_len is None else f"accept len: {accept_len:.2f}, "
    accept += "" if accept_rate is None else f"accept rate: {accept_rate:.2f}, "
    return (
        f"[2026-01-02 {stamp(second)}{rank}] Decode batch, #running-req: {running}, #token: {token}, "
        f"token usage: 0.01, {accept}cuda graph: {graph}, gen throughput (token/s): {throughput:.2f}, #queue-req: 0\n"
    )


def prefill(second: int, running: int, rank: str = "") -> str:
    """A prefill line beside `running` decoding requests."""
    return (
        f"[2026-01-02 {stamp(second)}{rank}] Prefill batch, #new-seq: 1, #new-token: 64, #cached-token: 0, "
        f"token usage: 0.00, #running-req: {running}, #queue-req: 0, #pending-token: 0, cuda graph: False, "
        "input throughput (token/s): 14.12\n"
    )


def server_args(second: int = 0, **arguments: Any) -> str:
    """The line with the arguments; `decode_log_interval` is 40."""
    shown = ", ".join(f"{name}={value!r}" for name, value in {"decode_log_interval": 40, **arguments}.items())
    return f"[2026-01-02 {stamp(second)}] server_args=ServerArgs({shown})\n"


EAGLE3: dict[str, Any] = {
    "speculative_algorithm": "EAGLE3",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}


def steady(
    start: int,
    running: int,
    step_ms: float,
    accept_len: float | None = None,
    *,
    lines: int = 8,
    rank: str = "",
    graph: bool = True,
) -> str:
    """A load at one batch size from idle: one prefill, the first line with its idle time inside, then `lines` lines."""
    emitted = 1.0 if accept_len is None else accept_len
    throughput = 1000 * running * emitted / step_ms
    text = prefill(start, 0, rank) + decode(start + 1, running, 100, 1.5, accept_len, graph=graph, rank=rank)
    for i in range(lines):
        token = 100 + round((i + 1) * 40 * running * emitted)
        text += decode(start + 2 + i, running, token, throughput, accept_len, graph=graph, rank=rank)
    return text


def stamp(second: int) -> str:
    return f"{12 + second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"


def imported(folder: Path, *texts: str, names: Iterable[str] = ()) -> Capture:
    """The capture made from files that hold these texts."""
    named = list(names) or [f"{number}.log" for number in range(len(texts))]
    paths = [folder / name for name in named]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text, encoding="utf-8")
    return assemble(read(paths), "arm")


def codes(capture: Capture) -> list[str]:
    """The codes of a capture's problems."""
    return [problem.code for problem in capture.problems]

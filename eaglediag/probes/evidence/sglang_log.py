"""One line of an SGLang server log, as typed events. Releases 0.4.6 to 0.5.23.

What stands in front of SGLang's own `[time DPx TPx]` (docker compose, Kubernetes, Ray, journald) is never interpreted,
except that it tells one container or process from another; so no list of such prefixes has to be kept.
A line that two writers tore or glued together yields what can be read of it, and `Unreadable` for the rest.

| event | wording, by release |
|---|---|
| DecodeLine | `Decode batch.` to 0.5.3, `Decode batch,` after; `accept rate` from 0.5.4; graph flag from 0.4.5 |
| PrefillLine | the graph flag from 0.5.9 |
| CaptureBegin | `Capture draft cuda graph begin.` to 0.5.12, `Capture draft decode CUDA graph begin. ..` after |
| CaptureSizes | `Capture cuda graph bs [..]`, to 0.5.12 |
| CaptureEnd.sizes | from 0.5.23 the target's sizes stand in the end line |
| StartupTimings | from 0.5.18 |
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from eaglediag.capture.model import Phase
from eaglediag.probes.evidence.bare_line import bare
from eaglediag.probes.evidence.sglang_args import parse_server_args
from eaglediag.probes.evidence.sglang_events import (
    CaptureBegin,
    CaptureEnd,
    CaptureProgress,
    CaptureSizes,
    DecodeLine,
    Event,
    GraphDisabled,
    PrefillLine,
    Rank,
    Ready,
    ServerArgs,
    SpeculationChanged,
    Stamp,
    StartupTimings,
    Trouble,
    Unreadable,
    WeightsLoaded,
    WeightsLoading,
)
from eaglediag.probes.evidence.unix_time import unix_time

__all__ = [
    "CaptureBegin",
    "CaptureEnd",
    "CaptureProgress",
    "CaptureSizes",
    "DecodeLine",
    "Event",
    "GraphDisabled",
    "PrefillLine",
    "Rank",
    "Ready",
    "ServerArgs",
    "SpeculationChanged",
    "Stamp",
    "StartupTimings",
    "Trouble",
    "Unreadable",
    "WeightsLoaded",
    "WeightsLoading",
    "parse_line",
]

#: No decode or prefill line is longer, no other record of use either; beyond it nothing is looked at.
LONGEST_BATCH_LINE: Final = 2000
LONGEST_RECORD: Final = 1_000_000
LONGEST_MESSAGE: Final = 20_000

DECODE: Final = "Decode batch"
PREFILL: Final = "Prefill batch"
#: Every line that yields an event contains one of these; a cheap test before any expression is tried.
MARKS: Final = re.compile(
    r"Decode batch|Prefill batch|Capture |Capturing |server_args=|Load weight |ready to roll|tartup timings|"
    r"raph is disabled|isabl\w{1,8} [\w ]{0,80}(?:graph|GRAPH|Graph)|reset to \d+ for speculative|"
    r"for speculative decoding|peculative decoding (?:is )?(?:not|disabled)|Traceback \(most|"
    r"Scheduler hit an exception|out of memory|Killed|rank died|Initialization failed"
)

_NUMBER: Final = r"(\d{1,12}(?:\.\d{1,12})?)"
_COUNT: Final = r"(\d{1,15})"
# `[^,]*, ` is any other field, or part of one: token usage by kind, PD counts, cap len, estimates with a range.
_DECODE_LINE: Final = re.compile(
    rf"Decode batch[.,]?(?: \[\d+\])?[.,]? #running-req: {_COUNT}, #(?:full )?token: {_COUNT}, "
    rf"(?:(?!accept |\w+ graph: |gen )[^,]*, )*(?:accept len: {_NUMBER}, )?(?:accept rate: {_NUMBER}, )?"
    rf"(?:(?!\w+ graph: |gen )[^,]*, )*(?:\w+ graph: (True|False), )?"
    rf"gen throughput \(token/s\): {_NUMBER}(?:, #queue-req: {_COUNT})?"
)
#: What most decode lines look like, for who reads millions: running, token, accept len, accept rate, graph, throughput.
USUAL_DECODE_LINE: Final = re.compile(
    rf"Decode batch[.,] #running-req: {_COUNT}, #token: {_COUNT}, token usage: \d\.\d\d, "
    r"(?:accept len: (\d{1,6}\.\d\d), (?:accept rate: (\d{1,6}\.\d\d), )?)?"
    r"cuda graph: (True|False), gen throughput \(token/s\): (\d{1,12}\.\d\d)(?=, #queue-req: \d)"
)
_PREFILL_LINE: Final = re.compile(
    rf"Prefill batch[.,]?(?: \[\d+\])?[.,]? #new-seq: {_COUNT}, #new-token: {_COUNT}, #cached-token: \d{{1,15}}"
    rf"(?:, (?!#running-req)[^:,]+: [^,]*)*(?:, #running-req: {_COUNT})?"
    rf"(?:, (?!\w+ graph: )[^:,]+: [^,]*)*(?:, \w+ graph: (True|False))?"
)
_USUAL_PREFILL_LINE: Final = re.compile(
    rf"Prefill batch[.,] #new-seq: \d+, #new-token: \d+, #cached-token: \d+, token usage: [\d.]+, "
    rf"#running-req: {_COUNT}, [^[]*$"
)
_STAMP: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:[.,](\d{3}))?((?: [A-Z_]+\d{1,9})*)$")
_RECORD: Final = re.compile(
    r"(?<!^)(?=\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)|(?<=.)(?=Decode batch[.,])|(?<=.)(?=Prefill batch[.,])"
)

_CAPTURE: Final = re.compile(
    r"Capture ((?:[A-Za-z-]{1,20} ){0,6}?)(?:\w{1,20} [Gg]raphs? )?(begin|end)\b(.*)", re.DOTALL
)
_CAPTURE_SIZES: Final = re.compile(r"Capture (?:cuda|cpu|npu) graph (bs|num tokens) \[([\d, ]*)\]")
_PROGRESS: Final = re.compile(
    r"(Capturing|Compiling) (batches|num tokens)(?: \((?:(?:bs|num_tokens)=(\d{1,9}))?[^)]{0,80}\))?:"
    r".{0,120}?(\d{1,9})/(\d{1,9})"
)
_SIZES: Final = re.compile(r"\b(bs|num_tokens)=\[([\d, ]*)\]")
_PER_REQUEST: Final = re.compile(r"num_tokens_per_(?:bs|req)=(\d+)")
_BACKEND: Final = re.compile(r"backend=(\w+)")
_ELAPSED: Final = re.compile(r"(?:elapsed=|Time elapsed: |[Cc]apture in )(\d+(?:\.\d+)?)")
_MEMORY: Final = re.compile(r"mem usage=(-?\d+(?:\.\d+)?)")
_MODEL: Final = re.compile(r"\btype=(\w+)")
_TIMING: Final = re.compile(r"(\w+)=(\d+(?:\.\d+)?)")
_GRAPH_TIMINGS: Final = re.compile(r"cuda_graph=\{([^}]*)\}")

#: What stands between `Capture` and `begin`, whichever words a release chose.
_PHASES: Final[dict[str, tuple[Phase, bool]]] = {
    "": ("decode", False),
    "target decode": ("decode", False),
    "target verify": ("verify", False),
    "target prefill": ("extend", False),
    "prefill": ("extend", False),
    "piecewise": ("extend", False),
    "draft": ("draft", True),
    "draft decode": ("draft", True),
    "draft verify": ("draft", True),
    "draft prefill": ("extend", True),
    "draft extend": ("draft_extend", True),
    "single-CG draft extend": ("draft_extend", True),
    "UNO tree draft": ("draft", True),
    "Frozen-KV MTP draft": ("draft", True),
}


def parse_line(line: str) -> list[Event]:
    """The events in one physical line of a log; empty for a line that says nothing of use. Never raises."""
    line = line[:LONGEST_RECORD]
    if not MARKS.search(line):
        return []
    records = [record for record in _split(bare(line)) if record.strip()]
    return [event for record in records for event in _record(record)]


def decode_line(line: str, start: int) -> DecodeLine | Unreadable:
    """The one decode line in `line`, whose mark stands at `start`."""
    found = _DECODE_LINE.match(line, start, start + LONGEST_BATCH_LINE)
    if found is None:
        return Unreadable(line)
    running, token, accept_len, accept_rate, graph, throughput, queue = found.groups()
    stamp, source = prefix(line, start)
    return DecodeLine(
        stamp,
        source,
        int(running),
        int(token),
        None if accept_len is None else float(accept_len),
        None if accept_rate is None else float(accept_rate),
        None if graph is None else graph == "True",
        float(throughput),
        None if queue is None else int(queue),
    )


def prefill_running(line: str, start: int) -> int | None:
    """The #running-req of a usual prefill line that ends where `line` does; None for any other line."""
    found = _USUAL_PREFILL_LINE.match(line, start)
    return int(found.group(1)) if found else None


def prefill_line(line: str, start: int) -> PrefillLine | Unreadable:
    """The one prefill line in `line`, whose mark stands at `start`."""
    found = _PREFILL_LINE.match(line, start, start + LONGEST_BATCH_LINE)
    if found is None:
        return Unreadable(line)
    new_seq, new_token, running, graph = found.groups()
    stamp, source = prefix(line, start)
    return PrefillLine(
        stamp,
        source,
        int(new_seq),
        int(new_token),
        None if running is None else int(running),
        None if graph is None else graph == "True",
    )


def prefix(line: str, start: int) -> tuple[Stamp, str]:
    """The stamp in the bracket that ends just before `start`, and a name for what stands in front of it."""
    close = line.rfind("]", 0, start)
    open_ = line.rfind("[", 0, close) if close >= 0 else -1
    if open_ < 0:
        return _stamp(""), ""
    return _stamp(line[open_ + 1 : close]), _source(line[:open_]) if open_ else ""


def accept_rate_with_bonus(release: str) -> bool:
    """Whether this release's `accept rate` counts the bonus token: accept length / draft tokens, to 0.5.10."""
    numbers = [int(part) for part in re.findall(r"\d+", release)[:3]]
    return numbers < [0, 5, 11]


@lru_cache(maxsize=4096)
def _stamp(text: str) -> Stamp:
    found = _STAMP.match(text)
    if found is None:
        return Stamp(None, Rank())
    ranks = {name: int(number) for name, number in re.findall(r"([A-Z_]+)(\d+)", found.group(8))}
    rank = Rank(ranks.get("DP", 0), ranks.get("TP", 0), ranks.get("PP", 0))
    time = unix_time(*(int(part) for part in found.groups()[:6]))
    return Stamp(None if time is None else time + int(found.group(7) or 0) / 1000, rank)


_WRITERS: Final = (
    r"^\s*([\w./-]+)\s+\| ",
    r"^\s*(\([^()]*pid=[^()]*\))",
    r"(\S+ [\w./-]+\[\d+\]):\s*$",
    r"^\[(pod/[^\]]+)\]",
)


@lru_cache(maxsize=4096)
def _source(text: str) -> str:
    """A name for the writer: a compose service, a Ray or journald process; times and levels tell nothing apart."""
    for pattern in _WRITERS:
        if found := re.search(pattern, text):
            return found.group(1)
    return ""


def _split(line: str) -> list[str]:
    """The records glued together in one physical line."""
    pieces = _RECORD.split(line)
    joined: list[str] = []
    for piece in pieces:
        # A prefix and the mark behind it belong together, and so do a wrapper's words and the prefix behind them.
        marked = piece.startswith((DECODE, PREFILL)) and joined and joined[-1].rstrip().endswith("]")
        if marked or (joined and not MARKS.search(joined[-1])):
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined


def _record(text: str) -> list[Event]:
    if (start := text.find(DECODE)) >= 0:
        return [decode_line(text, start)]
    if (start := text.find(PREFILL)) >= 0:
        return [prefill_line(text, start)]
    stamp = prefix(text, _message_start(text))[0]
    message = text[_message_start(text) :].strip()
    if not message.startswith("server_args="):
        message = message[:LONGEST_MESSAGE]
    if "Capturing " in message or message.startswith("Compiling "):
        return _progress(message)
    if "Capture " in message:
        return _capture(stamp, message)
    if (start := message.find("server_args=")) >= 0:
        try:
            return [ServerArgs(stamp, parse_server_args(message[start + len("server_args=") :]))]
        except ValueError:
            return [Unreadable(text)] if message.startswith("server_args=") else []
    return _startup(stamp, message)


def _message_start(text: str) -> int:
    """Where the message begins, behind the first prefix that holds a time."""
    found = re.search(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]*\] ", text)
    return found.end() if found else 0


def _progress(message: str) -> list[Event]:
    events: list[Event] = []
    for found in _PROGRESS.finditer(message):
        if found.group(1) == "Capturing":
            unit = "requests" if found.group(2) == "batches" else "tokens"
            size = None if found.group(3) is None else int(found.group(3)[:9])
            events.append(CaptureProgress(size, unit, int(found.group(4)[:9]), int(found.group(5)[:9])))
    return events


def _capture(stamp: Stamp, message: str) -> list[Event]:
    if "failed" in message:
        return [Trouble(stamp, message)]
    if found := _CAPTURE_SIZES.search(message):
        return [CaptureSizes(stamp, _numbers(found.group(2)), "requests" if found.group(1) == "bs" else "tokens")]
    found = _CAPTURE.search(message)
    if found is None:
        return []
    words = found.group(1).strip()
    if words not in _PHASES:
        return [Unreadable(message)]
    phase, draft = _PHASES[words]
    rest = found.group(3)
    sizes = _SIZES.search(rest)
    numbers = _numbers(sizes.group(2)) if sizes else None
    if found.group(2) == "end":
        return [CaptureEnd(stamp, phase, draft, _float(_ELAPSED, rest), _float(_MEMORY, rest), numbers)]
    unit = "tokens" if phase == "extend" or (sizes and sizes.group(1) == "num_tokens") else "requests"
    per_request = _PER_REQUEST.search(rest)
    backend = _BACKEND.search(rest)
    return [
        CaptureBegin(
            stamp,
            phase,
            draft,
            backend.group(1) if backend else "",
            numbers,
            unit,
            int(per_request.group(1)[:9]) if per_request else None,
        )
    ]


def _startup(stamp: Stamp, message: str) -> list[Event]:
    if "Load weight begin" in message:
        return [WeightsLoading(stamp)]
    if "Load weight end" in message:
        model = _MODEL.search(message)
        return [
            WeightsLoaded(stamp, model.group(1) if model else "", _float(_ELAPSED, message), _float(_MEMORY, message))
        ]
    if "fired up and ready to roll" in message:
        return [Ready(stamp)]
    if "tartup timings" in message:
        graphs = _GRAPH_TIMINGS.search(message)
        parts = _GRAPH_TIMINGS.sub("", message)
        return [StartupTimings(stamp, _timings(parts), _timings(graphs.group(1) if graphs else ""))]
    lowered = message.lower()
    if "traceback (most" in lowered or "exception" in lowered or "out of memory" in lowered or "failed" in lowered:
        return [Trouble(stamp, message)]
    if "graph" in lowered and "disabl" in lowered:
        return [GraphDisabled(stamp, message)]
    if "specul" in lowered:
        return [SpeculationChanged(stamp, message)]
    return [Trouble(stamp, message)] if "died" in lowered or "killed" in lowered else []


def _timings(text: str) -> dict[str, float]:
    return {name: float(seconds) for name, seconds in _TIMING.findall(text)}


def _numbers(text: str) -> list[int]:
    return [int(part[:9]) for part in re.findall(r"\d+", text)]


def _float(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    return float(found.group(1)) if found else None

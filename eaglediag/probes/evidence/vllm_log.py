"""A vLLM server log (V1 engine, 0.7 on): engine lines, SpecDecoding lines in every order they had, graphs, arguments.

Both lines come every ten seconds. The engine line's #running is of the moment, its throughput over the interval.
SpecDecoding lines held, in this order,
- 2025-03: Draft acceptance rate, Accepted, Drafted;
- 2025-04: Draft acceptance rate, Mean acceptance length (the bonus token left out), Accepted, Drafted, Per-position;
- 2025-05 on: Mean acceptance length (with it), both throughputs, Accepted, Drafted, Per-position, Avg acceptance rate.

Lengths are never taken as printed: 1 + accepted / drafts, where drafts = drafted tokens / positions, or from the
per-position rates, which are unconditional and so add up to accepted / drafts.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import NamedTuple

from eaglediag.probes.evidence.sglang_args import _OBJECT, REDACTED
from eaglediag.probes.evidence.unix_time import unix_time

MARK = re.compile(
    r"SpecDecoding metrics:|Avg generation throughput:|LLM engine \(v|non-default args:|API server version|"
    r"[Cc]apturing CUDA graph|Graph capturing finished|[Cc][Uu][Dd][Aa]_?[Gg]raph|[Cc]udagraph|enforce.eager|"
    r"EngineDeadError|out of memory"
)
_NUMBER = r"(\d+(?:\.\d+)?)"
_ENGINE_LINE = re.compile(
    rf"(?:Engine (\d+): )?Avg prompt throughput: {_NUMBER} tokens/s, Avg generation throughput: {_NUMBER} tokens/s, "
    rf"Running: (\d+) reqs, Waiting: (\d+) reqs"
)
_LENGTH = re.compile(rf"Mean acceptance length: {_NUMBER}")
_ACCEPTED = re.compile(r"Accepted: (\d+) tokens")
_DRAFTED = re.compile(r"Drafted: (\d+) tokens")
_POSITIONS = re.compile(r"Per-position acceptance rate: (\d\.\d+(?:, \d\.\d+)*)")
_STAMP = re.compile(r"\b(?:INFO|WARNING|ERROR|DEBUG) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b")
_VERSION = re.compile(r"(?:LLM engine \(v|API server version )(\d+\.\d+[\w.+]*)")
_CONFIG = {
    "model": re.compile(r"config: model='([^']*)'"),
    "tensor_parallel_size": re.compile(r"tensor_parallel_size=(\d+)"),
    "pipeline_parallel_size": re.compile(r"pipeline_parallel_size=(\d+)"),
    "data_parallel_size": re.compile(r"data_parallel_size=(\d+)"),
    "enforce_eager": re.compile(r"enforce_eager=(True|False)"),
    "speculative_method": re.compile(r"SpeculativeConfig\(method='([^']*)'"),
    "speculative_model": re.compile(r"SpeculativeConfig\(.{0,400}?\bmodel=(?:'([^']*)')?"),
    "num_speculative_tokens": re.compile(r"SpeculativeConfig\(.{0,400}?\bnum_spec(?:ulative)?_tokens=(\d+)"),
    "cudagraph_mode": re.compile(r"'?cudagraph_mode'?[:=] ?<?(?:CUDAGraphMode\.)?(\w+)"),
    "cudagraph_capture_sizes": re.compile(r"'?cudagraph_capture_sizes'?[:=] ?\[([\d, ]*)\]"),
}
_DOWNGRADE = re.compile(
    r"(?i)overrid\w+ cudagraph_mode|cudagraph_mode.{0,200}not supported|setting cudagraph_mode|"
    r"cudagraphs? (?:is|are) disabled|disabl\w+ (?:full )?cuda ?graph|skipping cuda ?graph"
)


class EngineLine(NamedTuple):
    """Throughput in tokens/s over the interval, requests at its end."""

    time: float | None
    engine: int
    prompt_throughput: float
    gen_throughput: float
    running: int
    waiting: int


class SpecLine(NamedTuple):
    """Drafts over the interval. `drafts` is how many (request, verify) passes drafted; None when it cannot be known.

    `by_position[i]` is the share of passes in which the draft at position i was accepted.
    """

    time: float | None
    accepted: int
    drafted: int
    drafts: float | None
    by_position: tuple[float, ...]
    printed_length: float | None

    @property
    def accept_length(self) -> float | None:
        """Tokens a pass emits, the bonus token included."""
        if self.drafts:
            return 1 + self.accepted / self.drafts
        return None

    @property
    def printed_without_bonus(self) -> bool | None:
        """Whether the printed length leaves the bonus token out; None when nothing was printed or it cannot be told."""
        length = self.accept_length
        if length is None or self.printed_length is None:
            return None
        return abs(self.printed_length - (length - 1)) < abs(self.printed_length - length)


@dataclass
class VllmServer:
    """What a log says of the server; `config` as printed, keys as in the engine's own words."""

    release: str = ""
    config: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, object] = field(default_factory=dict)
    captured: bool = False
    remarks: list[str] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)

    @property
    def positions(self) -> int | None:
        """Draft tokens a pass, from the configuration."""
        value = self.config.get("num_speculative_tokens")
        return int(value) if value else None

    @property
    def capture_sizes(self) -> list[int] | None:
        """The sizes of the graphs, in tokens; empty when there are none, None when the log does not say."""
        if self.config.get("enforce_eager") == "True" or self.config.get("cudagraph_mode") == "NONE":
            return []
        sizes = self.config.get("cudagraph_capture_sizes")
        return None if sizes is None else sorted(int(size[:9]) for size in re.findall(r"\d+", sizes))

    def take(self, line: str) -> None:
        """Take a line that is neither an engine line nor a SpecDecoding line."""
        if found := _VERSION.search(line):
            self.release = found.group(1)
        if "LLM engine (v" in line:
            for name, pattern in _CONFIG.items():
                if (value := pattern.search(line)) and (text := next(filter(None, value.groups()), None)) is not None:
                    self.config[name] = text
        elif "non-default args:" in line:
            self.arguments = _arguments(line.split("non-default args:", 1)[1])
        elif "Graph capturing finished" in line:
            self.captured = True
        elif "EngineDeadError" in line or "out of memory" in line:
            self.note_trouble(line)
        elif _DOWNGRADE.search(line):
            self._keep(self.remarks, line)

    def note_trouble(self, line: str) -> None:
        """Keep a line, or an exception's own, that says what went wrong."""
        self._keep(self.trouble, line)

    @staticmethod
    def _keep(lines: list[str], line: str) -> None:
        text = re.sub(r"^.*?(?:INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d (?:\[[^\]]*\] )?", "", line).strip()[:1000]
        if text not in lines and len(lines) < 100:
            lines.append(text)


def parse_engine_line(line: str) -> EngineLine | None:
    """Read an engine line; None when it is cut off."""
    found = _ENGINE_LINE.search(line)
    if found is None:
        return None
    engine, prompt, generation, running, waiting = found.groups()
    return EngineLine(
        stamp(line), int(engine or 0), float(prompt), float(generation), int(running[:9]), int(waiting[:9])
    )


def parse_spec_line(line: str, positions: int | None = None) -> SpecLine | None:
    """Read a SpecDecoding line in any order; None when it is cut off. `positions` are the draft tokens a pass."""
    accepted, drafted = _ACCEPTED.search(line), _DRAFTED.search(line)
    if accepted is None or drafted is None:
        return None
    printed, rates = _LENGTH.search(line), _POSITIONS.search(line)
    by_position = tuple(float(rate) for rate in rates.group(1).split(", ")) if rates else ()
    width = len(by_position) or positions
    taken, proposed = int(accepted.group(1)[:12]), int(drafted.group(1)[:12])
    drafts = proposed / width if width else None
    if by_position and taken and (total := sum(by_position)):
        # Drafts may be shorter than the positions; the accepted ones and their rates then know better.
        by_rates = taken / total
        drafts = by_rates if abs(by_rates - proposed / len(by_position)) > 0.05 * by_rates else drafts
    return SpecLine(stamp(line), taken, proposed, drafts, by_position, float(printed.group(1)) if printed else None)


def stamp(line: str) -> float | None:
    """The line's time. vLLM prints no year: seconds since 1 January, as if of 1970."""
    found = _STAMP.search(line)
    if found is None:
        return None
    return unix_time(1970, *map(int, found.groups()))


def _arguments(text: str) -> dict[str, object]:
    try:
        found = ast.literal_eval(_OBJECT.sub(lambda one: repr(one.group()), text.strip()))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {str(name): REDACTED if "api_key" in str(name) else value for name, value in found.items()}

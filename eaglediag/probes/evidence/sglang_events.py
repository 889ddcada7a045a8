"""What a line of an SGLang server log can say, as types."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from pydantic import JsonValue

from eaglediag.capture.model import Phase


class Rank(NamedTuple):
    """The scheduler that wrote a line, from its prefix; 0 where the prefix names none."""

    dp: int = 0
    tp: int = 0
    pp: int = 0


class Stamp(NamedTuple):
    """A record's prefix. `time` is the log's local time read as UTC; None where no time stands there."""

    time: float | None
    rank: Rank


class DecodeLine(NamedTuple):
    """Statistics over the decode steps since the last such line (`decode_log_interval` steps).

    `accept_len` counts the bonus token; None without speculation. `accept_rate` changed meaning in 0.5.12 (see
    `accept_rate_with_bonus`). `graph` is about the last step only, and with speculation about its verify only.
    `gen_throughput` (tokens/s) is over the time since the previous line, so the first one after idle is meaningless.
    `token` is the number of KV cache tokens in use; `source` is what stands before the prefix.
    """

    stamp: Stamp
    source: str
    running: int
    token: int
    accept_len: float | None
    accept_rate: float | None
    graph: bool | None
    gen_throughput: float
    queue: int | None


class PrefillLine(NamedTuple):
    """One extend batch. `running` counts the requests decoding beside it: 0 means that the server was idle before."""

    stamp: Stamp
    source: str
    new_seq: int
    new_token: int
    running: int | None
    graph: bool | None


class CaptureBegin(NamedTuple):
    """A phase's graphs are about to be captured. `sizes` count `unit`; None where the release does not say."""

    stamp: Stamp
    phase: Phase
    draft: bool
    backend: str
    sizes: list[int] | None
    unit: str
    tokens_per_request: int | None


class CaptureSizes(NamedTuple):
    """The sizes of the target's graphs, on a line of their own."""

    stamp: Stamp
    sizes: list[int]
    unit: str


class CaptureProgress(NamedTuple):
    """tqdm's line: `size` is being captured (None where it does not say), `done` of `total` are finished."""

    size: int | None
    unit: str
    done: int
    total: int


class CaptureEnd(NamedTuple):
    """A phase's graphs are captured."""

    stamp: Stamp
    phase: Phase
    draft: bool
    seconds: float | None
    memory_gb: float | None
    sizes: list[int] | None


class ServerArgs(NamedTuple):
    """The arguments the server ended up with, secrets redacted."""

    stamp: Stamp
    arguments: dict[str, JsonValue]


class WeightsLoading(NamedTuple):
    """A rank starts to load a model (target or draft)."""

    stamp: Stamp


class WeightsLoaded(NamedTuple):
    """A model is loaded. `model` is the class's name."""

    stamp: Stamp
    model: str
    seconds: float | None
    memory_gb: float | None


class Ready(NamedTuple):
    """The server answers."""

    stamp: Stamp


class GraphDisabled(NamedTuple):
    """The server says that it will do without some graphs, and why."""

    stamp: Stamp
    text: str


class SpeculationChanged(NamedTuple):
    """The server says that it changed or disabled something because of speculation."""

    stamp: Stamp
    text: str


class StartupTimings(NamedTuple):
    """Seconds by part of the start; `graphs` by phase as SGLang names it, 0.00 where nothing was captured."""

    stamp: Stamp
    parts: dict[str, float]
    graphs: dict[str, float]


class Trouble(NamedTuple):
    """An error, a crash or the first line of a traceback."""

    stamp: Stamp
    text: str


class Unreadable(NamedTuple):
    """A line that bears the mark of one of the above and cannot be read as it."""

    text: str


Event: TypeAlias = (
    DecodeLine | PrefillLine | CaptureBegin | CaptureSizes | CaptureProgress | CaptureEnd | ServerArgs | WeightsLoading
    | WeightsLoaded | Ready | GraphDisabled | SpeculationChanged | StartupTimings | Trouble | Unreadable
)  # fmt: skip

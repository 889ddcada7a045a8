"""Raw steps (`NAME.steps.jsonl.gz`) as a stream of parcels, small enough to hold a few of in memory at a time.

Parcels are worked on in several processes when there are many: parsing costs more than reading. Like a capture, the
file is untrusted input: what is not a row of the known columns ends the reading with a CaptureError.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import signal
import threading
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from multiprocessing import get_context, parent_process, resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from eaglediag.capture.model import Capture
from eaglediag.errors import CaptureError, UsageError

COLUMNS = (
    "row",
    "step",
    "phase",
    "batch",
    "tokens",
    "graph",
    "start_ns",
    "host_ns",
    "device_us",
    "period_ns",
    "period_device_us",
    "accept",
)
SMALL = ("row", "phase", "batch", "tokens", "graph")
TIMES = ("host_ns", "device_us", "period_ns", "period_device_us")
_COUNT = rb"(?:null|\d{1,18})"
_TIME = rb"(?:null|\d{1,10}(?:\.\d{1,9})?)"
_PHASE = rb'"(?:decode|verify|draft|draft_extend|extend|idle|cycle)"'
STEP = re.compile(
    rb'\["(?:step|phase)",\d{1,18},'
    + _PHASE
    + b","
    + b",".join([_COUNT, _COUNT, b"(?:null|true|false)", rb"\d{1,18}", _COUNT, _TIME, _COUNT, _TIME])
    + rb",null\]\n"
)
ACCEPT = re.compile(
    rb'\["accept",(\d{1,18}),"verify",(' + _COUNT + rb"),null,null,(\d{1,18}),null,null,null,null,"
    rb"\[(\d{1,9}(?:,\d{1,9})*)\]\]\n"
)
#: To STEP, rows that differ in their digits alone are alike. A file has a few kinds of rows, and so few to be matched.
ANY_DIGIT = bytes.maketrans(b"123456789", b"000000000")
HEADER = re.compile(rb"^(\{.*\n)", re.MULTILINE)
#: Sums of a start and its section's epoch stay below 2^63 ns.
MAX_EPOCH_NS = 8 * 10**18
MAX_RANK = 10**6
#: About this much text makes a parcel; a single line may not be longer.
PARCEL_BYTES = 4 * 1024 * 1024
#: From this size on, compressed, it pays to start processes.
PARALLEL_BYTES = 3 * 1024 * 1024

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

Result = TypeVar("Result")


class Reading:
    """How far a capture's file of steps has been read, and whether it is that capture's.

    `told` is given the share of the file that has been read.
    """

    def __init__(self, capture: Capture, told: Callable[[float], None] = lambda share: None) -> None:
        self.told = told
        self.read: Counter[tuple[str, int]] = Counter()
        self.recorded: Counter[tuple[str, int]] = Counter()
        for window in capture.windows:
            for rank in window.ranks:
                self.recorded[window.id, rank.rank] += max(0, rank.steps_recorded)

    def count(self, section: Section, lines: bytes) -> None:
        """Add the steps among these lines of a section."""
        self.read[section.window, section.rank] += lines.count(b'["step"')

    def check(self, name: str) -> None:
        """Raises CaptureError when the file, read to its end, holds what its capture did not record."""
        for place, steps in self.read.items():
            known = self.recorded.get(place)
            # A capture that does not count its steps says nothing of a file that has some.
            if known is None or 0 < known < steps:
                window, rank = place
                raise CaptureError(
                    f"{name} is another capture's: it has {steps} steps of rank {rank} in window {window}, and this "
                    f"capture recorded {known or 'none'}",
                    "put the file that the probe wrote beside it",
                )
        if self.recorded.total() and not self.read.total():
            raise CaptureError(f"{name} holds no steps", "put the file that the probe wrote beside the capture")

    @property
    def lacking(self) -> str:
        """What the file lacks of what was recorded; nothing when it is all there."""
        read, recorded = self.read.total(), self.recorded.total()
        return f"it holds {read} of {recorded} recorded steps" if read < recorded else ""


@dataclass(frozen=True)
class Section:
    """What the rows of one rank in one window have in common. `epoch_ns` added to a start gives Unix time."""

    window: str
    rank: int
    clock: str
    epoch_ns: int

    @property
    def on_device(self) -> bool:
        """Whether durations on the device were measured."""
        return self.clock == "cuda_event"


class Accepted(NamedTuple):
    """The accept lengths of verify passes, an entry a pass: one length a request, the bonus token included: `2,1,3`.

    A batch size of -1 was not recorded.
    """

    step: NDArray[np.int64]
    batch: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    lengths: list[bytes]


@dataclass(frozen=True)
class Parcel:
    """Lines of one section, whole. `number` counts the parcels of the section from 0."""

    section: Section
    lines: bytes
    number: int
    name: str

    def steps(self) -> pd.DataFrame:
        """The steps and phases: the COLUMNS without `accept`, times as numbers (NaN where there is none).

        Names and small numbers are categories of text, `null` where there is none. Raises CaptureError.
        """
        import pandas as pd

        text = ACCEPT.sub(b"", self.lines)
        *rows, rest = text.translate(ANY_DIGIT).split(b"\n")
        if rest or not all(STEP.fullmatch(row + b"\n") for row in set(rows)):
            raise _damaged(self.name, f"not a row of steps: {STEP.sub(b'', text)[:80]!r}")
        frame: pd.DataFrame = pd.read_csv(
            BytesIO(text),
            header=None,
            names=list(COLUMNS),
            usecols=list(COLUMNS[:-1]),
            quoting=csv.QUOTE_NONE,
            dtype=dict.fromkeys(SMALL, "category")
            | dict.fromkeys(TIMES, "float64")
            | {"step": "int64", "start_ns": "int64"},
            na_values={name: ["null"] for name in TIMES},
            keep_default_na=False,
        )
        for name in SMALL:
            frame[name] = frame[name].cat.rename_categories(lambda value: str(value).strip('["').lower())
        return frame

    def accepted(self) -> Accepted:
        """The accept lengths, in the order they were recorded."""
        import numpy as np

        found = ACCEPT.findall(self.lines)
        numbers = [(int(step), -1 if batch == b"null" else int(batch), int(start)) for step, batch, start, _ in found]
        step, batch, start = np.array(numbers, np.int64).reshape(-1, 3).T
        return Accepted(step, batch, start, [lengths for *_, lengths in found])


def beside(capture: Capture, path: Path) -> Path | None:
    """The raw steps that lie beside a capture's file, or None. Only a plain name is looked for, never a path."""
    name = capture.steps_file
    if not name or name != os.path.basename(name) or name in (".", ".."):
        return None
    steps = path.with_name(name)
    return steps if steps.is_file() else None


def needed(capture: Capture, path: Path) -> Path:
    """The raw steps beside a capture. Raises UsageError when there are none."""
    steps = beside(capture, path)
    if steps is None:
        raise UsageError(
            f"{path} has no raw steps beside it",
            f"put {capture.steps_file} in its folder" if capture.steps_file else "probe again with --steps",
        )
    return steps


def parcels(path: Path, reading: Reading | None = None) -> Iterator[Parcel]:
    """Read the file once, from front to back.

    Raises CaptureError for anything that is not a whole steps file, or not that of the capture that is being read.
    """
    section: Section | None = None
    number = 0
    try:
        for text in _whole_steps(path, reading):
            for begun, lines in _sections(text, section, path.name):
                number = number + 1 if begun == section else 0
                section = begun
                if reading is not None:
                    reading.count(section, lines)
                yield Parcel(section, lines, number, path.name)
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(path.name, str(error)) from error
    if reading is not None:
        reading.check(path.name)


def _whole_steps(path: Path, reading: Reading | None) -> Iterator[bytes]:
    """The file's text, in pieces that end behind a step: its row ends its phases, so that a piece holds whole steps."""
    size = max(1, path.stat().st_size)
    with path.open("rb") as raw, gzip.GzipFile(fileobj=raw) as stream:
        rest = b""
        while text := stream.read(PARCEL_BYTES):
            text = rest + text
            last = text.rfind(b'\n["step"', 0, text.rfind(b"\n"))
            end = text.find(b"\n", last + 1) + 1 if last >= 0 else 0
            if not end and len(text) > 2 * PARCEL_BYTES:
                raise _damaged(path.name, "a step without an end")
            rest = text[end:]
            yield text[:end]
            if reading is not None:
                reading.told(min(1.0, raw.tell() / size))
    if rest and not rest.endswith(b"\n"):
        raise _damaged(path.name, "it ends in the middle of a line")
    yield rest


def over(path: Path, work: Callable[[Parcel], Result], reading: Reading | None = None) -> Iterator[Result]:
    """`work` on every parcel, results in the file's order; in several processes when the file is large."""
    workers = min(4, os.cpu_count() or 1)
    if workers == 1 or path.stat().st_size < PARALLEL_BYTES:
        yield from map(work, parcels(path, reading))
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_end_with_parent) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for parcel in parcels(path, reading):
                with _interrupts_held():
                    waiting.append(pool.submit(work, parcel))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Workers that are started in here never see Ctrl-C: the parent does, and lets them finish their parcel.

    One that it ended half-way could leave the others and the parent waiting for each other.
    """
    # It would be started with the first worker, and let Ctrl-C through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """In a worker: end when the parent does, however that ended."""
    parent = parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _sections(text: bytes, going_on: Section | None, name: str) -> Iterator[tuple[Section, bytes]]:
    """Text split at its headers; what stands before the first belongs to the section that is going on."""
    if text and going_on is not None and not text.startswith(b"{") and b"\n{" not in text:
        yield going_on, text  # no header in it: there are thousands of parcels and few sections
        return
    lines, *rest = HEADER.split(text)
    if lines:
        if going_on is None:
            raise _damaged(name, "rows before any header")
        yield going_on, lines
    for header, lines in zip(rest[::2], rest[1::2], strict=True):
        yield _section(header, name), lines


def _section(line: bytes, name: str) -> Section:
    try:
        header: dict[str, Any] = json.loads(line)
        section = Section(header["window"], header["rank"], header["clock"], header["epoch_minus_perf_ns"])
        section.window.encode()  # JSON can spell half a character
        columns = tuple(header["columns"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(name, f"not a header: {line[:80]!r}") from error
    if columns != COLUMNS:
        raise CaptureError(f"{name} has columns this eaglediag does not know", "upgrade eaglediag")
    if not (
        isinstance(section.window, str) and _up_to(MAX_RANK, section.rank) and _up_to(MAX_EPOCH_NS, section.epoch_ns)
    ):
        raise _damaged(name, f"not a header: {line[:80]!r}")
    return section


def _up_to(most: int, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _damaged(name: str, why: str) -> CaptureError:
    return CaptureError(f"{name} is not a whole file of steps: {why}", "probe again, or report without the raw steps")

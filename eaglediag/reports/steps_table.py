"""Raw steps as a table, for pandas, DuckDB or a spreadsheet: one row for each step, phase and set of accept lengths."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglediag.errors import UsageError
from eaglediag.reports.steps_file import Parcel, Told, over

if TYPE_CHECKING:
    import pandas as pd

#: `start_s` is Unix time on the host's clock; `accept_lengths` has one number a request, the bonus token included.
COLUMNS = (
    "window", "rank", "row", "step", "phase", "batch_size", "tokens", "graph", "start_s", "host_ms", "device_ms",
    "period_ms", "device_period_ms", "accept_lengths",
)  # fmt: skip


def write_csv(steps: Path, out: Path, told: Told | None = None) -> None:
    """Write the steps as CSV, compressed when the name ends with .gz. Accept lengths are separated by blanks.

    Raises CaptureError for a damaged file of steps and OSError when `out` cannot be written.
    """
    header = (",".join(COLUMNS) + "\n").encode()
    packed = out.suffix == ".gz"
    with out.open("wb") as stream:
        stream.write(gzip.compress(header, 1) if packed else header)
        for text in over(steps, _packed_csv if packed else _csv, told):
            stream.write(text)


def write_parquet(steps: Path, out: Path, told: Told | None = None) -> None:
    """Write the steps as Parquet; accept lengths are lists. Needs pyarrow.

    Raises UsageError without pyarrow, CaptureError for a damaged file of steps, OSError when `out` cannot be written.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UsageError("Parquet needs pyarrow", "pip install 'eaglediag[parquet]', or use --csv") from error
    schema = pa.schema(
        [
            pa.field("window", pa.string()),
            pa.field("rank", pa.int32()),
            pa.field("row", pa.string()),
            pa.field("step", pa.int64()),
            pa.field("phase", pa.string()),
            pa.field("batch_size", pa.int32()),
            pa.field("tokens", pa.int32()),
            pa.field("graph", pa.bool_()),
            pa.field("start_s", pa.float64()),
            pa.field("host_ms", pa.float64()),
            pa.field("device_ms", pa.float64()),
            pa.field("period_ms", pa.float64()),
            pa.field("device_period_ms", pa.float64()),
            pa.field("accept_lengths", pa.list_(pa.int32())),
        ]
    )
    with pq.ParquetWriter(out, schema) as writer:
        for frame in over(steps, table, told):
            writer.write_table(pa.Table.from_pandas(frame, schema=schema, preserve_index=False))


def table(parcel: Parcel) -> pd.DataFrame:
    """A parcel's rows as a frame with COLUMNS."""
    import pandas as pd

    section = parcel.section
    names = ("row", "step", "phase", "batch_size", "tokens", "graph", "start_s", "host_ms", "device_ms", "period_ms",
             "device_period_ms", "accept_lengths")  # fmt: skip
    frame: pd.DataFrame = pd.DataFrame.from_records(parcel.rows(), columns=names)
    frame["start_s"] = (frame["start_s"] + section.epoch_ns) / 1e9
    for name, unit in (("host_ms", 1e6), ("device_ms", 1e3), ("period_ms", 1e6), ("device_period_ms", 1e3)):
        frame[name] = frame[name].astype("float64") / unit
    for name in ("batch_size", "tokens"):
        frame[name] = frame[name].astype("Int32")
    frame["graph"] = frame["graph"].astype("boolean")
    frame.insert(0, "rank", section.rank)
    frame.insert(0, "window", section.window)
    return frame


def _packed_csv(parcel: Parcel) -> bytes:
    return gzip.compress(_csv(parcel), 1)


def _csv(parcel: Parcel) -> bytes:
    section = parcel.section
    lead, epoch = f"{_quoted(section.window)},{section.rank}", section.epoch_ns
    lines: list[str] = []
    add: Callable[[str], Any] = lines.append
    for row, step, phase, batch, tokens, graph, start, host, device, period, period_device, accept in parcel.rows():
        at = start + epoch
        add(
            f"{lead},{row},{step},{phase},{'' if batch is None else batch},{'' if tokens is None else tokens},"
            f"{'' if graph is None else 'true' if graph else 'false'},{at // 1_000_000_000}.{at % 1_000_000_000:09d},"
            f"{'' if host is None else host / 1e6},{'' if device is None else device / 1e3},"
            f"{'' if period is None else period / 1e6},{'' if period_device is None else period_device / 1e3},"
            f"{'' if accept is None else ' '.join(map(str, accept))}\n"
        )
    return "".join(lines).encode()


def _quoted(text: str) -> str:
    """A CSV field. What a spreadsheet would run as a formula gets an apostrophe in front."""
    if text[:1] in ("=", "+", "-", "@", "\t", "\r"):
        text = "'" + text
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\n\r') else text

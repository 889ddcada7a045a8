"""Raw steps as a table, for pandas, DuckDB or a spreadsheet: one row for each step, phase and set of accept lengths."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING

from eaglediag.errors import UsageError
from eaglediag.reports.steps_file import Parcel, Told, over

if TYPE_CHECKING:
    import pandas as pd

#: `start_s` is Unix time on the host's clock; `accept_lengths` has one number a request, the bonus token included.
COLUMNS = (
    "window", "rank", "row", "step", "phase", "batch_size", "tokens", "graph", "start_s", "host_ms", "device_ms",
    "period_ms", "device_period_ms", "accept_lengths",
)  # fmt: skip


#: a column here, its column in the file, and that one's units in a millisecond
MILLISECONDS = (
    ("host_ms", "host_ns", 1e6),
    ("device_ms", "device_us", 1e3),
    ("period_ms", "period_ns", 1e6),
    ("device_period_ms", "period_device_us", 1e3),
)


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
    """A parcel's rows as a frame with COLUMNS: its steps and phases first, then its accept lengths."""
    import pandas as pd

    section, accepted = parcel.section, parcel.accepted()
    steps = parcel.steps().rename(columns={"batch": "batch_size"})
    for name in ("batch_size", "tokens"):
        steps[name] = pd.to_numeric(steps[name].astype("object").replace("null", None)).astype("Int32")
    steps["graph"] = steps["graph"].astype("object").map({"true": True, "false": False}).astype("boolean")
    for name, column, unit in MILLISECONDS:
        steps[name] = steps.pop(column) / unit
    lengths = pd.DataFrame.from_records(accepted, columns=["step", "batch_size", "start_ns", "accept_lengths"])
    lengths["batch_size"] = lengths["batch_size"].astype("Int32")
    frame: pd.DataFrame = pd.concat([steps, lengths.assign(row="accept", phase="verify")], ignore_index=True)
    frame["start_s"] = (frame.pop("start_ns") + section.epoch_ns) / 1e9
    frame["window"], frame["rank"] = section.window, section.rank
    ordered: pd.DataFrame = frame[list(COLUMNS)]
    return ordered


def _packed_csv(parcel: Parcel) -> bytes:
    return gzip.compress(_csv(parcel), 1)


def _csv(parcel: Parcel) -> bytes:
    section = parcel.section
    lead, epoch = f"{_quoted(section.window)},{section.rank}", section.epoch_ns
    steps = parcel.steps()
    for name in ("batch", "tokens", "graph"):
        steps[name] = steps[name].cat.rename_categories({"null": ""})
    times = ((steps[column] / unit).map(_plain) for _, column, unit in MILLISECONDS)
    names = (steps[name] for name in ("row", "step", "phase", "batch", "tokens", "graph", "start_ns"))
    columns = [column.tolist() for column in (*names, *times)]
    lines = [
        f"{lead},{row},{step},{phase},{batch},{tokens},{graph},{_seconds(start + epoch)},{host},{device},{period},"
        f"{device_period},\n"
        for row, step, phase, batch, tokens, graph, start, host, device, period, device_period in zip(
            *columns, strict=True
        )
    ]
    lines += [
        f"{lead},accept,{step},verify,{'' if batch is None else batch},,,{_seconds(start + epoch)},,,,,"
        f"{' '.join(map(str, lengths))}\n"
        for step, batch, start, lengths in parcel.accepted()
    ]
    return "".join(lines).encode()


def _plain(ms: float) -> str:
    return f"{ms:.6f}" if ms == ms else ""  # NaN: there is none


def _seconds(ns: int) -> str:
    return f"{ns // 1_000_000_000}.{ns % 1_000_000_000:09d}"


def _quoted(text: str) -> str:
    """A CSV field. What a spreadsheet would run as a formula gets an apostrophe in front."""
    if text[:1] in ("=", "+", "-", "@", "\t", "\r"):
        text = "'" + text
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\n\r') else text

"""Raw steps as a table, for pandas, DuckDB or a spreadsheet: one row for each step, phase and set of accept lengths."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from eaglediag.errors import UsageError
from eaglediag.reports.steps_file import SMALL, Parcel, Reading, Section, over
from eaglediag.reports.text_rows import Column, chosen, decimal, joined
from eaglediag.reports.untrusted import printable
from eaglediag.whole_file import whole_file

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

#: `start_s` is Unix time on the host's clock, in Parquet to a quarter of a microsecond; `accept_lengths` has one number
#: a request, the bonus token included.
COLUMNS = (
    "window", "rank", "row", "step", "phase", "batch_size", "tokens", "graph", "start_s", "host_ms", "device_ms",
    "period_ms", "device_period_ms", "accept_lengths",
)  # fmt: skip


#: a column here, its column in the file, that one's units in a millisecond, and the decimal places that a probe records
MILLISECONDS = (
    ("host_ms", "host_ns", 1e6, 6),
    ("device_ms", "device_us", 1e3, 4),
    ("period_ms", "period_ns", 1e6, 6),
    ("device_period_ms", "period_device_us", 1e3, 4),
)


def write_csv(steps: Path, out: Path, reading: Reading | None = None) -> None:
    """Write the steps as CSV, compressed when the name ends with .gz. Accept lengths are separated by blanks.

    Raises CaptureError for a damaged file of steps and OSError when `out` cannot be written.
    """
    header = (",".join(COLUMNS) + "\n").encode()
    packed = out.suffix == ".gz"
    with whole_file(out) as stream:
        stream.write(gzip.compress(header, 1) if packed else header)
        for text in over(steps, _packed_csv if packed else _csv, reading):
            stream.write(text)


def write_parquet(steps: Path, out: Path, reading: Reading | None = None) -> None:
    """Write the steps as Parquet; accept lengths are lists. Needs pyarrow.

    Raises UsageError without pyarrow, CaptureError for a damaged file of steps, OSError when `out` cannot be written.
    """
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UsageError("Parquet needs pyarrow", "pip install 'eaglediag[parquet]', or use --csv") from error
    with whole_file(out) as stream, pq.ParquetWriter(stream, _schema()) as writer:
        for part in over(steps, _arrow, reading):
            writer.write_table(part)


def _schema() -> pa.Schema:
    import pyarrow as pa

    texts, whole, times = pa.string(), pa.int64(), [pa.float64()] * 5
    types = [texts, whole, texts, whole, texts, whole, whole, pa.bool_(), *times, pa.list_(whole)]
    return pa.schema(list(zip(COLUMNS, types, strict=True)))


def _arrow(parcel: Parcel) -> pa.Table:
    """A parcel's rows: its steps and phases, then its accept lengths.

    Made where it was parsed, it travels as a few buffers.
    """
    import pyarrow as pa

    schema, epoch_ns = _schema(), parcel.section.epoch_ns
    steps, accepted = parcel.steps(), parcel.accepted()
    columns: dict[str, Any] = {"step": steps["step"], "start_s": (steps["start_ns"] + epoch_ns) / 1e9}
    for name, column in zip(("row", "phase", "batch_size", "tokens", "graph"), SMALL, strict=True):
        categories = [None if text == "null" else str(text) for text in steps[column].cat.categories]
        known = pa.array(categories, pa.string()).cast(schema.field(name).type)
        columns[name] = known.take(pa.array(steps[column].cat.codes))
    columns |= {name: steps[column] / unit for name, column, unit, _ in MILLISECONDS}
    passes = len(accepted.step)
    ends = np.cumsum([0, *(text.count(b",") + 1 for text in accepted.lengths)])
    lengths = np.fromstring(b",".join(accepted.lengths), np.int64, sep=",")
    of_passes = {
        "step": accepted.step,
        "start_s": (accepted.start_ns + epoch_ns) / 1e9,
        "row": pa.repeat("accept", passes),
        "phase": pa.repeat("verify", passes),
        "batch_size": pa.array(accepted.batch, mask=accepted.batch < 0),
        "accept_lengths": pa.ListArray.from_arrays(pa.array(ends, pa.int32()), lengths),
    }
    return pa.concat_tables([_arrow_rows(schema, parcel.section, one) for one in (columns, of_passes)])


def _arrow_rows(schema: pa.Schema, section: Section, columns: dict[str, Any]) -> pa.Table:
    """Rows with all columns of the schema; those not given are null."""
    import pyarrow as pa

    count = len(columns["step"])
    columns |= {"window": pa.repeat(section.window, count), "rank": pa.repeat(section.rank, count)}
    # A missing time is NaN to pandas and null to everybody else.
    found = {name: pa.array(column, from_pandas=True) for name, column in columns.items()}
    arrays = [found[one.name].cast(one.type) if one.name in found else pa.nulls(count, one.type) for one in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _packed_csv(parcel: Parcel) -> bytes:
    return gzip.compress(_csv(parcel), 1)


def _csv(parcel: Parcel) -> bytes:
    lead = f"{_quoted(parcel.section.window)},{parcel.section.rank},".encode()
    return _csv_steps(parcel, lead) + _csv_accepted(parcel, lead)


def _csv_steps(parcel: Parcel, lead: bytes) -> bytes:
    steps = parcel.steps()
    row, phase, batch, tokens, graph = (_texts(steps[name]) for name in SMALL)
    fields = [row, decimal(steps["step"].to_numpy()), phase, batch, tokens, graph]
    fields.append(decimal(steps["start_ns"].to_numpy() + parcel.section.epoch_ns, 9))
    fields += [decimal(steps[name].to_numpy() * (10**places / unit), places) for _, name, unit, places in MILLISECONDS]
    return joined(len(steps), lead, *(part for field in fields for part in (field, b",")), b"\n")


def _csv_accepted(parcel: Parcel, lead: bytes) -> bytes:
    accepted = parcel.accepted()
    batch = decimal(np.where(accepted.batch < 0, np.nan, accepted.batch))
    start = decimal(accepted.start_ns + parcel.section.epoch_ns, 9)
    fields = (b"accept,", decimal(accepted.step), b",verify,", batch, b",,,", start, b",,,,,\n")
    lines = joined(len(accepted.step), *fields).splitlines()
    both = zip(lines, accepted.lengths, strict=True)
    return b"".join([lead + line + lengths.replace(b",", b" ") + b"\n" for line, lengths in both])


def _texts(column: pd.Series[str]) -> Column:
    """The texts of a column of categories; nothing for `null`."""
    texts = ["" if text == "null" else str(text) for text in column.cat.categories]
    return chosen([text.encode() for text in texts], column.cat.codes.to_numpy())


def _quoted(text: str) -> str:
    """A CSV field. What a spreadsheet would run as a formula gets an apostrophe in front."""
    text = printable(text)
    if text[:1] in ("=", "+", "-", "@", "\t", "\r"):
        text = "'" + text
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\n\r') else text

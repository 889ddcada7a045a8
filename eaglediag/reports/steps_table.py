"""Raw steps as a table, for pandas, DuckDB or a spreadsheet: one row for each step, phase and set of accept lengths."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING

from eaglediag.errors import UsageError
from eaglediag.reports.steps_file import Parcel, Told, over

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

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
    with pq.ParquetWriter(out, pa.schema(dict(zip(COLUMNS, _types(), strict=True)))) as writer:
        for part in over(steps, _arrow, told):
            writer.write_table(part)


def _types() -> list[pa.DataType]:
    import pyarrow as pa

    numbers = [pa.float64()] * 5
    return [pa.string(), pa.int32(), pa.string(), pa.int64(), pa.string(), pa.int32(), pa.int32(), pa.bool_(), *numbers,
            pa.list_(pa.int32())]  # fmt: skip


def _arrow(parcel: Parcel) -> pa.Table:
    """A parcel as an Arrow table: made where it was parsed, it travels as a few buffers."""
    import pyarrow as pa

    schema = pa.schema(dict(zip(COLUMNS, _types(), strict=True)))
    return pa.Table.from_pandas(table(parcel), schema=schema, preserve_index=False)


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
    lengths = pd.DataFrame.from_records(
        [(one.step, one.batch, one.start_ns, one.lengths) for one in accepted],
        columns=["step", "batch_size", "start_ns", "accept_lengths"],
    )
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
    lead, epoch = f"{_quoted(section.window)},{section.rank},", section.epoch_ns
    steps = parcel.steps()
    for name in ("batch", "tokens", "graph"):
        steps[name] = steps[name].cat.rename_categories({"null": ""})
    times = ((steps[column] / unit).round(6) for _, column, unit in MILLISECONDS)
    start = steps["start_ns"] + epoch
    names = (steps[name] for name in ("row", "step", "phase", "batch", "tokens", "graph"))
    columns = [column.tolist() for column in (*names, start // 10**9, start % 10**9, *times)]
    lines = [
        f"{row},{step},{phase},{batch},{tokens},{graph},{second}.{ns:09d},{host},{device},{period},{device_period},\n"
        for row, step, phase, batch, tokens, graph, second, ns, host, device, period, device_period in zip(
            *columns, strict=True
        )
    ]
    lines += [
        f"accept,{one.step},verify,{'' if one.batch is None else one.batch},,,{_seconds(one.start_ns + epoch)},,,,,"
        f"{one.text.replace(',', ' ')}\n"
        for one in parcel.accepted()
    ]
    text = "".join(lines).replace(",nan", ",").removesuffix("\n")
    return f"{lead}{text.replace(chr(10), chr(10) + lead)}\n".encode()


def _seconds(ns: int) -> str:
    return f"{ns // 1_000_000_000}.{ns % 1_000_000_000:09d}"


def _quoted(text: str) -> str:
    """A CSV field. What a spreadsheet would run as a formula gets an apostrophe in front."""
    if text[:1] in ("=", "+", "-", "@", "\t", "\r"):
        text = "'" + text
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\n\r') else text

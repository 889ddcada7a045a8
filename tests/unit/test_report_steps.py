"""Raw steps: read as they were written, in bounds, and as a trace and a table that add up."""

from __future__ import annotations

import csv
import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from eaglediag.capture import store
from eaglediag.capture.model import Capture
from eaglediag.errors import CaptureError, UsageError
from eaglediag.probes.agents import Rows
from eaglediag.probes.payload import recorder
from eaglediag.probes.run import write_steps
from eaglediag.reports import chrome_trace, step_series, steps_file, steps_table
from eaglediag.reports.steps_file import COLUMNS, Reading
from tests.invoke import eaglediag
from tests.report_material import raw_rows, with_steps

HEADER = {"window": "c4", "rank": 0, "clock": "host_clock", "columns": COLUMNS, "epoch_minus_perf_ns": 0}
STEP = ["step", 1, "cycle", 1, None, False, 10, 5, None, None, None, None]
H200_TRACE = Path(__file__).parents[1] / "data" / "h200" / "torch-profile-eager-bs12.json.gz"


def written(folder: Path, *lines: object) -> Path:
    path = folder / "x.steps.jsonl.gz"
    texts = [one if isinstance(one, str) else json.dumps(one, separators=(",", ":")) + "\n" for one in lines]
    path.write_bytes(gzip.compress("".join(texts).encode()))
    return path


@pytest.fixture(params=["host_clock", "cuda_event"])
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Capture, Path, Path, list[tuple[str, Rows]]]:
    """Two ranks in two windows."""
    rows = [
        (window, raw_rows(rank, 40 + 10 * rank, request.param, window=i))
        for i, window in enumerate(("c1", "c4"))
        for rank in range(2)
    ]
    return *with_steps(tmp_path, rows), rows


def test_rows_come_back_as_they_were_written(recorded: tuple[Capture, Path, Path, list[tuple[str, Rows]]]) -> None:
    _, steps, _, rows = recorded
    parcels = list(steps_file.parcels(steps))
    assert [(one.section.window, one.section.rank) for one in parcels] == [(w, r.rank) for w, r in rows]
    for parcel, (_, expected) in zip(parcels, rows, strict=True):
        found = parcel.steps()
        plain = [row for row in expected.rows if row[0] != "accept"]
        assert found["start_ns"].tolist() == [row[6] for row in plain]
        assert found["host_ns"].tolist() == [row[7] for row in plain]
        assert found["phase"].tolist() == [row[2] for row in plain]
        accepted = [[int(one) for one in text.split(b",")] for text in parcel.accepted().lengths]
        assert accepted == [row[11] for row in expected.rows if row[0] == "accept"]


def test_the_reader_knows_the_columns_that_the_agent_writes() -> None:
    assert COLUMNS == recorder.COLUMNS


def test_small_parcels_hold_whole_steps(
    recorded: tuple[Capture, Path, Path, list[tuple[str, Rows]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    eagle, steps, _, rows = recorded
    monkeypatch.setattr(steps_file, "PARCEL_BYTES", 2000)
    shares: list[float] = []
    parcels = list(steps_file.parcels(steps, Reading(eagle, shares.append)))
    assert len(parcels) > 15
    assert sum(len(one.steps()) + len(one.accepted().step) for one in parcels) == sum(len(one.rows) for _, one in rows)
    for parcel in parcels:
        found = parcel.steps()
        assert set(found.loc[found["row"] == "phase", "step"]) <= set(found.loc[found["row"] == "step", "step"])
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_several_processes_give_the_same(
    recorded: tuple[Capture, Path, Path, list[tuple[str, Rows]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, steps, _, _ = recorded
    steps_table.write_csv(steps, tmp_path / "one.csv")
    monkeypatch.setattr(steps_file, "PARALLEL_BYTES", 0)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    steps_table.write_csv(steps, tmp_path / "two.csv")
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([STEP], "before any header"),
        ([HEADER, "{broken\n"], "not a header"),
        ([{**HEADER, "columns": [*COLUMNS, "more"]}], "does not know"),
        ([{**HEADER, "rank": "0"}, STEP], "not a header"),
        ([{**HEADER, "rank": 10**30}, STEP], "not a header"),
        ([{**HEADER, "epoch_minus_perf_ns": 10**30}, STEP], "not a header"),
        ([{**HEADER, "epoch_minus_perf_ns": -1}, STEP], "not a header"),
        ([HEADER, [*STEP[:6], 10**40, *STEP[7:]]], "not a row"),
        ([HEADER, [*STEP[:6], -1, *STEP[7:]]], "not a row"),
        ([HEADER, ["step", 1, "<script>", *STEP[3:]]], "not a row"),
        ([HEADER, STEP[:-1]], "not a row"),
        ([HEADER, STEP, [*STEP, 1, 2]], "not a row"),
        ([HEADER, STEP, "\n"], "not a row"),
        ([HEADER, [*STEP[:8], 1e300, *STEP[9:]]], "not a row"),
        ([HEADER, [*STEP[:8], "inf", *STEP[9:]]], "not a row"),
        ([HEADER, [*STEP[:1], 1.5, *STEP[2:]]], "not a row"),
        ([HEADER, [*STEP[:5], "maybe", *STEP[6:]]], "not a row"),
        ([HEADER, [*STEP[:8], float("nan"), *STEP[9:]]], "not a row"),
        ([HEADER, "\x1b[2J\n"], "not a row"),
        ([HEADER, json.dumps(STEP)], "middle of a line"),
        ([{**HEADER, "window": "\ud800"}, STEP], "not a header"),
    ],
)
def test_what_is_not_a_row_ends_the_reading(tmp_path: Path, lines: list[object], why: str) -> None:
    path = written(tmp_path, *lines)
    with pytest.raises(CaptureError, match=why):
        step_series.from_steps(path)


def test_truncated_endless_and_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, HEADER, *[STEP] * 1000)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CaptureError):
        list(steps_file.parcels(path))
    path.write_bytes(b"not gzip")
    with pytest.raises(CaptureError):
        list(steps_file.parcels(path))
    monkeypatch.setattr(steps_file, "PARCEL_BYTES", 4096)
    with pytest.raises(CaptureError, match="without an end"):
        list(steps_file.parcels(written(tmp_path, HEADER, "9" * 100_000)))


def test_only_a_plain_name_beside_the_capture_is_opened(tmp_path: Path) -> None:
    eagle, steps, path = with_steps(tmp_path, [("c1", raw_rows())])
    assert steps_file.beside(eagle, path) == steps
    for name in ("../x.gz", "/etc/passwd", "..", "", "missing.gz"):
        eagle.steps_file = name
        assert steps_file.beside(eagle, path) is None
    with pytest.raises(UsageError, match="no raw steps"):
        steps_file.needed(eagle, path)


def test_steps_of_another_capture_are_refused(tmp_path: Path) -> None:
    eagle, steps, path = with_steps(tmp_path, [("c1", raw_rows(steps=40))])
    store.write(eagle, path)
    others = {
        "more": [("c1", raw_rows(steps=41))],
        "another window": [("c9", raw_rows(steps=40))],
        "another rank": [("c1", raw_rows(rank=3, steps=40))],
    }
    for rows in others.values():
        write_steps(rows, steps)
        ran = eaglediag("export", path, "--csv", tmp_path / "s.csv")
        assert (ran.code, "is another capture's: it has 4" in ran.err) == (2, True), ran.err
        assert eaglediag("report", path, "--html", tmp_path / "r.html").code == 2
    for nothing in (b"", gzip.compress(b"")):
        steps.write_bytes(nothing)
        ran = eaglediag("export", path, "--trace", tmp_path / "t.json")
        assert (ran.code, "holds no steps" in ran.err) == (2, True), ran.err
    assert sorted(one.name for one in tmp_path.iterdir()) == ["eagle.json", "eagle.steps.jsonl.gz"]


def test_fewer_steps_than_were_recorded_are_said(tmp_path: Path) -> None:
    eagle, steps, path = with_steps(tmp_path, [("c1", raw_rows(steps=40))])
    store.write(eagle, path)
    write_steps([("c1", raw_rows(steps=15))], steps)
    for command in (("export", path, "--csv", tmp_path / "s.csv"), ("report", path, "--html", tmp_path / "r.html")):
        ran = eaglediag(*command)
        assert (ran.code, "it holds 15 of 40 recorded steps" in ran.err) == (0, True)


def test_every_rank_begins_on_the_first_device_track(tmp_path: Path) -> None:
    rows = [("c1", raw_rows(rank, 20, "cuda_event")) for rank in range(2)]
    eagle, steps, _ = with_steps(tmp_path, rows)
    chrome_trace.write(eagle, steps, tmp_path / "t.json.gz")
    names = [
        one["args"]["name"] for one in events(tmp_path / "t.json.gz")["traceEvents"] if one["name"] == "thread_name"
    ]
    assert names.count("device (earliest place)") == 2
    assert "device (earliest place), continued" not in names


def events(path: Path) -> dict[str, Any]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        document: dict[str, Any] = json.load(stream)
    return document


def test_trace_follows_the_format(recorded: tuple[Capture, Path, Path, list[tuple[str, Rows]]], tmp_path: Path) -> None:
    """Every event has what its kind needs, and spans on a track nest or follow one another."""
    eagle, steps, _, _ = recorded
    chrome_trace.write(eagle, steps, tmp_path / "t.json.gz")
    found = events(tmp_path / "t.json.gz")["traceEvents"]
    needs = {"X": {"ts", "dur", "tid"}, "i": {"ts", "tid", "s"}, "C": {"ts", "args"}, "M": {"args"}}
    for event in found:
        assert {"ph", "pid", "name"} | needs[event["ph"]] <= set(event)
        assert all(isinstance(value, (int, float)) for value in event["args"].values()) or event["ph"] != "C"
    tracks = defaultdict(list)
    for event in found:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in tracks.values():
        outer: list[float] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while outer and outer[-1] <= start + 1e-3:
                outer.pop()
            assert not outer or end <= outer[-1] + 1e-3
            outer.append(end)
    named = {(event["pid"], event["tid"]) for event in found if event["name"] == "thread_name"}
    assert set(tracks) <= named


def test_trace_durations_add_up_to_the_capture(
    recorded: tuple[Capture, Path, Path, list[tuple[str, Rows]]], tmp_path: Path
) -> None:
    eagle, steps, _, rows = recorded
    chrome_trace.write(eagle, steps, tmp_path / "t.json.gz")
    spent: dict[tuple[str, bool], float] = defaultdict(float)
    for event in events(tmp_path / "t.json.gz")["traceEvents"]:
        if event["ph"] == "X":
            spent[event["name"], event["tid"] >= chrome_trace.ON_DEVICE] += event["dur"] / 1000
    phases = [one for window in eagle.windows for rank in window.ranks for one in rank.phases]
    for phase in ("draft", "verify", "draft_extend"):
        host = sum(one.count * one.host_ms.mean for one in phases if one.phase == phase and one.host_ms)
        device = sum(one.count * one.device_ms.mean for one in phases if one.phase == phase and one.device_ms)
        assert spent[phase, False] == pytest.approx(host, rel=1e-5)
        assert spent[phase, True] == pytest.approx(device, rel=1e-5)
    assert (spent["verify", True] > 0) == (rows[0][1].clock == "cuda_event")


def test_trace_marks_denials_and_the_gpus_state(tmp_path: Path) -> None:
    eagle, _, path = with_steps(tmp_path, [("c12", raw_rows(batch=12))])
    store.write(eagle, path)
    ran = eaglediag("export", path, "--trace", tmp_path / "t.json.gz")
    assert (ran.code, ran.err) == (0, f"wrote {tmp_path / 't.json.gz'}\n")
    found = events(tmp_path / "t.json.gz")["traceEvents"]
    denied = [event["args"] for event in found if event["name"] == "no graph"]
    assert len(denied) == 150
    assert {one["phase"] for one in denied} == {"draft", "verify", "draft_extend"}
    assert all("`cuda_graph_bs <= self.max_bs` was `12 <= 8`" in one["condition"] for one in denied)
    counters = [event for event in found if event["ph"] == "C" and event["pid"] == chrome_trace.CLOCKS]
    assert {event["name"] for event in counters} == {
        f"GPU {i} {what}" for i in range(2) for what in ("SM clock", "power", "clock event reasons")
    }
    assert [event["args"] for event in counters if event["name"] == "GPU 0 SM clock"][30] == {"MHz": 1455.0}


def test_trace_is_on_the_clock_of_the_profilers_traces() -> None:
    """The base that torch's profiler chose on a real server, and Unix time from its events."""
    with gzip.open(H200_TRACE, "rt", encoding="utf-8") as stream:
        recorded = json.load(stream)
    first = min(event["ts"] for event in recorded["traceEvents"] if event["ph"] == "X")
    unix = recorded["baseTimeNanoseconds"] / 1e9 + first / 1e6
    assert chrome_trace.base_ns(unix) == recorded["baseTimeNanoseconds"]


def test_trace_places_events_in_unix_time(tmp_path: Path) -> None:
    eagle, steps, _ = with_steps(tmp_path, [("c1", raw_rows())])
    chrome_trace.write(eagle, steps, tmp_path / "t.json.gz")
    document = events(tmp_path / "t.json.gz")
    first = min(event["ts"] for event in document["traceEvents"] if event["ph"] == "X")
    assert document["baseTimeNanoseconds"] / 1e9 + first / 1e6 == pytest.approx(eagle.created, abs=1e-5)


def test_csv_and_parquet_say_the_same(
    recorded: tuple[Capture, Path, Path, list[tuple[str, Rows]]], tmp_path: Path
) -> None:
    eagle, _, path, rows = recorded
    store.write(eagle, path)
    out = {name: tmp_path / f"s.{name}" for name in ("csv", "csv.gz", "parquet")}
    pytest.importorskip("pyarrow")
    for option, name in (("--csv", "csv"), ("--csv", "csv.gz"), ("--parquet", "parquet")):
        assert eaglediag("export", path, option, out[name]).code == 0
    assert gzip.decompress(out["csv.gz"].read_bytes()) == out["csv"].read_bytes()
    text, parquet = pd.read_csv(out["csv"]), pd.read_parquet(out["parquet"])
    assert list(text.columns) == list(parquet.columns) == list(steps_table.COLUMNS)
    assert len(text) == len(parquet) == sum(len(one.rows) for _, one in rows)
    for name in ("host_ms", "device_ms", "period_ms", "device_period_ms", "start_s"):
        pd.testing.assert_series_equal(text[name], parquet[name], rtol=1e-9, check_dtype=False)
    assert [list(map(int, str(one).split())) for one in text["accept_lengths"].dropna()] == [
        list(one) for one in parquet["accept_lengths"].dropna()
    ]
    by_phase = text[text["row"] == "phase"].groupby("phase")["host_ms"].sum()
    expected = sum(row[7] for _, one in rows for row in one.rows if row[0] == "phase" and row[2] == "verify")
    assert by_phase["verify"] == pytest.approx(expected / 1e6)


def test_a_window_cannot_become_a_formula(tmp_path: Path) -> None:
    for window in ('=HYPERLINK("http://x")', "+1,2", '@"x', "-x,nan\nnull"):
        _, steps, _ = with_steps(tmp_path, [(window, raw_rows(steps=3))])
        steps_table.write_csv(steps, tmp_path / "s.csv")
        with (tmp_path / "s.csv").open(newline="") as stream:
            assert {row["window"] for row in csv.DictReader(stream)} == {"'" + window.replace("\n", "\\n")}


def test_a_window_sends_no_escape_sequence(tmp_path: Path) -> None:
    _, steps, _ = with_steps(tmp_path, [("\x1b[2J\x00", raw_rows(steps=3))])
    steps_table.write_csv(steps, tmp_path / "s.csv")
    text = (tmp_path / "s.csv").read_text()
    assert "\x1b" not in text
    assert text.count("\\x1b[2J\\x00") == len(text.splitlines()) - 1


def test_series_of_steps_and_of_blocks_agree(tmp_path: Path) -> None:
    rows = [("c4", raw_rows(steps=500))]
    eagle, steps, _ = with_steps(tmp_path, rows)
    fine, coarse = step_series.from_steps(steps), step_series.from_blocks(eagle)
    totals = [
        (sum(one.steps for _, one in series.buckets), sum(one.total_ms for _, one in series.buckets))
        for series in (fine, coarse)
    ]
    assert totals[0] == pytest.approx(totals[1], rel=1e-5)
    assert fine.ranges
    assert not coarse.ranges
    assert len(fine.buckets) <= step_series.MAX_POINTS
    assert all(one.low_ms <= one.mean_ms <= one.high_ms for _, one in fine.buckets)


def test_what_cannot_be_exported_is_said(tmp_path: Path) -> None:
    eagle, steps, path = with_steps(tmp_path, [("c1", raw_rows())])
    store.write(eagle, path)
    assert "nothing to export" in eaglediag("export", path).err
    ran = eaglediag("export", path, "--csv", tmp_path / "no" / "x.csv")
    assert (ran.code, "No such file" in ran.err) == (2, True)
    steps.unlink()
    ran = eaglediag("export", path, "--trace", tmp_path / "t.json")
    assert (ran.code, "eagle.steps.jsonl.gz" in ran.err) == (2, True)

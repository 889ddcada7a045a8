"""The exported trace in Perfetto itself: read without a complaint, nested, complete, and beside the profiler's."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from eaglediag.capture import store
from eaglediag.reports import chrome_trace
from tests.browser import CHROMIUM, DRIVER, Browser
from tests.invoke import eaglediag
from tests.perfetto import Perfetto, perfetto
from tests.report_material import raw_rows, with_steps

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="chromium and chromedriver are not installed"),
]
PROFILE = Path(__file__).parents[1] / "data" / "h200" / "torch-profile-eager-bs12.json.gz"
COMPLAINTS = "SELECT name, value FROM stats WHERE value > 0 AND severity != 'info'"
SPANS = """
SELECT process.pid AS pid, thread.name AS track, slice.name AS name, parent.name AS inside, count(*) AS count,
       sum(slice.dur) / 1e6 AS ms
FROM slice JOIN thread_track ON slice.track_id = thread_track.id JOIN thread USING (utid) JOIN process USING (upid)
LEFT JOIN slice AS parent ON slice.parent_id = parent.id
WHERE slice.name != 'no graph' GROUP BY 1, 2, 3, 4
"""


@pytest.fixture(scope="module")
def viewer() -> Iterator[Perfetto]:
    with Browser() as browser, perfetto(browser) as one:
        yield one


def test_perfetto_reads_what_the_capture_says(viewer: Perfetto, tmp_path: Path) -> None:
    rows = [("c12", raw_rows(rank, 50, "cuda_event", batch=12)) for rank in range(2)]
    eagle, _, path = with_steps(tmp_path, rows)
    store.write(eagle, path)
    assert eaglediag("export", path, "--trace", tmp_path / "t.json.gz").code == 0
    viewer.open(tmp_path / "t.json.gz")
    assert viewer.query(COMPLAINTS) == []
    spans = viewer.query(SPANS)
    for rank in eagle.windows[0].ranks:
        pid = chrome_trace.FIRST_PROCESS + rank.rank
        for phase in rank.phases:
            found = {one["track"]: one for one in spans if (one["pid"], one["name"]) == (pid, phase.phase)}
            assert phase.host_ms is not None
            assert phase.device_ms is not None
            assert found["cycle"]["inside"] == "cycle"
            assert found["cycle"]["ms"] == pytest.approx(phase.count * phase.host_ms.mean, rel=1e-5)
            # a rank's parcels take turns on two tracks; here each rank is one parcel
            (device,) = (one for track, one in found.items() if track.startswith("device"))
            assert device["count"] == phase.count
            assert device["ms"] == pytest.approx(phase.count * phase.device_ms.mean, rel=1e-5)
    (denied,) = viewer.query("SELECT count(*) AS count FROM slice WHERE name = 'no graph'")
    assert denied["count"] == 2 * 3 * 50
    conditions = viewer.query(
        "SELECT DISTINCT EXTRACT_ARG(arg_set_id, 'args.condition') AS said FROM slice WHERE name = 'no graph'"
    )
    assert any("`12 <= 8`" in one["said"] for one in conditions)
    counters = viewer.query("SELECT DISTINCT name FROM counter JOIN counter_track ON track_id = counter_track.id")
    assert {one["name"] for one in counters} >= {"GPU 0 SM clock MHz", "GPU 1 power W"}


def test_both_traces_open_together_on_one_clock(viewer: Perfetto, tmp_path: Path) -> None:
    """Steps recorded while the profiler ran lie where the profiler's own events lie."""
    with gzip.open(PROFILE, "rt", encoding="utf-8") as stream:
        recorded = json.load(stream)
    begun_us = min(event["ts"] for event in recorded["traceEvents"] if event["ph"] == "X")
    begun_ns = recorded["baseTimeNanoseconds"] + int(begun_us * 1000)
    rows = raw_rows()
    rows.epoch_minus_perf_ns = begun_ns - min(int(row[6]) for row in rows.rows)
    eagle, steps, _ = with_steps(tmp_path, [("c12", rows)])
    eagle.created = begun_ns / 1e9
    eagle.hosts = []
    chrome_trace.write(eagle, steps, tmp_path / "steps.json")
    (tmp_path / "profile.json").write_text(json.dumps(recorded))
    with zipfile.ZipFile(tmp_path / "both.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("steps.json", "profile.json"):
            archive.write(tmp_path / name, name)
    viewer.open(tmp_path / "profile.json")
    of_the_profile = viewer.query(COMPLAINTS)
    viewer.open(tmp_path / "both.zip")
    assert viewer.query(COMPLAINTS) == of_the_profile
    ours = f"process.pid >= {chrome_trace.FIRST_PROCESS}"
    (first,) = viewer.query(
        f"SELECT min(ts) FILTER (WHERE {ours}) AS ours, min(ts) FILTER (WHERE NOT {ours}) AS theirs FROM slice "
        "JOIN thread_track ON track_id = thread_track.id JOIN thread USING (utid) JOIN process USING (upid)"
    )
    assert first["ours"] == pytest.approx(first["theirs"], abs=2_000)

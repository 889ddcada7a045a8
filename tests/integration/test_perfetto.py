"""The exported trace in Perfetto itself: read without a complaint, nested, complete, and beside the profiler's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from eaglediag.capture import store
from eaglediag.reports import chrome_trace
from tests.browser import CHROMIUM, DRIVER, Browser
from tests.invoke import eaglediag
from tests.perfetto import Perfetto, perfetto, profiled_on_h200
from tests.report_material import raw_rows, with_steps

pytestmark = [
    pytest.mark.browser,
    pytest.mark.wheels,
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="chromium and chromedriver are not installed"),
]
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


def test_steps_and_the_profilers_trace_of_one_run_open_together(viewer: Perfetto, tmp_path: Path) -> None:
    """Each graph launch that SGLang's profiler saw on an H200 lies inside the phase that eaglediag recorded."""
    both = profiled_on_h200(tmp_path)
    viewer.open(tmp_path / "profile.json")
    of_the_profile = viewer.query(COMPLAINTS)
    viewer.open(both)
    assert viewer.query(COMPLAINTS) == of_the_profile
    launched = viewer.query(
        f"""
        SELECT phase.name AS name, count(*) AS count
        FROM slice AS launch
        JOIN slice AS phase ON phase.ts <= launch.ts AND launch.ts + launch.dur <= phase.ts + phase.dur
        JOIN thread_track ON phase.track_id = thread_track.id JOIN thread USING (utid) JOIN process USING (upid)
        WHERE launch.name = 'cudaGraphLaunch' AND process.pid >= {chrome_trace.FIRST_PROCESS}
        AND thread.name = 'cycle' AND phase.name != 'cycle' GROUP BY 1
        """
    )
    assert {one["name"]: one["count"] for one in launched} == {"draft": 10, "verify": 10, "draft_extend": 10}
    (graphs,) = viewer.query("SELECT count(*) AS count FROM slice WHERE name = 'cudaGraphLaunch'")
    assert graphs["count"] == 30

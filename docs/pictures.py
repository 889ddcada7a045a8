"""Draws the pictures of the documentation: python -m docs.pictures DEMO_FOLDER

The folder is what `eaglediag demo -o DEMO_FOLDER` left; the others come from recordings on H200s in tests/data.
Needs Chromium and chromedriver.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from eaglediag.capture import store
from eaglediag.capture.model import CapturedGraphs
from tests import recorded_collectives, recordings
from tests.browser import Browser
from tests.invoke import eaglediag
from tests.perfetto import perfetto, profiled_on_h200

PICTURES = Path(__file__).with_name("pictures")
DEMO = {
    "header": "demo-verdict",
    "#cycle .wide": "demo-cycle",
    "#acceptance .wide": "demo-acceptance",
    "#timeline1 .wide": "demo-timeline",
}
H200 = {
    "header": "h200-verdict",
    "#speedup .wide": "h200-speedup",
    "#cycle .wide": "h200-cycle",
    "#batches .wide": "h200-batches",
}
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "h200-2026-11-29" / "alone"
#: A denial takes two rows.
FIRST_DENIAL = """
for (const row of [...document.querySelectorAll("#denials tbody tr")].slice(2)) row.remove();
for (const more of document.querySelectorAll("#denials details")) more.open = true;
"""
#: Perfetto's timeline, without what is around it.
TRACKS = ".pf-viewer-page__scrolling-track-tree"


def main() -> None:
    """Draw them all."""
    demo = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as name, Browser() as browser:
        folder = Path(name)
        baseline, eagle = recordings.captures()
        # The server's log names the sizes it captured; the records do not.
        graphs = CapturedGraphs(sizes=list(range(1, 9)))
        baseline.server.captured, eagle.server.captured = {"decode": graphs}, {"verify": graphs}
        for one, file in ((baseline, "baseline"), (eagle, "eagle"), (recorded_collectives.capture(), "tp2")):
            store.write(one, folder / f"{file}.json")
        h200 = folder / "baseline.json", folder / "eagle.json"
        draw(browser, (demo / "baseline.json", demo / "eagle.json"), folder / "demo.html", DEMO)
        draw(browser, h200, folder / "h200.html", H200)
        draw(browser, (folder / "tp2.json",), folder / "tp2.html", {"#collectives .wide": "h200-collectives"})
        alone = RESULTS / "baseline.json", RESULTS / "eagle.json"
        draw(browser, alone, folder / "alone.html", {})
        browser.run(FIRST_DENIAL)
        (PICTURES / "h200-denial.png").write_bytes(browser.picture("#denials"))
        with perfetto(browser) as viewer:
            viewer.open(profiled_on_h200(folder), 1500, 590)
            first = viewer.query("SELECT min(ts) AS ns FROM slice WHERE name = 'cudaGraphLaunch'")[0]["ns"]
            viewer.show(first - 2_700_000, first + 16_000_000)
            (PICTURES / "h200-perfetto.png").write_bytes(browser.picture(TRACKS))
        draw(browser, h200, folder / "dark.html", {"#cycle .narrow": "h200-cycle-dark-phone"}, width=380, dark=True)


def draw(
    browser: Browser,
    captures: tuple[Path, ...],
    page: Path,
    wanted: dict[str, str],
    *,
    width: int = 860,
    dark: bool = False,
) -> None:
    """Write the report of some captures and take pictures of its elements."""
    ran = eaglediag("report", *captures, "--html", page)
    if ran.code:
        raise SystemExit(ran.err)
    browser.open(page, width, 1200, dark=dark)
    for selector, name in wanted.items():
        (PICTURES / f"{name}.png").write_bytes(browser.picture(selector))


if __name__ == "__main__":
    main()

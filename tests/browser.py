"""A headless Chromium over WebDriver, in as much as the tests of pages need."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")


class Browser:
    """One browser with one tab. `logs` are what the page's console and network said since they were last read."""

    def __init__(self) -> None:
        assert CHROMIUM is not None
        assert DRIVER is not None
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        self._base = f"http://127.0.0.1:{port}"
        self._driver = subprocess.Popen([DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL)
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--force-device-scale-factor=1",
        ]
        capabilities = {
            "goog:chromeOptions": {"binary": CHROMIUM, "args": flags},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        deadline = time.monotonic() + 60
        while True:
            try:
                made = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
                break
            except (ConnectionError, urllib.error.URLError):
                if time.monotonic() > deadline or self._driver.poll() is not None:
                    self._driver.kill()
                    raise
                time.sleep(0.2)
        self._base += f"/session/{made['sessionId']}"

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._ask("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.wait(10)

    def open(
        self, page: Path | str, width: int = 1000, height: int = 1200, *, dark: bool = False, **media: str
    ) -> None:
        """Open a page, a file or an address, in a window of this size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.cdp("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.cdp("Emulation.setEmulatedMedia", features=features, **media)
        self._ask("POST", "/url", {"url": page.as_uri() if isinstance(page, Path) else page})

    def run(self, script: str, *arguments: object) -> Any:
        """The value that a function body returns in the page."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def run_async(self, script: str, *arguments: object) -> Any:
        """The value that a function body hands to its last argument."""
        return self._ask("POST", "/execute/async", {"script": script, "args": arguments})

    def cdp(self, command: str, **parameters: object) -> Any:
        """One command of the DevTools protocol."""
        return self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def console(self) -> list[str]:
        """Messages of the page's console, errors among them."""
        return [entry["message"] for entry in self._ask("POST", "/se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """Addresses that the page asked for."""
        entries = [
            json.loads(one["message"])["message"] for one in self._ask("POST", "/se/log", {"type": "performance"})
        ]
        sent = [one["params"]["request"]["url"] for one in entries if one["method"] == "Network.requestWillBeSent"]
        return [str(url) for url in sent]

    def press(self, keys: str) -> None:
        """Keys, one after the other, as from a keyboard."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._ask("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def pdf(self) -> bytes:
        """The page, printed."""
        return base64.b64decode(self._ask("POST", "/print", {"background": False}))

    def picture(self, selector: str = "body") -> bytes:
        """What an element looks like, as PNG."""
        box = self.run(
            "const r = document.querySelector(arguments[0]).getBoundingClientRect();"
            "return {x: r.x + scrollX, y: r.y + scrollY, width: r.width, height: r.height, scale: 1}",
            selector,
        )
        taken = self.cdp("Page.captureScreenshot", clip=box, captureBeyondViewport=True)
        return base64.b64decode(taken["data"])

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.read().decode()[:2000]}") from error

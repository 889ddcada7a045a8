"""The HTML report in a real headless Chromium: it works, fits a phone, prints, and needs neither eyes nor mouse."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from eaglediag.capture import store
from tests import recorded_collectives, recordings
from tests.browser import CHROMIUM, DRIVER, Browser
from tests.hostile import hostile_pair
from tests.invoke import eaglediag
from tests.report_material import full_pair

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="chromium and chromedriver are not installed"),
]
AXE = "axe-core@4.11.0"
LOG = Path(__file__).parent.parent / "data" / "h200" / "h200x1-eagle.log.gz"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as one:
        yield one


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports of everything that reports are made of."""
    folder = tmp_path_factory.mktemp("pages")
    sets = {
        "full": full_pair(),
        "h200": recordings.captures(),
        "alone": full_pair()[1:],
        "collectives": (recorded_collectives.capture(),),
        "hostile": hostile_pair(),
    }
    made = {}
    for name, captures in sets.items():
        paths = [folder / f"{name}-{i}.json" for i in range(len(captures))]
        for path, one in zip(paths, captures, strict=True):
            store.write(one, path)
        made[name] = folder / f"{name}.html"
        ran = eaglediag("report", *paths, "--html", made[name])
        assert ran.code == 0, ran.err
    log, made["log"] = folder / "log.json", folder / "log.html"
    assert eaglediag("import", LOG, "--output", log).code == 0
    assert eaglediag("report", log, "--html", made["log"]).code == 0
    return made


NAMES = ("full", "h200", "alone", "collectives", "hostile", "log")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [360, 1000])
def test_quiet_and_in_bounds(browser: Browser, pages: dict[str, Path], name: str, width: int) -> None:
    """No console message, no request but the page's own, nothing wider than the window."""
    browser.console()
    browser.requests()
    browser.open(pages[name], width)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.console() == []
    assert browser.requests() == [pages[name].as_uri()]


@pytest.mark.parametrize("width", [360, 1000])
def test_pictures_are_not_empty(browser: Browser, pages: dict[str, Path], width: int) -> None:
    """Each figure shows one picture at each width, and it has more than one colour in it."""
    browser.open(pages["full"], width)
    names = browser.run("return [...document.querySelectorAll('section:has(figure)')].map(one => one.id)")
    assert names == ["speedup", "cycle", "batches", "acceptance", "timeline0", "timeline1", "collectives"]
    for name in names:
        side = "narrow" if width < 500 else "wide"
        assert browser.run(f"return getComputedStyle(document.querySelector('#{name} .{side}')).display") != "none"
        assert colours(browser.picture(f"#{name} .{side} svg")) > 8


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [360, 1000])
def test_no_label_is_cut_off_or_printed_on_another(
    browser: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    browser.open(pages[name], width)
    wrong = browser.run(
        """
        const wrong = [];
        for (const picture of document.querySelectorAll('svg[role=img]')) {
            const box = picture.getBoundingClientRect();
            const labels = [...picture.querySelectorAll('text')].filter(one => box.width && one.textContent.trim());
            const places = labels.map(one => [one.textContent, one.getBoundingClientRect()]);
            places.forEach(([words, a], i) => {
                if (a.left < box.left - 1 || a.right > box.right + 1) wrong.push([words]);
                for (const [others, b] of places.slice(i + 1)) {
                    const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
                    const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
                    if (across > 2 && down > 5) wrong.push([words, others]);
                }
            });
        }
        return wrong;
        """
    )
    assert wrong == []


def test_an_isolated_stretch_is_drawn_where_it_was_measured(browser: Browser, pages: dict[str, Path]) -> None:
    """A style must not move what an attribute has placed."""
    browser.open(pages["log"], 1000)
    marks = browser.run(
        """
        const picture = document.querySelector('#timeline0 .wide svg');
        const box = picture.getBoundingClientRect(), scale = box.width / 720;
        return [...picture.querySelectorAll('.mark')].map(one => {
            const r = one.getBoundingClientRect();
            return [one.getAttribute('transform'), (r.left + r.right) / 2 / scale - box.left / scale,
                    (r.top + r.bottom) / 2 / scale - box.top / scale];
        });
        """
    )
    assert len(marks) == 1
    for transform, x, y in marks:
        assert [float(one) for one in re.findall(r"[\d.]+", transform)[:2]] == pytest.approx([x, y], abs=0.7)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["full", "hostile"])
def test_axe_finds_no_serious_fault(browser: Browser, pages: dict[str, Path], axe: str, name: str, dark: bool) -> None:
    browser.open(pages[name], 1000, dark=dark)
    browser.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    browser.cdp("Runtime.evaluate", expression=axe)
    found = browser.run_async("const done = arguments[0]; axe.run().then(r => done(JSON.stringify(r.violations)))")
    serious = [
        (one["id"], [node["html"][:200] for node in one["nodes"][:3]])
        for one in json.loads(found)
        if one["impact"] in ("serious", "critical", "moderate")
    ]
    assert serious == []


def test_keyboard_alone(browser: Browser, pages: dict[str, Path]) -> None:
    """The first stop skips to the report; a table opens with Enter."""
    tab, enter = "\ue004", "\ue007"
    browser.open(pages["full"])
    browser.press(tab)
    assert browser.run("return document.activeElement.textContent") == "To the report"
    browser.press(enter)
    assert browser.run("return location.hash") == "#main"
    browser.run("document.querySelector('#cycle summary').focus()")
    browser.press(enter)
    assert browser.run("return document.querySelector('#cycle details').open")
    stops = browser.run("return [...document.querySelectorAll('.scroll')].every(one => one.tabIndex === 0)")
    assert stops


def test_links_lead_somewhere(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["full"])
    dangling = browser.run(
        "return [...document.querySelectorAll('a')].map(a => a.getAttribute('href'))"
        ".filter(to => !to.startsWith('#') || !document.getElementById(to.slice(1)))"
    )
    assert dangling == []
    assert browser.run("return document.querySelectorAll('figcaption a').length") > 3


def test_prints_all_of_it(browser: Browser, pages: dict[str, Path]) -> None:
    """On paper the tables are open, the colours light, and nothing is cut off at the right."""
    browser.open(pages["full"], dark=True, media="print")
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.run("return document.querySelector('#cycle table').getBoundingClientRect().height") > 40
    sizes = "new Set([...document.querySelectorAll('table, table *')].map(one => getComputedStyle(one).fontSize))"
    assert browser.run(f"return [...{sizes}].map(parseFloat)") == pytest.approx([8 * 96 / 72], abs=0.01)
    assert browser.run("return getComputedStyle(document.querySelector('.denials .more')).breakInside") == "auto"
    browser.cdp("Emulation.setEmulatedMedia", media="", features=[])
    pdf = browser.pdf()
    assert pdf.startswith(b"%PDF-")
    assert pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") >= 3


def test_hostile_text_stays_text(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["hostile"])
    assert browser.run("return window.pwned === undefined")
    assert browser.run("return document.querySelectorAll('script, img, iframe, b, marquee').length") == 0
    assert "<script>" in browser.run("return document.body.innerText")


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """axe-core's script, from npm."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    folder = tmp_path_factory.mktemp("axe")
    done = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), AXE], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"axe-core is not to be had: {done.stderr.strip()[-200:]}")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


def colours(png: bytes) -> int:
    """How many different colours a PNG has (8 bits a channel, not interlaced, as Chromium writes them)."""
    width = int.from_bytes(png[16:20], "big")
    channels = {2: 3, 6: 4}[png[25]]
    at, packed = 8, b""
    while at < len(png):
        size, kind = int.from_bytes(png[at : at + 4], "big"), png[at + 4 : at + 8]
        packed += png[at + 8 : at + 8 + size] if kind == b"IDAT" else b""
        at += 12 + size
    raw, stride, seen = zlib.decompress(packed), width * channels, set()
    line = bytearray(stride)
    for start in range(0, len(raw), stride + 1):
        line = _unfiltered(raw[start], raw[start + 1 : start + 1 + stride], line, channels)
        seen |= {bytes(line[i : i + 3]) for i in range(0, stride, channels)}
    return len(seen)


def _unfiltered(kind: int, data: bytes, above: bytearray, channels: int) -> bytearray:
    line = bytearray(data)
    for i in range(len(line)):
        left = line[i - channels] if i >= channels else 0
        corner = above[i - channels] if i >= channels else 0
        match kind:
            case 1:
                line[i] = (line[i] + left) & 255
            case 2:
                line[i] = (line[i] + above[i]) & 255
            case 3:
                line[i] = (line[i] + (left + above[i]) // 2) & 255
            case 4:
                guess = left + above[i] - corner
                best = min((left, above[i], corner), key=lambda one: abs(guess - one))
                line[i] = (line[i] + best) & 255
    return line

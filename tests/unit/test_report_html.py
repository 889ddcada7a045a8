"""The HTML report's text: self-contained, small, sound markup, every figure with its table, method and findings."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from eaglediag.analysis.comparison import compare
from eaglediag.analysis.measured import measure
from eaglediag.capture import store
from eaglediag.capture.model import Blocks, Window
from eaglediag.probes.turns import merged
from eaglediag.reports.html import acceptance, batches, drawing
from tests import recorded_collectives
from tests.factories import START, capture, decode, gpu, pair
from tests.factories import cycle as cycle_cost
from tests.hostile import hostile_pair
from tests.html_material import figures, rendered
from tests.invoke import eaglediag
from tests.report_material import full_pair, raw_rows, with_steps

VOID = {"meta", "link", "br", "rect", "line", "path"}


class Page(HTMLParser):
    """What stands in a page: tags that match, ids, links, text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.links: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attributes:
            assert not name.startswith("on")
            if name == "id":
                self.ids[value or ""] += 1
            elif name == "href":
                self.links.append(value or "")
            elif name in ("src", "action", "srcset", "data", "xlink:href"):
                self.addresses.append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


CASES = {
    "full": full_pair,
    "plain": pair,
    "alone": lambda: full_pair()[1:],
    "baseline alone": lambda: full_pair()[:1],
    "collectives": lambda: (recorded_collectives.capture(),),
    "old and new": lambda: (capture("old", {1: cycle_cost(5)}, seed=1), capture("new", {1: cycle_cost(6)}, seed=2)),
    "hostile": hostile_pair,
}


@pytest.mark.parametrize("name", CASES)
def test_sound_and_self_contained(name: str) -> None:
    text = rendered(*CASES[name]())
    page = Page(text)
    assert [one for one, count in page.ids.items() if count > 1] == []
    assert page.addresses == []
    assert [link for link in page.links if link != "data:," and link.removeprefix("#") not in page.ids] == []
    assert page.tags["script"] == 0
    assert page.tags["figure"] == page.tags["summary"] - text.count("<summary>source") - text.count("<summary>from the")
    assert text.count('<svg role="img"') == 2 * page.tags["figure"]
    assert page.tags["svg"] == text.count('<svg role="img"') + text.count('<svg class="sample"')
    assert page.text.count("How it was measured:") == page.tags["figure"]
    assert re.search(r"url\((?!#)|@import|[^:]//[a-z]", text.replace("http://evil.example", "")) is None
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    assert "nan" not in re.findall(r'="([^"]*)"', text)


def test_hostile_text_is_all_there_and_only_text() -> None:
    page = Page(rendered(*hostile_pair()))
    assert page.tags["img"] == page.tags["b"] == page.tags["details"] - page.tags["summary"] == 0
    assert "<script>window.pwned = 1</script>" in page.text
    assert "\\x1b[2J" in page.text
    assert "{{ 7 * 7 }}" in page.text


def test_the_verdict_comes_first_and_is_more_than_a_colour() -> None:
    page = Page(rendered(*full_pair()))
    words = " ".join(page.text.split())
    order = ["better EAGLE-3 is 39 % faster at batch 1", "to know before", "A line is what", "What is the matter"]
    places = [words.index(one) for one in order]
    assert places == sorted(places)


def test_figures_link_to_their_findings_and_back() -> None:
    text = rendered(*full_pair())
    [verify] = re.findall(
        r'<article id="(finding-\d+)"[^>]*>\s*<h3[^>]*>\d+\. denied their graphs at batch 12: verify', text
    )
    section = text[text.index('id="cycle"') : text.index('id="batches"')]
    assert f'href="#{verify}"' in section
    assert f'href="#{verify}"' in text[text.index('id="denials"') :]
    assert 'href="#cycle"' in text[text.index(f'id="{verify}"') :]


def test_ten_minutes_of_eight_ranks_stay_under_a_megabyte() -> None:
    costs = {size: cycle_cost(9.0, blocks=200) for size in (1, 4, 12)}
    gpus = [gpu(i, samples=600) for i in range(8)]
    eagle = capture("eagle", costs, tp=8, gpus=gpus, denials=full_pair()[1].denials * 20)
    baseline = capture("baseline", {size: decode(8.0, blocks=200) for size in costs}, tp=8, gpus=gpus)
    assert len(rendered(baseline, eagle).encode()) < 1_000_000


def test_the_waterfall_adds_up_and_tells_graph_from_eager_without_colour() -> None:
    one = figures(*full_pair())["cycle"]
    rows = [row for row in one.table.rows if row[0] == "12" and row[1].startswith("eagle")]
    whole = compare(*full_pair()).rows[-1].candidate.period.value
    assert sum(float(row[4]) for row in rows) == pytest.approx(whole, abs=0.01)
    for before, after in pairwise(rows):
        assert float(before[3]) + float(before[4]) == pytest.approx(float(after[3]), abs=0.01)
    assert [row[5] for row in rows] == ["eager", "eager", "eager", "–"]
    assert one.wide.count('fill="url(#cycle-wide-hatch)"') == 4  # three eager parts, and the baseline's decode
    assert "45.2 ms eager" in one.wide


def test_crossover_and_captured_maximum_are_marked() -> None:
    one = figures(*full_pair())["batches"]
    assert "captured ≤ 8" in one.wide
    assert "crossover" in one.wide
    assert "between batch 4 and 12" in one.says
    [(a, b, place)] = batches.crossovers(compare(*full_pair()).rows)
    assert (a, b) == (4, 12)
    assert 4 < place < 12


def test_captured_sizes_in_tokens_are_counted_in_requests() -> None:
    eagle = full_pair()[1]
    graphs = eagle.server.captured["verify"]
    graphs.sizes, graphs.unit, graphs.tokens_per_request = [3, 6, 24], "tokens", 3
    assert batches.captured(eagle) == 8


def test_positions_that_were_never_reached_are_shown_as_zero() -> None:
    eagle = capture("eagle", {1: cycle_cost(5.0)})
    stats = eagle.windows[0].ranks[0].batches[0]
    assert stats.accept is not None
    stats.accept.histogram = [60, 40]
    positions, lengths = acceptance.panels(measure(eagle).batches[1], most=4)
    assert [bar.share for bar in positions] == [0.4, 0.0]
    assert [bar.passes for bar in positions] == [100, 40]
    assert [bar.share for bar in lengths] == [0.6, 0.4, 0.0, 0.0]


def test_clocks_and_reasons_share_the_axis_and_may_be_missing() -> None:
    one = figures(*full_pair())["timeline0"]
    assert "software power cap" in one.wide
    assert "1455 to 1980 MHz, slowed by software power cap" in one.says
    slowed = [row for row in one.table.rows if row[6] == "software power cap"]
    assert {row[4] for row in slowed} <= {"1455 to 1465", "1455 to 1980"}
    _, eagle = full_pair()
    eagle.hosts = []
    without = figures(capture("baseline", {1: decode(4.2)}), eagle)["timeline0"]
    assert "MHz" not in without.wide
    assert "was not sampled" in without.measured


def test_the_axis_leaves_out_the_pauses_between_starts() -> None:
    first, second = (capture("baseline", {1: decode(ms)}, seed=1) for ms in (4.2, 5.6))
    [window] = second.windows
    later = 600.0
    window.repeat, window.id, window.started = 1, "c1-r1", window.started + later
    blocks = window.ranks[0].batches[0].blocks
    blocks.t = [t + later for t in blocks.t]
    second.hosts[0].gpus[0].series.t = [t + later for t in second.hosts[0].gpus[0].series.t]
    [one] = [figure for figure in figures(merged(first, second)).values() if figure.name == "timeline0"]
    assert one.wide.count(">start 1<") == one.wide.count(">start 2<") == 1
    assert "pauses between starts left out" in one.wide
    assert one.wide.count('class="line line0 key0"') == 2  # nothing is drawn from one start to the other
    times = [float(row[0]) for row in one.table.rows]
    assert times == sorted(times)
    assert times[-1] < 60
    assert all(row[4] == "1980 to 1980" for row in one.table.rows)


def test_raw_steps_beside_the_capture_are_used(tmp_path: Path) -> None:
    eagle, _, path = with_steps(tmp_path, [("c1", raw_rows(steps=200))])
    store.write(eagle, path)
    ran = eaglediag("report", path, "--html", tmp_path / "r.html")
    assert (ran.code, ran.out) == (0, "")
    assert "from the raw steps" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize("low", [0.0, 0.004, 3.0, 1e7])
@pytest.mark.parametrize("span", [0.0, 1e-6, 0.7, 12.0, 1e9])
def test_ticks_are_few_round_and_within(low: float, span: float) -> None:
    found = drawing.ticks(low, low + span)
    assert 1 <= len(found) <= 11 or span == 1e-6
    assert all(low - 1e-9 * max(1.0, span) <= one <= low + span + 1e-9 * max(1.0, span) for one in found)


def test_a_capture_without_anything_still_makes_a_page() -> None:
    eagle = full_pair()[1]
    eagle.windows = [Window(id="w", started=START, duration_s=1.0)]
    eagle.hosts = []
    eagle.denials = []
    page = Page(rendered(eagle))
    assert page.tags["figure"] == 0
    assert "no steps were recorded" in page.text


def test_blocks_without_steps_draw_nothing() -> None:
    eagle = full_pair()[1]
    for window in eagle.windows:
        for rank in window.ranks:
            for batch in rank.batches:
                batch.blocks = Blocks()
    assert "timeline0" not in figures(eagle)
    Page(rendered(eagle))


class HtmlFile(SingleFileSnapshotExtension):
    file_extension = "html"
    _write_mode = WriteMode.TEXT


def test_snapshot(snapshot: SnapshotAssertion) -> None:
    assert rendered(*full_pair()) == snapshot(extension_class=HtmlFile)

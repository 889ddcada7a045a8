"""Pages one after the other: what is counted between them, and what is left out."""

from __future__ import annotations

import pytest

from eaglediag.capture.model import BatchStats
from eaglediag.probes.evidence.metrics_page import parse_metrics
from eaglediag.probes.evidence.metrics_series import Measured, Poll, busy, emitted, measured, running, trimmed
from tests.fake_server import sglang_page, vllm_page


def polls(*pages: str, every: float = 0.5) -> list[Poll]:
    return [Poll(1000 + i * every, trimmed(parse_metrics(page))) for i, page in enumerate(pages)]


def batch(found: Measured) -> BatchStats:
    ((only,),) = [rank.batches for rank in found.ranks]
    return only


def test_steps_are_counted_and_time_divided_by_them() -> None:
    found = measured(
        polls(
            sglang_page(4, 800.1, 2.0, steps=100, tokens=800),
            sglang_page(4, 800.2, 2.1, steps=150, tokens=1210),
            sglang_page(4, 800.3, 2.0, steps=190, tokens=1530),
        ),
        40,
        speculative=True,
    )
    one = batch(found)
    assert (one.batch_size, one.kind, one.count, one.period_ms.method) == (4, "cycle", 90, "metrics")
    assert one.period_ms.mean == pytest.approx(1000 / 90)
    assert one.blocks.steps == [50, 40]
    assert one.accept is not None
    assert (one.accept.passes, one.accept.tokens) == (4 * 90, 730)
    assert [(part.phase, part.graph, part.count) for part in one.parts] == [("verify", True, 90)]
    assert not found.mixed


def test_without_speculation_it_is_a_decode_step() -> None:
    found = measured(
        polls(sglang_page(2, 1.0, steps=0, graph=False), sglang_page(2, 2.0, steps=25, graph=False)), 40, False
    )
    one = batch(found)
    assert (one.kind, one.accept) == ("decode", None)
    assert one.period_ms.mean == pytest.approx(20.0)
    assert [(part.phase, part.graph, part.count) for part in one.parts] == [("decode", False, 25)]


def test_a_stretch_goes_on_until_a_new_line_says_how_many_run() -> None:
    """The gauge is as old as the last decode line: without a new one it says nothing of now."""
    found = measured(
        polls(
            sglang_page(4, 800.1, steps=100),
            sglang_page(4, 800.1, steps=110),
            sglang_page(4, 800.2, steps=120),
            sglang_page(4, 800.2, steps=130),
            sglang_page(2, 500.0, steps=140),
        ),
        40,
        False,
    )
    one = batch(found)
    assert (one.batch_size, one.count, one.blocks.steps) == (4, 20, [20])
    assert one.period_ms.mean == pytest.approx(50.0)


def test_stretches_with_prefills_count_only_where_there_is_none_without() -> None:
    pages = [
        sglang_page(4, 1.0, steps=100, prefilled=0),
        sglang_page(4, 2.0, steps=120, prefilled=64, ended=4),
        sglang_page(4, 3.0, steps=170, prefilled=64, ended=4),
    ]
    assert batch(measured(polls(*pages), 40, False)).count == 50
    mixed = measured(polls(*pages[:2]), 40, False)
    assert (batch(mixed).count, mixed.mixed) == (20, [4])


def test_a_pause_between_two_loads_is_no_step() -> None:
    found = measured(
        polls(
            sglang_page(4, 1.0, steps=100),
            sglang_page(4, 2.0, steps=150),
            sglang_page(4, 2.0, steps=150, ended=7),
            sglang_page(4, 2.0, steps=150, ended=7),
            sglang_page(4, 3.0, steps=200, ended=7, prefilled=400),
        ),
        40,
        False,
    )
    assert batch(found).period_ms.max == pytest.approx(10.0)


def test_before_0_5_8_the_gauges_say_what_the_line_said() -> None:
    found = measured(
        polls(sglang_page(4, 790.0, 2.0), sglang_page(4, 800.0, 2.0), sglang_page(4, 800.0, 2.0)), 40, True
    )
    one = batch(found)
    assert one.count == 40
    assert one.period_ms.mean == pytest.approx(10.0)
    assert one.accept is not None
    assert one.accept.tokens / one.accept.passes == 2.0
    assert [(part.graph, part.count) for part in one.parts] == [(True, 1)]


def test_a_server_that_was_started_again_counts_from_zero() -> None:
    found = measured(polls(sglang_page(4, 1.0, steps=5000, tokens=9), sglang_page(4, 2.0, steps=50)), 40, False)
    assert found.ranks == []
    first, last = polls(sglang_page(4, 1.0, steps=5000, tokens=9000), sglang_page(4, 2.0, steps=50, tokens=90))
    assert emitted(first.page, last.page) is None


def test_data_parallel_ranks_are_apart() -> None:
    pages = [sglang_page(4, n, steps=50 * n) + sglang_page(7, n, steps=20 * n, dp_rank=1) for n in (1, 2, 3)]
    found = measured(polls(*pages), 40, False)
    assert [(rank.rank, rank.batches[0].batch_size, rank.batches[0].count) for rank in found.ranks] == [
        (0, 4, 100),
        (1, 7, 40),
    ]
    assert running(polls(*pages)) is None


def test_vllm_counts_drafts_by_position() -> None:
    found = measured(
        polls(vllm_page(8, 1000, 8000, (6000, 4000, 2000)), vllm_page(8, 1050, 8400, (6300, 4200, 2100))), 40, True
    )
    one = batch(found)
    assert one.count == 50
    assert one.period_ms.mean == pytest.approx(10.0)
    assert one.accept is not None
    assert (one.accept.passes, one.accept.tokens, one.accept.histogram) == (400, 1000, [100, 100, 100, 100])
    assert one.parts == []


def test_when_the_server_worked() -> None:
    steps = [10, 10, 60, 110, 110, 110, 150]
    pages = polls(*(sglang_page(4 if n else 0, n, steps=n) for n in steps))
    assert busy(pages) == [(1, 3), (5, 6)]
    assert running(pages[1:4]) == 4


def test_a_page_keeps_what_is_counted_alone() -> None:
    page = parse_metrics(sglang_page(4, 1.0, steps=3) + 'sglang:e2e_request_latency_seconds_bucket{le="1"} 3\n')
    assert "sglang:e2e_request_latency_seconds_bucket" not in trimmed(page).samples
    assert "sglang:realtime_tokens_total" in trimmed(page).samples

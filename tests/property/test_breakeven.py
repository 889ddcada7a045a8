"""Laws of the break-even arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglediag.analysis import breakeven
from eaglediag.analysis.breakeven import CycleTime

lengths = st.integers(1, 64)
rates = st.floats(0, 1)
times = st.floats(0.01, 1000)


@given(rates, lengths)
def test_required_acceptance_inverts_the_chain(rate: float, tokens: int) -> None:
    length = breakeven.expected_accept_length(rate, tokens)
    found = breakeven.required_acceptance(length, tokens)
    assert breakeven.expected_accept_length(found, tokens) == pytest.approx(length, rel=1e-12)


@given(st.floats(0, 1), lengths)
def test_every_length_in_reach_has_a_rate(share: float, tokens: int) -> None:
    length = 1 + share * tokens
    rate = breakeven.required_acceptance(length, tokens)
    assert 0 <= rate <= 1
    assert breakeven.expected_accept_length(rate, tokens) == pytest.approx(length, rel=1e-12)


@given(rates, rates, lengths)
def test_the_chain_is_monotone(one: float, other: float, tokens: int) -> None:
    low, high = sorted((one, other))
    short, long = (breakeven.expected_accept_length(rate, tokens) for rate in (low, high))
    assert 1 <= short <= long <= tokens + 1
    assert breakeven.required_acceptance(short, tokens) <= breakeven.required_acceptance(long, tokens)


@given(rates, lengths)
def test_the_chain_is_the_closed_form(rate: float, tokens: int) -> None:
    if rate < 0.999:
        closed = (1 - rate ** (tokens + 1)) / (1 - rate)
        assert breakeven.expected_accept_length(rate, tokens) == pytest.approx(closed, rel=1e-9)


@given(lengths, st.floats(0.001, 100))
def test_out_of_reach(tokens: int, beyond: float) -> None:
    with pytest.raises(ValueError, match="between 1 and"):
        breakeven.required_acceptance(tokens + 1 + beyond, tokens)


@given(times, times, times, times, times, st.floats(1, 8))
def test_both_ways_agree(
    step: float, verify: float, draft: float, extend: float, host: float, accept_length: float
) -> None:
    """From times, and from the throughputs that these times give."""
    cycle = CycleTime(verify, draft, extend, host)
    by_time = breakeven.from_times(step, cycle, accept_length=accept_length)
    by_rate = breakeven.from_throughputs(
        1000 / step, 1000 * accept_length / cycle.total_ms, accept_length=accept_length
    )
    assert by_time.break_even_accept_length == pytest.approx(by_rate.break_even_accept_length)
    assert by_time.speedup == pytest.approx(by_rate.speedup)
    assert by_time.speedup == pytest.approx(accept_length / by_time.break_even_accept_length)


@given(times, times, times)
def test_a_part_left_out_only_lowers_the_bound(step: float, verify: float, draft: float) -> None:
    alone = breakeven.from_times(step, CycleTime(verify))
    more = breakeven.from_times(step, CycleTime(verify, draft))
    assert alone.break_even_accept_length <= more.break_even_accept_length
    assert set(more.missing) < set(alone.missing)

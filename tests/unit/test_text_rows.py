"""Columns of numbers as text, held to Python's own formatting."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from eaglediag.reports.text_rows import chosen, decimal, joined

WHOLE = st.integers(-(2**63) + 1, 2**63 - 1)


def lines(values: np.ndarray, places: int) -> list[str]:
    return joined(len(values), decimal(values, places), b"\n").decode().splitlines()


@given(st.lists(WHOLE), st.integers(0, 12))
def test_whole_numbers_keep_every_digit(values: list[int], places: int) -> None:
    expected = [f"{Decimal(one).scaleb(-places):f}" if places else str(one) for one in values]
    assert lines(np.array(values, np.int64), places) == expected


@given(st.lists(st.one_of(st.just(float("nan")), st.floats(-1e12, 1e12)), min_size=1))
def test_a_float_is_rounded_to_its_last_place_and_nan_is_nothing(values: list[float]) -> None:
    for value, text in zip(values, lines(np.array(values), 3), strict=True):
        assert text == "" if value != value else Decimal(text) == Decimal(round(value)).scaleb(-3)


def test_a_time_of_day_keeps_its_nanoseconds() -> None:
    assert lines(np.array([1_750_000_000_123_456_789]), 9) == ["1750000000.123456789"]


def test_columns_of_every_width_make_lines() -> None:
    names = chosen([b"draft", b"", b"draft_extend"], np.array([2, 1, 0]))
    text = joined(3, b"[", names, b",", decimal(np.array([7, 12_345, 0])), b"]\n")
    assert text == b"[draft_extend,7]\n[,12345]\n[draft,0]\n"


def test_no_lines_are_no_text() -> None:
    assert joined(0, b"x", decimal(np.array([], np.int64), 3), b"\n") == b""

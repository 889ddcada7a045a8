"""Numbers as text, a whole column at a time: a line at a time costs Python ten times as much.

A column is an array of characters, a row of them for each line, as wide as its longest text. Places that a text does
not need hold NUL, which is dropped when the columns are joined; so no text may contain one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: (lines, width) characters
Column = NDArray[np.uint8]

_POWERS = 10 ** np.arange(19, dtype=np.int64)
#: the four digits of 0 to 9999, each four as one number, so that one look-up copies them all
_FOUR_DIGITS = np.array([f"{i:04d}" for i in range(10_000)], dtype="S4").view(np.uint32)


def chosen(texts: Sequence[bytes], which: NDArray[np.integer]) -> Column:
    """One of a few texts in each line, by its place in `texts`."""
    # where there are no lines there may be no texts either
    table = np.array(texts or [b""], dtype=np.bytes_).view(np.uint8).reshape(max(1, len(texts)), -1)
    column: Column = table[which]
    return column


def decimal(values: NDArray[np.integer] | NDArray[np.floating], places: int = 0) -> Column:
    """Numbers given in units of their last decimal place: 1234 with three places is `1.234`; NaN is an empty text.

    Values are rounded to whole units, which have to fit an int64.
    """
    known = ~np.isnan(values)
    # Whole numbers stay as they are: a double would lose the nanoseconds of a time of day.
    exact = np.rint(np.nan_to_num(values)) if np.issubdtype(values.dtype, np.floating) else values
    units = exact.astype(np.int64)
    size = np.abs(units)
    count = np.maximum(np.searchsorted(_POWERS, size, side="right"), places + 1)
    width = int(count.max(initial=places + 1))
    leading = np.where(known, width - count, width).astype(np.uint8)
    digits = _digits(size, width)
    digits *= np.arange(width, dtype=np.uint8) >= leading[:, None]
    sign = np.where(units < 0, ord("-"), 0).astype(np.uint8)
    point = np.where(known & (places > 0), ord("."), 0).astype(np.uint8)
    return np.column_stack([sign, digits[:, : width - places], point, digits[:, width - places :]])


def _digits(size: NDArray[np.int64], width: int) -> Column:
    """The last `width` digits."""
    fours = -(-width // 4)
    found = np.empty((len(size), fours), np.uint32)
    for place in range(fours - 1, -1, -1):
        size, last = np.divmod(size, 10_000)
        found[:, place] = _FOUR_DIGITS[last]
    return found.view(np.uint8)[:, 4 * fours - width :]


def joined(count: int, *columns: bytes | Column) -> bytes:
    """`count` lines, each its columns one behind the other; bytes stand in every line."""
    spread = (
        np.broadcast_to(np.frombuffer(one, np.uint8), (count, len(one))) if isinstance(one, bytes) else one
        for one in columns
    )
    block = np.hstack(list(spread))
    text: bytes = block[block != 0].tobytes()
    return text

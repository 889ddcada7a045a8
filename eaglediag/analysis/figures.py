"""Numbers as text, with as many digits as the data support."""

from __future__ import annotations

import math
from collections.abc import Iterable

from eaglediag.analysis.statistics import Estimate


def number(value: float | None, half_width: float | None = None) -> str:
    """A number without its unit, to one or two digits of its half width, which is the uncertainty.

    Without a half width: three significant digits. None is shown as a dash.
    """
    if value is None:
        return "–"
    scale = half_width / 1.5 if half_width else abs(value) / 100
    decimals = 2 if scale <= 0 else max(0, min(4, -math.floor(math.log10(scale))))
    return fixed(value, decimals)


def fixed(value: float, decimals: int) -> str:
    """A number with so many decimals; what rounds to zero has no sign."""
    return f"{value:.{decimals}f}" if round(value, decimals) else f"{0:.{decimals}f}"


def signed(value: float, decimals: int) -> str:
    """A change with its sign; what rounds to zero has none."""
    return f"{value:+.{decimals}f}" if round(value, decimals) else fixed(0, decimals)


def estimate(value: Estimate | None) -> str:
    """An estimate without its interval, trimmed to what the interval supports."""
    if value is None:
        return "–"
    return number(value.value, _half_width(value))


def interval(value: Estimate | None) -> str:
    """An estimate with its interval, `2.42 [2.38, 2.47]`; the value alone when there is no interval."""
    if value is None:
        return "–"
    if value.interval is None:
        return estimate(value)
    half = _half_width(value)
    low, high = value.interval
    return f"{number(value.value, half)} [{number(low, half)}, {number(high, half)}]"


def listed(names: Iterable[object]) -> str:
    """`1`, `1 and 4`, `1, 4 and 12`; beyond six the last ones are counted."""
    shown = [str(name) for name in names]
    if len(shown) > 6:
        shown = [*shown[:5], f"{len(shown) - 5} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}" if shown else ""


def percent(share: float | None) -> str:
    """A share of 1 as a percentage; something rare never reads as nothing, nor almost all as all."""
    if share is None:
        return "–"
    if 0 < share < 0.005:
        return "<1 %"
    if 0.995 < share < 1:
        return ">99 %"
    return f"{100 * share:.0f} %"


def faster_or_slower(speedup: Estimate) -> str:
    """A speed-up in words: `27 % slower`, `1.6 times as fast`."""
    half = _half_width(speedup)
    value = speedup.value
    if value >= 1.995:
        return f"{number(value, half)} times as fast"
    change = 100 * abs(value - 1)
    shown = f"{change:.1f}" if change < 9.95 and (half is None or half < 0.01) else f"{change:.0f}"
    return f"{shown} % {'faster' if value >= 1 else 'slower'}"


def _half_width(value: Estimate) -> float | None:
    return (value.interval[1] - value.interval[0]) / 2 if value.interval else None

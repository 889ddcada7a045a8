"""Dates of logs and result files as Unix time, when they are ones that a capture can hold."""

from __future__ import annotations

import calendar

from eaglediag.capture.model import MOMENTS_END


def unix_time(year: int, month: int, day: int, hour: int, minute: int, second: int) -> float | None:
    """Seconds of Unix time, read as UTC; None for what no calendar has, and for years that no log is from."""
    try:
        seconds = float(calendar.timegm((year, month, day, hour, minute, second)))
    except ValueError:
        return None
    return seconds if 0 <= seconds < MOMENTS_END - 1 else None

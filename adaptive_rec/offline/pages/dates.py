"""A scale of dates, and times as texts, UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from adaptive_rec.offline.pages.scale import Scale

DAY, HOUR, MINUTE = 86_400.0, 3_600.0, 60.0
YEAR = 365 * DAY
STEPS = (1.0, 10.0, MINUTE, 10 * MINUTE, HOUR, 6 * HOUR, DAY, 7 * DAY, 30 * DAY, 91 * DAY, YEAR, 10 * YEAR)
"""Distances of ticks in seconds."""
MOST_TICKS = 9


def dates(first: float, last: float) -> Scale:
    """Return a scale from one time to another, in seconds since 1970, with at most eight round ticks."""
    last = last if last > first else first + DAY
    step = next((each for each in STEPS if (last - first) / each < MOST_TICKS), 100 * YEAR)
    start = -(-first // step) * step
    ticks = [start + n * step for n in range(int((last - start) // step) + 1)] if start <= last else []
    return Scale(first, last, tuple(ticks), lambda time: date_text(time, days_only=step >= DAY))


def date_text(time: float, days_only: bool = False) -> str:
    """Return a time as 2014-10-21 05:00, with seconds where it has some."""
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=round(time))
    except (OverflowError, ValueError):  # no date: the file was changed
        return f"{time:g} s"
    if days_only:
        return f"{moment:%Y-%m-%d}"
    return f"{moment:%Y-%m-%d %H:%M:%S}" if moment.second else f"{moment:%Y-%m-%d %H:%M}"

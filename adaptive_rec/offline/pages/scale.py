"""Scales of plots: the place of a value from 0 to 1, and the ticks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

Text = Callable[[float], str]
Column = Sequence[float | None]
"""Values of one quantity, point by point; None where there is none."""

HIGH_POINTS_RATIO = 3.0
"""Points this many times higher than 95 % of all do not set a plot's height: the first step may compile for half a minute."""


@dataclass(frozen=True)
class Scale:
    """A linear or logarithmic scale from `low` to `high`. Values outside are drawn at the edge."""

    low: float
    high: float
    ticks: tuple[float, ...]
    text: Text
    log: bool = False

    def place(self, value: float) -> float:
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            part = (math.log(max(value, self.low)) - low) / (high - low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, part))


def linear_scale(low: float, high: float, text: Text, ticks: int = 4, binary: bool = False) -> Scale:
    """Return a scale that ends at both values; `binary`: its ticks are round in units of 1024."""
    if not high > low:
        high = low + (abs(low) * 0.1 or 1.0)
    unit = 1024.0 ** max(0, int(math.log(max(abs(high), 1.0), 1024))) if binary else 1.0
    step = _round_step((high - low) / ticks / unit) * unit
    first = math.ceil(low / step - 1e-9)
    values = [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]
    return Scale(low, high, tuple(values), text)


def logarithmic(low: float, high: float, text: Text, base: int = 10, most: int = 6) -> Scale:
    """Return a scale from the power of `base` below `low` to the one above `high`, with at most `most` steps."""
    first, last = math.floor(math.log(low, base) + 1e-9), math.ceil(math.log(high, base) - 1e-9)
    last = max(last, first + 1)
    every = -(-(last - first) // most)
    values = tuple(float(base) ** power for power in range(first, last + 1, every))
    return Scale(float(base) ** first, float(base) ** last, values, text, log=True)


def _round_step(step: float) -> float:
    """Return the smallest of 1, 2, 2.5, 5 times a power of ten that is not below `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * power >= step * (1 - 1e-9))


def tick(value: float) -> str:
    """Return a value as ticks show it: 150000 -> 150 k."""
    for limit, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= limit:
            return f"{value / limit:.4g}{suffix}"
    return f"{value:.4g}"


def bounds(*columns: Column) -> tuple[float, float]:
    """Return the lowest and the highest value, with some room beyond both."""
    known = [value for column in columns for value in column if value is not None]
    if not known:
        return 0.0, 1.0
    low, high = min(known), max(known)
    room = (high - low) * 0.08 or abs(high) * 0.02 or 0.1
    return low - room, high + room


def height(text: Text, *columns: Column) -> tuple[float, str]:
    """Return how high a plot has to be, and a note on the few points that are far higher."""
    highest = [max(v or 0.0 for v in values) for values in zip(*columns, strict=True)]
    most = sorted(highest)[int(0.95 * (len(highest) - 1))] if highest else 0.0
    if not highest or max(highest) <= HIGH_POINTS_RATIO * most or most <= 0:
        return max(highest, default=0.0) * 1.05 or 1.0, ""
    beyond = [value for value in highest if value > 1.25 * most]
    points = "1 point is" if len(beyond) == 1 else f"{len(beyond)} points are"
    return 1.25 * most, f"{points} higher than the plot, up to {text(max(beyond))}."


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

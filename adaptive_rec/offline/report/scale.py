"""Scales of a plot: a value's place from 0 to 1, and where the ticks are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

Text = Callable[[float], str]


@dataclass(frozen=True)
class Scale:
    """From `low` to `high`, in proportion or by the logarithm. What lies outside is drawn at the edge."""

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


def linear(low: float, high: float, text: Text, ticks: int = 4, binary: bool = False) -> Scale:
    """A scale that shows both ends; `binary`: its ticks are round in units of 1024."""
    if not high > low:
        high = low + (abs(low) * 0.1 or 1.0)
    unit = 1024.0 ** max(0, int(math.log(max(abs(high), 1.0), 1024))) if binary else 1.0
    step = _nice((high - low) / ticks / unit) * unit
    first = math.ceil(low / step - 1e-9)
    values = [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]
    return Scale(low, high, tuple(values), text)


def logarithmic(low: float, high: float, text: Text, base: int = 10, most: int = 6) -> Scale:
    """A scale from the power of `base` below `low` to that above `high`."""
    first, last = math.floor(math.log(low, base) + 1e-9), math.ceil(math.log(high, base) - 1e-9)
    last = max(last, first + 1)
    every = -(-(last - first) // most)
    values = tuple(float(base) ** power for power in range(first, last + 1, every))
    return Scale(float(base) ** first, float(base) ** last, values, text, log=True)


def _nice(step: float) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is not below `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * power >= step * (1 - 1e-9))

"""Statistics of a few seeds: means with intervals, paired differences, and their p values.

All use Student's t, as the seeds are few. Its distribution has a closed form for whole degrees of freedom, so no large library
is needed for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

LEAST_SEEDS = 3
"""Fewest seeds for statements about noise: with two, the interval is 13 standard errors wide to each side."""
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval; the bounds are None where there are too few values."""

    mean: float
    low: float | None
    high: float | None
    count: int


@dataclass(frozen=True)
class PairedDifference:
    """Mean difference of a policy from the baseline over the seeds, with its interval. Of a ratio, -0.2 is a fifth less."""

    mean: float
    low: float | None
    high: float | None
    chance: float | None
    """p: probability of such a difference by noise alone; None where there are too few seeds."""
    count: int
    lower: int
    """Number of seeds in which the policy's value is below the baseline's."""


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of one value or more with its t interval."""
    mean, n = fmean(values), len(values)
    if n < LEAST_SEEDS:
        return Interval(mean, None, None, n)
    half = t_quantile(0.5 + CONFIDENCE / 2, n - 1) * stdev(values) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def difference(values: Sequence[float], baseline: Sequence[float], ratio: bool = False) -> PairedDifference:
    """Return the paired difference of values (seeds,) from the baseline's (seeds,), which are not empty.

    With `ratio`, logarithms are compared and the result is a share of the baseline. All values must be positive.
    """
    pairs = list(zip(values, baseline, strict=True))
    gains = [math.log(one / other) if ratio else one - other for one, other in pairs]
    found = interval(gains)
    back = math.expm1 if ratio else float
    low, high = (None if bound is None else back(bound) for bound in (found.low, found.high))
    lower = sum(gain < 0 for gain in gains)
    return PairedDifference(back(found.mean), low, high, _chance(gains), len(gains), lower)


def _chance(gains: Sequence[float]) -> float | None:
    """Return the two-sided p of the gains' mean being zero."""
    n = len(gains)
    if n < LEAST_SEEDS:
        return None
    mean, error = fmean(gains), stdev(gains) / math.sqrt(n)
    if error == 0:
        return 1.0 if mean == 0 else 0.0  # the same in every seed
    return 2 * (1 - t_share_below(abs(mean) / error, n - 1))


def holm(chances: Sequence[float | None]) -> list[float | None]:
    """Return the p values adjusted for their number (Holm, Scandinavian Journal of Statistics 1979)."""
    order = sorted((place for place, p in enumerate(chances) if p is not None), key=lambda place: chances[place] or 0.0)
    adjusted: list[float | None] = [None] * len(chances)
    highest = 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * (chances[place] or 0.0)))
        adjusted[place] = highest
    return adjusted


def t_share_below(t: float, freedom: int) -> float:
    """Return Student's t distribution at `t` for whole `freedom` (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    term, total = (cosine if freedom % 2 else 1.0), 0.0
    for power in range(freedom % 2 + 1, freedom, 2):
        total += term
        term *= cosine * cosine * power / (power + 1)
    within = 2 / math.pi * (angle + sine * total) if freedom % 2 else sine * total
    return 0.5 + within / 2


def t_quantile(share: float, freedom: int) -> float:
    """Return the point of Student's t distribution with `share` (above one half) below it."""
    low, high = 0.0, 1.0
    while t_share_below(high, freedom) < share:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_share_below(middle, freedom) < share else (low, middle)
    return (low + high) / 2

"""Medians, ratios of medians and how sure they are."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000


def quartiles(values: list[float]) -> list[float]:
    if len(values) < 2:
        return [values[0], values[0]]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return [low, high]


def ratio_of_medians(over: Sequence[float], under: Sequence[float]) -> dict[str, float]:
    """The median of one contestant's rounds over that of another's in the same rounds, with its bootstrap 95 % interval: rounds
    are drawn with both their figures."""
    if len(over) != len(under):
        raise ValueError(f"paired rounds must be equally many, got {len(over)} and {len(under)}")
    dice = np.random.default_rng(0)
    drawn = dice.integers(0, len(over), (RESAMPLES, len(over)))
    ratios: NDArray[np.float64] = _medians(over, drawn) / _medians(under, drawn)
    low, high = np.percentile(ratios, [2.5, 97.5])
    return {"ratio": statistics.median(over) / statistics.median(under), "low": float(low), "high": float(high)}


def _medians(values: Sequence[float], drawn: NDArray[np.int64]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = np.median(np.asarray(values, dtype=np.float64)[drawn], axis=1)
    return found

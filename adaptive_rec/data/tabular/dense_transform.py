"""How a dense column that was inferred is transformed, by the tails of its first numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

HEAVY = 8.0
"""Deviations from the mean from which on the farthest number is an outlier."""
TAIL_RATIO = 0.001
"""Share of the numbers that is clipped at an end with outliers."""
DIGITS = 6


def transform_of(values: NDArray[Any]) -> dict[str, Any]:
    """Return the transform of numbers, as the schema has it: `log_standard` where none is below 0 and the logarithms have fewer
    outliers above; ends that have outliers still are clipped at a quantile; `standard` else. Infinite and missing numbers do not
    count."""
    values = values[np.isfinite(values)].astype(np.float64)
    if not len(values) or max(_tails(values)) <= HEAVY:
        return {"transform": "standard"}
    found: dict[str, Any] = {"transform": "standard"}
    scaled = values
    if values.min() >= 0 and _tails(np.log1p(values))[1] < _tails(values)[1]:
        found["transform"], scaled = "log_standard", np.log1p(values)
    below, above = _tails(scaled)
    if max(below, above) <= HEAVY:
        return found
    span = values.max() - values.min()  # room for later rows at an end without outliers
    low = np.quantile(values, TAIL_RATIO) if below > HEAVY else 0.0 if values.min() >= 0 else values.min() - span
    high = np.quantile(values, 1 - TAIL_RATIO) if above > HEAVY else values.max() + span
    ends = [float(f"{end:.{DIGITS}g}") for end in (low, high)]
    return found | {"clip": ends} if ends[0] < ends[1] else found


def _tails(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return how many deviations from the mean the lowest and the highest number are."""
    deviation = float(values.std())
    if deviation == 0:
        return 0.0, 0.0
    return float(values.mean() - values.min()) / deviation, float(values.max() - values.mean()) / deviation

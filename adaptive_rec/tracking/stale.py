"""These functions find the threshold of movement that meets a target share of skipped updates or samples.

Slipstream (arXiv 2404.04270) searches its threshold by bisection and gives up where movements are equal or outside
the interval. The share skipped is a step function of the threshold, so sorting finds the best step exactly. "Under the
threshold" is strict everywhere, so a threshold of 0 skips nothing. Movement +inf (or NaN) is unknown: never stale.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def threshold_for_updates(movement_H: Array, touches_H: Array, target_ratio: float) -> float:
    """Return the largest threshold under which lie at most `target_ratio` of the touches.

    `touches_H` counts how often each row was touched while `movement_H` was measured; rows never touched are unknown
    and left out. The answer is some row's movement: rows that moved exactly as far are kept. It is 0 where no row
    was touched, and inf where all rows of known movement may be skipped.
    """
    touched = touches_H > 0
    if not touched.any():
        return 0.0
    movement, touches = _unknown_as_inf(movement_H[touched]), touches_H[touched]
    order = np.argsort(movement, kind="stable")
    movement = movement[order]
    share = np.cumsum(touches[order].astype(np.float64)) / float(np.sum(touches, dtype=np.float64))
    # Rows of one movement are skipped together: a step is allowed when its last row still meets the target.
    last = np.append(movement[1:] != movement[:-1], True)
    too_many = movement[last][share[last] > target_ratio]
    return float(too_many[0]) if len(too_many) else float(np.inf)


def stale_lookups_needed(lookups_S: Array, alpha: float) -> NDArray[np.int64]:
    """Return how many lookups of each sample must be stale for it to be skipped: alpha of them, rounded up."""
    # 0.55 * 100 is 55.00000000000001 in floating point, which must not round up to 56.
    return np.ceil(alpha * np.asarray(lookups_S) - 1e-9).astype(np.int64)


def critical_movement(movement_L: Array, offsets: Array, alpha: float) -> Array:
    """Return each sample's critical movement: it is skipped at threshold T exactly when this is under T.

    Sample ``s`` owns ``movement_L[offsets[s] : offsets[s + 1]]``, the movements of its lookups' rows. With at least
    `alpha` of them to be stale, that is the ceil(alpha * lookups)-th smallest: inf where too few rows are known, and
    for samples without lookups. The type of the movements is kept, so that comparisons stay exact.
    """
    lookups_S = np.diff(offsets)
    critical_S = np.full(len(lookups_S), np.inf, dtype=movement_L.dtype)
    sample_L = np.repeat(np.arange(len(lookups_S)), lookups_S)
    movement_L = _unknown_as_inf(movement_L)
    ordered_L = movement_L[np.lexsort((movement_L, sample_L))]
    full = lookups_S > 0
    last_needed = offsets[:-1] + np.maximum(stale_lookups_needed(lookups_S, alpha), 1) - 1
    critical_S[full] = ordered_L[last_needed[full]]
    return critical_S


def threshold_for_samples(critical_S: Array, target_ratio: float) -> float:
    """Return the largest threshold at which at most `target_ratio` of the samples are skipped."""
    return threshold_for_updates(critical_S, np.ones(len(critical_S), dtype=np.int64), target_ratio)


def _unknown_as_inf(movement: Array) -> Array:
    return np.where(np.isnan(movement), np.asarray(np.inf, dtype=movement.dtype), movement)

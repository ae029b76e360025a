"""Kernels that count the lookups of batches for a profile. Plain twins stand in `reference/profile.py`.

They fill the caller's arrays. Ids are checked here, as a lookup outside its table would count elsewhere.
Shapes: see the legend in `adaptive_rec.batch`; a suffix L stands for levels of a hot budget, the smallest first.
"""

from __future__ import annotations

from numba import njit

from adaptive_rec.kernels.jit import JIT


@njit(**JIT)
def count_lookups(ids_N, offsets, first_row_F, rows_F, counts_R):
    """Count each lookup's row. Returns the first lookup whose id lies outside its table, or -1; those before are counted."""
    features = len(first_row_F)
    bag = 0
    for n in range(len(ids_N)):
        while n >= offsets[bag + 1]:
            bag += 1
        f = bag % features
        if ids_N[n] < 0 or ids_N[n] >= rows_F[f]:
            return n
        counts_R[first_row_F[f] + ids_N[n]] += 1
    return -1


@njit(**JIT)
def count_levels(ids_N, offsets, first_row_F, level_R, window_R, samples_L):
    """Count each lookup's row in `window_R`, and each sample at the level from which on all of its rows are hot.

    ``level_R[r]`` is the first budget that holds row r. Callers check ids.
    """
    features = len(first_row_F)
    samples = (len(offsets) - 1) // features
    for b in range(samples):
        level = 0
        for f in range(features):
            bag = b * features + f
            for n in range(offsets[bag], offsets[bag + 1]):
                row = first_row_F[f] + ids_N[n]
                window_R[row] += 1
                level = max(level, level_R[row])
        samples_L[level] += 1

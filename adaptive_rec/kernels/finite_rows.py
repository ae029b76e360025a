"""This kernel finds rows whose gradients sum to a number that is not finite, though each of them may be.

It sums as the update does (`row_update.py`), in the same order, so it finds what an update would use. Its plain twin is in
`reference/step.py`. Callers check shapes and bounds.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from adaptive_rec.kernels.jit import JIT
from adaptive_rec.kernels.row_update import sum_segment


def find_infinite_row(segments, places, grad_STD, rows):
    """Return the first of a pool's distinct rows, by its place among them, whose sum of gradients over the bags that touch it is
    not finite; -1: there is none. `segments` and `places` are as in `row_update.update_rows`, `rows` is the number of rows."""
    columns, dim = grad_STD.shape[1:]
    return int(_find(segments, places, columns, grad_STD.reshape(-1, dim), rows))


@njit(**JIT)
def _find(segments, places, columns, grad_LD, rows):
    first_u, segments_U1, segment_bag_N = segments
    grad_D = np.empty(grad_LD.shape[1], dtype=grad_LD.dtype)
    for i in range(rows):
        sum_segment(segments_U1[first_u + i], segments_U1[first_u + i + 1], segment_bag_N, places, columns, grad_LD, grad_D)
        for d in range(len(grad_D)):
            if not np.isfinite(grad_D[d]):
                return i
    return -1

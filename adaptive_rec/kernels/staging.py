"""These kernels stage batches for a device: they sort rows by tier, cut segments, gather and scatter rows.

Every kernel has a plain twin of the same name in `reference/staging.py`. Shapes: see the legend in `adaptive_rec.batch`;
here U counts the distinct rows of one pool, C its cold ones, P pieces of segments.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from adaptive_rec.kernels.jit import JIT
from adaptive_rec.kernels.prefetch import prefetch_row

_ROWS_AHEAD = 8
"""How far ahead of their use rows are prefetched."""

_PLACES_AHEAD = 16
"""How far ahead of their use places of a hash table are prefetched."""


@njit(**JIT)
def split_sources(source_U, out_source_U, host_rows_C):
    """Number the cold rows: the c-th becomes ``~c``, and ``host_rows_C[c]`` its row in the host tier. Returns C."""
    cold = 0
    for u in range(len(source_U)):
        source = source_U[u]
        if source < 0:
            host_rows_C[cold] = ~source
            source = ~cold
            cold += 1
        out_source_U[u] = source
    return cold


@njit(**JIT)
def count_pieces(segments_U1, piece_lookups):
    """Return how many pieces `cut_pieces` makes."""
    pieces = 0
    for u in range(len(segments_U1) - 1):
        pieces += (segments_U1[u + 1] - segments_U1[u] + piece_lookups - 1) // piece_lookups
    return pieces


@njit(**JIT)
def cut_pieces(segments_U1, piece_lookups, piece_U1, piece_P1):
    """Cut each row's segment into pieces of at most `piece_lookups` bags; an empty segment has none. Returns P.

    Row ``u`` has the pieces ``piece_U1[u]`` to ``piece_U1[u + 1]``, counted from 0; piece ``p`` has the bags
    ``segment_bag_N[piece_P1[p] : piece_P1[p + 1]]``.
    """
    rows = len(segments_U1) - 1
    pieces = 0
    piece_P1[0] = segments_U1[0]
    for u in range(rows):
        piece_U1[u] = pieces
        end = segments_U1[u + 1]
        start = segments_U1[u]
        while start < end:
            start = min(start + piece_lookups, end)
            pieces += 1
            piece_P1[pieces] = start
    piece_U1[rows] = pieces
    return pieces


@njit(**JIT)
def gather_rows(table_RD, rows_C, out_CD):
    """Copy rows of a table to lie side by side."""
    if table_RD.shape[1] == 1:  # row-wise Adagrad's state: three times as fast without the inner loop
        for c in range(len(rows_C)):
            out_CD[c, 0] = table_RD[rows_C[c], 0]
        return
    for c in range(len(rows_C)):
        if c + _ROWS_AHEAD < len(rows_C):
            prefetch_row(table_RD, rows_C[c + _ROWS_AHEAD])
        row = rows_C[c]
        for d in range(table_RD.shape[1]):
            out_CD[c, d] = table_RD[row, d]


@njit(**JIT)
def scatter_rows(table_RD, rows_C, in_CD):
    """Copy rows that lie side by side to their places in a table."""
    if table_RD.shape[1] == 1:
        for c in range(len(rows_C)):
            table_RD[rows_C[c], 0] = in_CD[c, 0]
        return
    for c in range(len(rows_C)):
        if c + _ROWS_AHEAD < len(rows_C):
            prefetch_row(table_RD, rows_C[c + _ROWS_AHEAD])
        row = rows_C[c]
        for d in range(table_RD.shape[1]):
            table_RD[row, d] = in_CD[c, d]


@njit(inline="always")
def _hash(row, mask):
    x = np.uint64(row) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64((x >> np.uint64(20)) & np.uint64(mask))


@njit(**JIT)
def index_travelling(distinct_U, source_U, keys, places):
    """Fill a hash table from each travelling row to its place among its pool's travelling rows.

    `source_U` is what `split_sources` made: row ``~source_U[u]`` of its pool travels. `keys` and `places` are a power of two
    long, longer than there are travelling rows; `keys` is filled with -1.
    """
    mask = len(keys) - 1
    for u in range(len(distinct_U)):
        if u + _PLACES_AHEAD < len(distinct_U):
            prefetch_row(keys, _hash(distinct_U[u + _PLACES_AHEAD], mask))
        if source_U[u] < 0:
            h = _hash(distinct_U[u], mask)
            while keys[h] != -1:
                h = (h + 1) & mask
            keys[h] = distinct_U[u]
            places[h] = ~source_U[u]


@njit(**JIT)
def find_travelling(keys, places, rows_C, number, origin_C, place_C):
    """Find the rows not found yet among the travelling rows of batch `number`, which `index_travelling` indexed."""
    mask = len(keys) - 1
    for c in range(len(rows_C)):
        if c + _PLACES_AHEAD < len(rows_C):
            prefetch_row(keys, _hash(rows_C[c + _PLACES_AHEAD], mask))
        if origin_C[c] >= 0:
            continue
        row = rows_C[c]
        h = _hash(row, mask)
        while keys[h] != row and keys[h] != -1:
            h = (h + 1) & mask
        if keys[h] == row:
            origin_C[c] = number
            place_C[c] = places[h]


@njit(**JIT)
def touched_rows(segments_U1, segment_bag_N, features, position_B, touched_U):
    """Find the rows that a trained sample touches: one with a line, ``position_B[b] >= 0``."""
    for u in range(len(touched_U)):
        touched = False
        for k in range(segments_U1[u], segments_U1[u + 1]):
            if position_B[segment_bag_N[k] // features] >= 0:
                touched = True
                break
        touched_U[u] = touched

"""These kernels stage batches for a device: they sort rows by tier, cut segments, pack, gather and scatter rows.

A call for a small batch costs more than its work, as it gives up the interpreter's lock: each does all that it can.

Every kernel has a plain twin of the same name in `reference/staging.py`. Shapes: see the legend in `adaptive_rec.batch`;
here U counts the distinct rows of one pool, C its cold ones, P pieces of segments.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numba.np.numpy_support import carray

from adaptive_rec.kernels.jit import JIT, JIT_INLINE, JIT_PART
from adaptive_rec.kernels.prefetch import pointer_to, prefetch_row

_ROWS_AHEAD = 8
"""How far ahead of their use rows are prefetched."""

_PLACES_AHEAD = 16
"""How far ahead of their use places of a hash table are prefetched."""

_LOW_HALF = (1 << 32) - 1
"""Of a number of 64 bits."""


@njit(**JIT)
def split_sources(distinct_U, source_U, pool_ends, out_source_U, row_C, host_row_C, cold_ends):
    """Number the cold rows of each pool: its c-th becomes ``~c``. Lists them, pool by pool, by their numbers in the joint row
    space and in the host tier, and where each pool's end."""
    cold = first = 0
    for pool in range(len(pool_ends)):
        before = cold
        for u in range(first, pool_ends[pool]):
            source = source_U[u]
            if source < 0:
                row_C[cold] = distinct_U[u]
                host_row_C[cold] = ~source
                source = ~(cold - before)
                cold += 1
            out_source_U[u] = source
        cold_ends[pool] = cold
        first = pool_ends[pool]


@njit(**JIT)
def count_pieces(segments_U1, piece_lookups):
    """Return how many pieces `cut_pieces` makes."""
    pieces = 0
    for u in range(len(segments_U1) - 1):
        pieces += (segments_U1[u + 1] - segments_U1[u] + piece_lookups - 1) // piece_lookups
    return pieces


@njit(**JIT_PART)
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


@njit(**JIT_INLINE)
def _put(array, out):
    for i in range(len(array)):
        out[i] = array[i]


@njit(**JIT)
def pack_inputs(offsets, dense_BX, labels_B, ids_N, offsets_out, dense_out, labels_out, ids_out):
    """Copy a batch's arrays to where they are sent from, offsets only if there is room for them."""
    _put(offsets[: len(offsets_out)], offsets_out)
    _put(labels_B, labels_out)
    _put(ids_N, ids_out)
    for b in range(dense_BX.shape[0]):
        for x in range(dense_BX.shape[1]):
            dense_out[b, x] = dense_BX[b, x]


@njit(**JIT)
def pack_batch(
    offsets, inverse_N, segment_bag_N, source_U, segments_U1, distinct_U, pool_ends, dense_BX, labels_B, piece_lookups,
    number_U, dense_out, labels_out, piece_ends, offsets_out, inverse_out, bag_out, source_out, piece_NQ, piece_start,
):  # fmt: skip
    """Copy a batch's arrays to where they are sent from, distinct rows only if there is room for them, and cut its segments.

    Pieces are those of `cut_pieces`, pool by pool: rows of pool p have theirs p places behind, and bags of a pool begin where
    those before it end. There are at most ``U + N // piece_lookups``. ``piece_ends[p]`` is set to where those of pool p end.
    """
    _put(offsets, offsets_out)
    _put(inverse_N, inverse_out)
    _put(segment_bag_N, bag_out)
    _put(source_U, source_out)
    _put(distinct_U[: len(number_U)], number_U)
    _put(labels_B, labels_out)
    for b in range(dense_BX.shape[0]):
        for x in range(dense_BX.shape[1]):
            dense_out[b, x] = dense_BX[b, x]
    first = pieces = 0
    for pool in range(len(pool_ends)):
        end = pool_ends[pool]
        piece_U1 = piece_NQ[first + pool : end + pool + 1]
        pieces += cut_pieces(segments_U1[first : end + 1], piece_lookups, piece_U1, piece_start[pieces:])
        piece_ends[pool] = pieces
        first = end


@njit(**JIT_INLINE)
def _gather(table_RD, rows_C, out_CD):
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
def gather_rows(weights_RD, state_RK, rows_C, out_CD, out_CK):
    """Copy rows of two tables, weights and optimizer state, to lie side by side."""
    _gather(weights_RD, rows_C, out_CD)
    _gather(state_RK, rows_C, out_CK)


@njit(**JIT_INLINE)
def _scatter(table_RD, rows_C, in_CD):
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


@njit(**JIT)
def scatter_rows(weights_RD, state_RK, rows_C, in_CD, in_CK):
    """Copy rows that lie side by side to their places in two tables, weights and optimizer state."""
    _scatter(weights_RD, rows_C, in_CD)
    _scatter(state_RK, rows_C, in_CK)


@njit(**JIT)
def flag_rows(rows_C, chosen_C, first_row, flag_R):
    """Set the flags of a pool's rows: of those that are chosen, or of all of them (None). The pool begins at `first_row`."""
    for c in range(len(rows_C)):
        if chosen_C is None or chosen_C[c]:
            flag_R[first_row + rows_C[c]] = True


@njit(inline="always")
def _hash(row, mask):
    x = np.uint64(row) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64((x >> np.uint64(20)) & np.uint64(mask))


@njit(**JIT)
def index_travelling(row_C, places):
    """Fill a hash table (int64) with the low half of each row's number and, in the lower half, 1 and its place in `row_C`. The
    table is a power of two long, longer than there are rows, and filled with zeros."""
    mask = len(places) - 1
    for c in range(len(row_C)):
        if c + _PLACES_AHEAD < len(row_C):
            prefetch_row(places, _hash(row_C[c + _PLACES_AHEAD], mask))
        h = _hash(row_C[c], mask)
        while places[h]:
            h = (h + 1) & mask
        places[h] = row_C[c] << 32 | (c + 1)


@njit(**JIT)
def find_travelling(earlier_EX, row_C, first, end, cold_ends, origin_C, place_C, count_PE):
    """Find rows `first` to `end` among the travelling rows of earlier batches: the last one that has a row (-1: none), and the
    row's place among those of its pool there. Counts what is found by pool and batch.

    A line of `earlier_EX` has the address and the length of what `index_travelling` made, the address of the batch's rows, and
    the place of each pool's first row.
    """
    origin_C[first:end] = -1
    for e in range(len(earlier_EX) - 1, -1, -1):
        size = earlier_EX[e, 1]
        places = carray(pointer_to(earlier_EX[e, 0]), size, np.int64)
        their_row_C = carray(pointer_to(earlier_EX[e, 2]), size, np.int64)
        mask = size - 1
        stop = first
        for pool in range(len(cold_ends)):
            start, stop = stop, max(first, min(end, cold_ends[pool]))
            found = 0
            for c in range(start, stop):
                if c + _PLACES_AHEAD < end:
                    prefetch_row(places, _hash(row_C[c + _PLACES_AHEAD], mask))
                if origin_C[c] >= 0:
                    continue
                row = row_C[c]
                h = _hash(row, mask)
                at = places[h]
                while at and ((at ^ row << 32) >> 32 or their_row_C[(at & _LOW_HALF) - 1] != row):
                    h = (h + 1) & mask
                    at = places[h]
                if at:
                    origin_C[c] = e
                    place_C[c] = (at & _LOW_HALF) - 1 - earlier_EX[e, 3 + pool]
                    found += 1
            count_PE[pool, e] += found


@njit(**JIT)
def list_taken(origin_C, place_C, cold_ends, count_PE, from_R, to_R):
    """List the rows that `find_travelling` found, by pool and earlier batch: their places there and here."""
    next_E = np.empty(count_PE.shape[1], np.int64)
    taken = first = 0
    for pool in range(len(cold_ends)):
        for e in range(len(next_E)):
            next_E[e] = taken
            taken += count_PE[pool, e]
        for c in range(first, cold_ends[pool]):
            e = origin_C[c]
            if e >= 0:
                from_R[next_E[e]] = place_C[c]
                to_R[next_E[e]] = c - first
                next_E[e] += 1
        first = cold_ends[pool]


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

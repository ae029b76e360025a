"""Which rank owns each row. Blocks of W successive ids of a table are dealt out to the W ranks, each block from another rank on.

So every rank owns one id of each block, its rows have numbers without gaps (the block's), and no period of the ids falls on one
rank. The plain twin is in `reference/owners.py`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from adaptive_rec.kernels.fill import mixed
from adaptive_rec.kernels.jit import JIT


@njit(inline="always")
def _first_owner(block, ranks):
    """The owner of a block's first id."""
    return np.int64(mixed(np.uint64(block)) % np.uint64(ranks))


@njit(**JIT)
def find_owners(rows_U, first_row_T, home_T, own_first_row_WT, ranks, owner_U, own_row_U):
    """Set the owner of each row, and the row's number among the owner's rows.

    Tables stand in the order of their rows: their first rows in the joint row space rise in `first_row_T`, those among the rows
    of each owner are `own_first_row_WT`, which has one line where all owners have the same. A table is owned whole by the rank
    `home_T`, or dealt out where that is -1.
    """
    t = 0
    for u in range(len(rows_U)):
        row = rows_U[u]
        if row < first_row_T[t] or (t + 1 < len(first_row_T) and row >= first_row_T[t + 1]):
            t = np.searchsorted(first_row_T, row, side="right") - 1
        id_ = row - first_row_T[t]
        owner, own_row = home_T[t], id_
        if owner < 0:
            own_row = id_ // ranks
            owner = (id_ + _first_owner(own_row, ranks)) % ranks
        owner_U[u], own_row_U[u] = owner, own_first_row_WT[owner if len(own_first_row_WT) > 1 else 0, t] + own_row


@njit(**JIT)
def find_ids(block_R, ranks, rank, id_R):
    """Set the id that a rank owns in each block of a table; the last block's may lie behind the table's end."""
    for i in range(len(block_R)):
        id_R[i] = block_R[i] * ranks + (rank - _first_owner(block_R[i], ranks)) % ranks

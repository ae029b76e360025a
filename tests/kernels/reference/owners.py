"""Plain twin of `owners.py`, in NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.kernels.reference.fill import mixed

Rows = NDArray[np.int64]


def _first_owner(block: Rows, ranks: int) -> Rows:
    return (mixed(block.astype(np.uint64)) % np.uint64(ranks)).astype(np.int64)


def find_owners(
    rows_U: Rows, first_row_T: Rows, home_T: Rows, own_first_row_WT: Rows, ranks: int, owner_U: Rows, own_row_U: Rows
) -> None:
    table_U = np.searchsorted(first_row_T, rows_U, side="right") - 1
    id_U, home_U = rows_U - first_row_T[table_U], home_T[table_U]
    owner_U[:] = np.where(home_U < 0, (id_U + _first_owner(id_U // ranks, ranks)) % ranks, home_U)
    first_U = own_first_row_WT[owner_U if len(own_first_row_WT) > 1 else 0, table_U]
    own_row_U[:] = first_U + np.where(home_U < 0, id_U // ranks, id_U)


def find_ids(block_R: Rows, ranks: int, rank: int, id_R: Rows) -> None:
    id_R[:] = block_R * ranks + (rank - _first_owner(block_R, ranks)) % ranks

"""First values of rows that were never written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import TableSpec
from adaptive_rec.embedding.host import first_bound
from adaptive_rec.kernels.fill import fill_rows


@dataclass(frozen=True)
class FreshRows:
    """What the rows of some tables are drawn from: their seed and their ids."""

    seed: int
    tables: tuple[TableSpec, ...]
    """The whole tables."""
    ids_of: Callable[[NDArray[np.int64]], NDArray[np.int64]] = lambda rows: rows
    """Returns the ids of rows, by their numbers in their table, where a store has only some of a table's rows."""

    def draw(
        self, table: int, row_C: NDArray[np.int64], line_C: NDArray[np.int64], weights_LD: NDArray[Any],
        state_LK: NDArray[Any],
    ) -> None:  # fmt: skip
        """Set lines to the first values of some rows of a table; their optimizer state is zero."""
        if not len(row_C):
            return
        drawn, bound = np.empty((len(row_C), weights_LD.shape[1]), weights_LD.dtype), first_bound(self.tables[table].rows)
        fill_rows(np.uint64(self.seed % 2**64), table, bound, self.ids_of(row_C), drawn)
        weights_LD[line_C] = drawn
        state_LK[line_C] = 0

"""First values of rows, as in DLRM: U(-1/sqrt(n), +1/sqrt(n)) in a table of n rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import TableSpec
from adaptive_rec.embedding.host import fill_parts, first_bound
from adaptive_rec.kernels.fill import fill_rows, fill_uniform


@dataclass(frozen=True)
class FreshRows:
    """What the rows of some tables are drawn from: their seed and their ids."""

    seed: int
    tables: tuple[TableSpec, ...]
    """The whole tables."""
    ids_of: Callable[[int, NDArray[np.int64]], NDArray[np.int64]] | None = None
    """Returns the ids of rows of a table, by their numbers in it, where a store has only some of a table's rows."""

    def fill(self, table: int, weights_RD: NDArray[Any]) -> None:
        """Draw all rows of a table that a store has, on all cores."""
        bound, seed = first_bound(self.tables[table].rows), np.uint64(self.seed % 2**64)
        if self.ids_of is None:
            fill_parts(len(weights_RD), lambda part: fill_uniform(seed, table, bound, part.start, weights_RD[part]))
            return
        id_R = self.ids_of(table, np.arange(len(weights_RD)))
        fill_parts(len(weights_RD), lambda part: fill_rows(seed, table, bound, id_R[part], weights_RD[part]))

    def draw(
        self, table: int, row_C: NDArray[np.int64], line_C: NDArray[np.int64], weights_LD: NDArray[Any],
        state_LK: NDArray[Any],
    ) -> None:  # fmt: skip
        """Set lines to the first values of some rows of a table; their optimizer state is zero."""
        if not len(row_C):
            return
        drawn, bound = np.empty((len(row_C), weights_LD.shape[1]), weights_LD.dtype), first_bound(self.tables[table].rows)
        fill_rows(np.uint64(self.seed % 2**64), table, bound, row_C if self.ids_of is None else self.ids_of(table, row_C), drawn)
        weights_LD[line_C] = drawn
        state_LK[line_C] = 0

"""When each row was looked up last, in batches of the run: exact, at 4 bytes a row.

The tracker cannot say this. It counts a part of the samples, in a sketch whose cells rows share: a row in use may have no count,
and one that nobody looks up has those of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.raw.changes import NewKeys
from adaptive_rec.kernels.key_map import mark_rows
from adaptive_rec.saved import Saved

BATCH = np.uint32
"""The type of a batch's number: a run has far fewer batches."""


class LastLookups:
    """Knows the last batch that has looked up each row, while that is wanted. Knows what is settled."""

    def __init__(self, rows_T: Sequence[int], table_F: Sequence[int]) -> None:
        self._first_T1 = np.concatenate([[0], np.cumsum(rows_T, dtype=np.int64)])
        self._table_F = np.array(table_F, dtype=np.int64)
        self._batch_R: NDArray[np.uint32] | None = None

    @property
    def most_bytes(self) -> int:
        return int(self._first_T1[-1]) * np.dtype(BATCH).itemsize

    def want(self, wanted: bool, batch: int) -> None:
        """Note lookups from this batch on, as if it had looked up all rows; or forget all."""
        if not wanted:
            self._batch_R = None
        elif self._batch_R is None:
            self._batch_R = np.full(int(self._first_T1[-1]), batch, dtype=BATCH)

    def settle(self, new: NewKeys, batch: int) -> None:
        """Note the lookups of a batch of this number."""
        if self._batch_R is not None:
            mark_rows(self._first_T1, self._table_F, new.offsets, new.id_N, batch, self._batch_R)

    def ages(self, table: int, id_C: NDArray[np.int64], batch: int) -> NDArray[np.int64]:
        """Return how many batches before this one rows of a table were looked up last; 0 while that is not noted."""
        if self._batch_R is None:
            return np.zeros(len(id_C), dtype=np.int64)
        return batch - self._batch_R[self._first_T1[table] + id_C].astype(np.int64)

    # Kept in a checkpoint --------------------------------------------------------------------------------------------

    def state(self, end_T: NDArray[np.int64]) -> dict[str, Any] | None:
        """Return what is known of the rows of each table up to these ids; None where nothing is noted."""
        if self._batch_R is None:
            return None
        ends = zip(self._first_T1[:-1].tolist(), end_T.tolist(), strict=True)
        return {f"batch_{table}": self._batch_R[first : first + end] for table, (first, end) in enumerate(ends)}

    def set_state(self, found: Saved | None, end_T: NDArray[np.int64], batch: int) -> None:
        """Restore a state; rows from these ids on were never looked up. Raises CheckpointError."""
        self._batch_R = None
        if found is None:
            return
        self.want(True, batch)
        assert self._batch_R is not None
        for table, (first, end) in enumerate(zip(self._first_T1[:-1].tolist(), end_T.tolist(), strict=True)):
            self._batch_R[first : first + end] = found.array(f"batch_{table}", BATCH, end)

"""Cold rows that are all in host memory, one array of rows and one of optimizer state for each pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from adaptive_rec.embedding.cold.copier import PlainCopier, RowCopier
from adaptive_rec.embedding.cold.home import ColdHome, OfParts, no_rows
from adaptive_rec.embedding.first_values import FreshRows
from adaptive_rec.embedding.host import Arrays, ColdTier, GivenRows
from adaptive_rec.embedding.hot import HotRows
from adaptive_rec.embedding.index import RowIndex
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.shard_arrays import OPTIMIZER_STATE, ROW, WEIGHT
from adaptive_rec.embedding.snapshot import RowSnapshot


class InMemory(ColdHome):
    """All rows in host memory, whether hot or not; a hot row's values here are out of date."""

    def __init__(
        self, index: RowIndex, rules: Sequence[RowRule], dtype: DTypeLike, first: FreshRows | None = None,
        copier: RowCopier | None = None,
    ) -> None:  # fmt: skip
        """`dtype` is as in `ColdTier`; `first`: first values of the rows (None: zeros, for callers that set them all)."""
        self._index, self._rules = index, rules
        self.types = ColdTier(index.space, rules, dtype, [pool.rows for pool in index.space.pools])
        self._copier = copier or PlainCopier()
        self.snapshot: RowSnapshot | None = None
        for table in range(len(index.space.tables)):
            pool, low, high = index.space.table_range(table)
            if first is not None:
                first.fill(table, self.types.weights[pool][low:high])

    # Values ----------------------------------------------------------------------------------------------------------

    def read(self, pool: int, rows_C: NDArray[np.int64], packed: Arrays) -> int:
        self._copier.gather(self.arrays(pool), rows_C, packed)
        return 0

    def write(
        self, pool: int, rows_C: NDArray[np.int64], packed: Arrays, changed_C: NDArray[np.bool_] | None, also: OfParts = no_rows
    ) -> None:
        self.keep(pool, rows_C)
        self._copier.scatter(self.arrays(pool), rows_C, packed, also)

    def overwrite(self, pool: int, rows_C: NDArray[np.int64], given: GivenRows) -> None:
        self.keep(pool, rows_C)
        for kept, values in zip(self.arrays(pool), given, strict=True):
            if values is not None:
                kept[rows_C] = values

    def draw(self, pool: int, rows_C: NDArray[np.int64], packed: Arrays) -> None:
        self.overwrite(pool, rows_C, packed)

    # Saving ----------------------------------------------------------------------------------------------------------

    @property
    def is_being_saved(self) -> bool:
        return self.snapshot is not None

    def keep(self, pool: int, rows_C: NDArray[np.int64], slots_C: NDArray[np.int64] | None = None) -> None:
        """Have the snapshot, if there is one, copy rows that are about to change or move."""
        if (snapshot := self.snapshot) is not None:
            snapshot.keep(pool, rows_C)

    def changed_bytes(self, hot: HotRows) -> int:
        hot.flag_changed()
        itemsize, changed_R = self.types.dtype.itemsize, self._index.changed_R
        return sum(
            int(np.count_nonzero(changed_R[pool.first_row : pool.end_row])) * rule.bytes_per_row(pool.dim, itemsize)
            for rule, pool in zip(self._rules, self._index.space.pools, strict=True)
        )

    def begin_snapshot(self, hot: HotRows, everything: bool) -> RowSnapshot:
        assert self.snapshot is None, "a snapshot must end before another one starts"
        hot.flag_changed()
        changed_R = self._index.changed_R
        if everything:
            changed_R[:] = True
        hot.copy_to(self, changed_R)
        self.snapshot = RowSnapshot(self._index.space, self.types, lambda pool: hot.tiers(pool, self.arrays(pool)), changed_R)
        self._index.take_changed()  # last, so that a failure loses no flag
        return self.snapshot

    def end_snapshot(self, saved: bool) -> None:
        snapshot, self.snapshot = self.snapshot, None
        if snapshot is not None:
            snapshot.end()
            if not saved:
                # Not |=, which would also write flags that another thread may set meanwhile.
                self._index.changed_R[snapshot.mark_R != 0] = True
                snapshot.forget()
            self._index.return_flags(snapshot.mark_R.view(np.bool_))

    def shards(self, snapshot: RowSnapshot) -> Iterator[dict[str, NDArray[Any]]]:
        for shard in snapshot.shards():
            yield dict(zip((ROW, WEIGHT, OPTIMIZER_STATE), shard.arrays, strict=True))

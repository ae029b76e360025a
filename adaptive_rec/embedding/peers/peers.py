"""The processes that train together, seen from one of them. One process alone owns all rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.hot import HotRows
from adaptive_rec.embedding.index import RowIndex
from adaptive_rec.embedding.path.row_path import BatchPath, RowPath
from adaptive_rec.embedding.records import Fetched
from adaptive_rec.live.state_writer import Tier
from adaptive_rec.placement import RowSpace
from adaptive_rec.system.group import ALONE, Group

Some = slice | NDArray[Any]
"""Which of some things are chosen."""


class Peers:
    """What processes have of the rows of all. Here all are this process's; `RankPeers` has a part of them, and fetches others."""

    owns_all = True
    """Whether all rows are this process's: others know only the places of their own."""
    home_T: tuple[int, ...] = ()
    """`Ownership.home_T` of several processes."""
    link: Any = None
    """The way from device to device (`Link`), where ranks have devices."""

    def __init__(self, index: RowIndex, hot: HotRows, path: RowPath, group: Group = ALONE) -> None:
        self._index, self._hot = index, hot
        self.path, self.group = path, group

    @property
    def batch_space(self) -> RowSpace:
        """The row space of batches: that of the rows of all ranks."""
        return self._index.space

    @property
    def batches(self) -> BatchPath:
        """What takes batches through their steps."""
        return self.path

    # A step ----------------------------------------------------------------------------------------------------------

    def stale_of(self, work: ClassifiedBatch) -> NDArray[np.bool_]:
        """Return which distinct rows of a batch are hot and stale."""
        stale_U = np.zeros(len(work.source_U), dtype=np.bool_)
        for pool, stale_H in enumerate(self._hot.tier.stale):
            span = work.pool_range(pool)
            if len(stale_H):
                stale_U[span] = stale_H[np.maximum(work.source_U[span], 0)] & (work.source_U[span] >= 0)
        return stale_U

    def has_arrived(self, fetched: Fetched) -> bool:
        """Return whether a tensor that is fetched later is here. Of several processes all get the same answer."""
        return fetched.is_here()

    # Who owns what ---------------------------------------------------------------------------------------------------

    def owned(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Return which of some rows of `batch_space` this process has, and the numbers of those in its own space."""
        return np.ones(len(rows), np.bool_), rows

    def owned_of(self, table: int, row_C: NDArray[np.int64]) -> tuple[Some, NDArray[np.int64]]:
        """Return which of some rows of a table this process has, and their numbers in its part of the table."""
        return slice(None), row_C

    def total(self, table: int, values_C: NDArray[Any], step: int) -> NDArray[Any]:
        """Return the sums over all ranks of what each has for some rows of a table. Ranks call it together."""
        return self.group.total(values_C)

    def own_range(self, table: int, first: int, rows: int) -> tuple[NDArray[np.int64], Some]:
        """Return the numbers in its part of a table of those rows that this process has of a range, and their places in it."""
        return np.arange(first, first + rows), slice(None)

    def joint_shard(self, shard: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return a shard of a snapshot with the numbers of its rows in `batch_space`, without rows that are nobody's."""
        return dict(shard)

    def joint_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers in `batch_space` of some of this process's rows."""
        return rows

    # Slots of all ranks ----------------------------------------------------------------------------------------------

    def capacities(self, budget_bytes: int) -> list[int]:
        """Return how many rows of each pool may be hot where each process has a budget of so many bytes: of several processes,
        as many as in one with the budgets of all."""
        return list(self._hot.tier.capacities)

    @property
    def own_slots(self) -> slice:
        """The slots of this process in the line of all ranks' slots."""
        return slice(0, sum(self._hot.tier.capacities))

    def slots_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the slot of each of some rows of `batch_space`, -1 for a cold one. The slots of all pools, and of all ranks,
        stand in one line."""
        firsts = np.concatenate([[0], np.cumsum(self._hot.tier.capacities)])
        pool = np.searchsorted([spec.end_row for spec in self._index.space.pools], rows, side="right")
        slots = self._index.placement.slot_of_row[rows]
        return np.where(slots >= 0, firsts[pool] + slots, -1)

    def shown_placement(self) -> tuple[NDArray[np.int32], list[Tier]]:
        """Return the placement for clients: the slot of each row of `batch_space`, and each pool's slots. Of several processes
        rank 0 alone gets those of all ranks, but each must call it."""
        tier = self._hot.tier
        tiers = map(Tier, tier.row_of_slot, tier.stale, tier.estimate, tier.movement)
        return self._index.placement.slot_of_row, list(tiers)

"""The embedding store: the rows of one process, in two tiers or more, gathered and updated step by step.

A row has exactly one authoritative copy: in the device tier when it has a slot (`hot`), at its home otherwise (`cold`). Its parts
are chosen when it is built (`build.py`); it has no variants.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.cold.home import ColdHome
from adaptive_rec.embedding.contents import NO_ROWS, TableContents
from adaptive_rec.embedding.hot import HotRows
from adaptive_rec.embedding.index import RowIndex
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.peers.peers import Peers
from adaptive_rec.placement import COLD, Migration


@final
class EmbeddingStore:
    """Gathers, updates and moves rows. Only the training thread calls it and its parts, but for what a part says of others."""

    def __init__(
        self, index: RowIndex, rules: Sequence[RowRule], seed: int, hot: HotRows, cold: ColdHome, peers: Peers
    ) -> None:  # fmt: skip
        """`rules`: update rule of each pool. `peers` has the path of rows to a step."""
        self.index, self.hot, self.cold, self.peers = index, hot, cold, peers
        self.path, self.batches, self.group = peers.path, peers.batches, peers.group
        """The path of own rows; what takes batches through their steps, the path or, of several processes, `peers`."""
        self.space = index.space
        self.rules = rules
        self.rule = rules[0]
        """Update rule of all rows, where there is only one."""
        self.seed = seed
        self.dtype, self.torch_device = hot.dtype, hot.device
        self.threads = self.path.threads
        """Threads of the kernels that the training thread runs."""
        self.contents = TableContents(index, seed, hot, cold, peers, self.migrate, self.settle)

    def settle(self) -> None:
        """Wait until all queued work is done and every update has reached its row. Raises DiskError where one was not written."""
        self.path.settle()
        self.cold.flush()

    def close(self) -> None:
        """Stop the worker threads. Rows can still be read."""
        self.path.close()
        self.cold.flush()
        self.cold.close()

    # Moves -----------------------------------------------------------------------------------------------------------

    def migrate(self, migration: Migration) -> None:
        """Move rows between the tiers with their optimizer state. No value changes. Raises TrainingError where a row has become
        too large for its type."""
        self.hot.check_range()
        if not migration.moved_rows:
            return
        self.settle()
        for pool, spec in enumerate(self.space.pools):
            self._demote(pool, spec.select(migration.demote))
            self._promote(pool, spec.select(migration.promote))
        self.index.end_migration(migration)
        self.path.end_migration(migration)
        # Last, so that a batch classified by a worker meanwhile has the old version and is classified again.
        self.index.begin_version()

    def resize(self, capacities: list[int], ranked_rows: NDArray[np.int64], monitored: bool | None = None) -> Migration:
        """Change the number of slots of each pool: all rows go home, then as many of `ranked_rows` as fit return, best first.

        `monitored` sets whether the tier records the movement of its rows; None leaves it. Returns the rows that changed tier.
        """
        hot_before = np.sort(np.concatenate([rows[rows >= 0] for rows in self.hot.tier.row_of_slot]))
        self.migrate(Migration(promote=NO_ROWS, demote=hot_before))
        before = self.hot.tier.capacities, self.hot.monitored
        failed: Exception | None = None
        try:
            self.hot.replace(capacities, monitored)
        except Exception as error:  # too little memory
            failed = error.with_traceback(None)  # its frames hold the memory that was allocated
        if failed is not None:  # restore, then raise
            self.hot.replace(*before)
            self.migrate(Migration(promote=hot_before, demote=NO_ROWS))
            raise failed
        pools = zip(self.space.pools, self.hot.tier.capacities, strict=True)
        hot_now = np.concatenate([pool.select(ranked_rows)[:capacity] for pool, capacity in pools])
        self.migrate(Migration(promote=hot_now, demote=NO_ROWS))
        return Migration(np.setdiff1d(hot_now, hot_before), np.setdiff1d(hot_before, hot_now))

    def place_in_memory(self, migration: Migration) -> None:
        """Move cold rows from the disk to host memory (`promote`) and back, where the home has a memory. No value changes, nor
        does the placement."""
        if migration.moved_rows:
            self.settle()
            self.cold.place_in_memory(migration)

    def restore_placement(self, version: int) -> None:
        """Use the restored slots as a placement of this version."""
        self.path.end_migration(Migration(np.flatnonzero(self.index.slot_of_row != COLD), NO_ROWS))
        self.index.restore(version)

    def _demote(self, pool: int, rows: NDArray[np.int64]) -> None:
        if not len(rows):
            return
        slots = self.index.slot_of_row[rows].astype(np.int64)
        self.hot.leave(pool, self.index.host_rows(pool, rows), slots, self.cold)
        self.index.slot_of_row[rows] = COLD
        self.hot.tier.clear(pool, slots)
        self._count_moved(pool, len(rows), to_device=False)

    def _promote(self, pool: int, rows: NDArray[np.int64]) -> None:
        if not len(rows):
            return
        slots = self.hot.tier.free_slots(pool, len(rows))
        self.hot.up(pool, self.index.host_rows(pool, rows), slots, self.cold)
        self.index.slot_of_row[rows] = slots
        self.hot.tier.fill(pool, rows)
        self._count_moved(pool, len(rows), to_device=True)

    def _count_moved(self, pool: int, rows: int, to_device: bool) -> None:
        size = rows * self.rules[pool].bytes_per_row(self.space.pools[pool].dim, self.dtype.itemsize)
        self.index.traffic.add_bytes(to_device=size if to_device else 0, to_host=0 if to_device else size)

    # Saving ----------------------------------------------------------------------------------------------------------

    @property
    def changed_bytes(self) -> int:
        """Bytes that a checkpoint of the rows updated since the last one takes."""
        self.path.flag_changed()
        return self.cold.changed_bytes(self.hot)

    def begin_snapshot(self, everything: bool) -> Any:
        """Start a snapshot of the rows updated since the last one, or of all rows, for another thread to save. One at a time."""
        self.path.settle()
        return self.cold.begin_snapshot(self.hot, everything)

    def end_snapshot(self, saved: bool) -> None:
        """End the snapshot. If it was not saved, its rows are part of the next one."""
        self.cold.end_snapshot(saved)

    def shards(self, snapshot: Any) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield the shards of a snapshot as a checkpoint has them, by the names of their arrays, with the rows' numbers in the
        joint row space of all processes. A shard is valid until the next one is requested. Called once, by the saving thread."""
        return map(self.peers.joint_shard, self.cold.shards(snapshot))

    def adopt(
        self, name: str, saved: Any, index: Iterable[tuple[NDArray[np.int64], NDArray[np.uint32]]]
    ) -> None:
        """Take over the rows of a checkpoint of this name, which must fit this store's home. `index` yields rows of all ranks, by
        their numbers in `batch_space`, and their addresses; later ones replace earlier ones. Raises DiskError."""
        own = ((own_rows, address_C[here]) for rows, address_C in index for here, own_rows in [self.peers.owned(rows)])
        self.cold.adopt(name, saved, own)

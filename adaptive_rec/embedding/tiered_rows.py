"""Rows in two tiers: placement, moves between the tiers, export of tables, and snapshots.

A row has exactly one authoritative copy: in the device tier when it has a slot, in the host tier otherwise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_rec.embedding.device import DeviceTier, row_bytes, split_budget
from adaptive_rec.embedding.disk.saved_segments import SavedLog
from adaptive_rec.embedding.host import Arrays, HostTier
from adaptive_rec.embedding.optimizer import RowRule, rules_of_pools
from adaptive_rec.embedding.records import Traffic
from adaptive_rec.embedding.shard_arrays import OPTIMIZER_STATE, ROW, WEIGHT
from adaptive_rec.embedding.snapshot import RowSnapshot, Tiers
from adaptive_rec.placement import COLD, Migration, Placement, RowSpace

_CHUNK_ROWS = 1 << 18

NO_ROWS: NDArray[np.int64] = np.empty(0, dtype=np.int64)
NUMPY_DTYPE = {torch.float32: np.float32, torch.float64: np.float64}


class TieredRows(ABC):
    """The part of a store that works between two steps."""

    def __init__(
        self,
        space: RowSpace,
        rule: RowRule | Sequence[RowRule],
        seed: int,
        dtype: torch.dtype,
        device: torch.device,
        budget_bytes: int,
        monitored: bool,
        drawn: bool = True,
    ) -> None:
        self.space = space
        self.rules = rules_of_pools(rule, len(space.pools))
        """Update rule of each pool."""
        self.rule = self.rules[0]
        """Update rule of all rows, where there is only one."""
        self.dtype = dtype
        self.torch_device = device
        self.monitored = monitored
        self.seed = seed
        self.numpy_dtype = NUMPY_DTYPE[dtype]
        self.host = self._cold_tier(drawn)
        self.slot_of_row = np.full(space.rows, COLD, dtype=np.int32)
        self.changed_R = np.zeros(space.rows, dtype=np.bool_)
        """Rows updated since they were last saved; set by the update kernels."""
        self._unchanged_R = np.zeros(space.rows, dtype=np.bool_)
        """The next `changed_R`, all false."""
        self.placement = Placement(0, self.slot_of_row, any_hot=False)
        self.traffic = Traffic()
        self.snapshot: RowSnapshot | None = None
        """Rows that are being saved."""
        self.hot_rows_T = np.zeros(len(space.tables), dtype=np.int64)
        """Hot rows of each table."""
        self.device = self._device_tier(split_budget(space, self.row_bytes, budget_bytes))
        self.threads = 1
        """Threads of the kernels that the training thread runs."""

    @property
    def row_bytes(self) -> list[int]:
        """Device bytes of one hot row of each pool."""
        return self.row_bytes_when(self.monitored)

    def row_bytes_when(self, monitored: bool) -> list[int]:
        """Return the same with, or without, a record of the rows' movement."""
        return row_bytes(self.space, self.rules, self.dtype.itemsize, monitored)

    @property
    def device_bytes(self) -> int:
        """Device memory of the tier, free slots included."""
        return sum(size * slots for size, slots in zip(self.row_bytes, self.device.capacities, strict=True))

    def _cold_tier(self, drawn: bool) -> HostTier:
        return HostTier(self.space, self.rules, self.seed, self.numpy_dtype, drawn)

    def _device_tier(self, capacities: list[int]) -> DeviceTier:
        return DeviceTier(self.space, self.rules, self.dtype, self.torch_device, capacities, self.monitored)

    def settle(self) -> None:  # noqa: B027 - only a device works in the background
        """Wait until all queued work is done and every update has reached its row."""

    def trim(self) -> None:  # noqa: B027 - likewise
        """Return unused memory to the device."""

    # Moves -----------------------------------------------------------------------------------------------------------

    def migrate(self, migration: Migration) -> None:
        """Move rows between the tiers with their optimizer state. No value changes."""
        if not migration.moved_rows:
            return
        self.settle()
        for pool, spec in enumerate(self.space.pools):
            self._demote(pool, spec.select(migration.demote))
            self._promote(pool, spec.select(migration.promote))
        self.traffic.add_migration(migration.moved_rows)
        self.hot_rows_T += self.space.count_by_table(migration.promote) - self.space.count_by_table(migration.demote)
        self._take_slots_over(migration)
        # Last, so that a batch classified by a worker meanwhile has the old version and is classified again.
        self.placement = Placement(self.placement.version + 1, self.slot_of_row, bool(self.hot_rows_T.any()))

    def resize(self, capacities: list[int], ranked_rows: NDArray[np.int64], monitored: bool | None = None) -> Migration:
        """Change the number of slots of each pool: all rows go home, then as many of `ranked_rows` as fit return, best first.

        `monitored` sets whether the tier records the movement of its rows; None leaves it. Returns the rows that changed tier.
        """
        hot_before = np.sort(np.concatenate([rows[rows >= 0] for rows in self.device.row_of_slot]))
        self.migrate(Migration(promote=NO_ROWS, demote=hot_before))
        before = self.monitored, self.device.capacities
        self.monitored = self.monitored if monitored is None else monitored
        failed: Exception | None = None
        try:
            self.replace_tier(capacities)
        except Exception as error:  # too little memory
            failed = error.with_traceback(None)  # its frames hold the memory that was allocated
        if failed is not None:  # restore, then raise
            self.monitored, former = before
            self.replace_tier(former)
            self.migrate(Migration(promote=hot_before, demote=NO_ROWS))
            raise failed
        pools = zip(self.space.pools, self.device.capacities, strict=True)
        hot_now = np.concatenate([pool.select(ranked_rows)[:capacity] for pool, capacity in pools])
        self.migrate(Migration(promote=hot_now, demote=NO_ROWS))
        return Migration(np.setdiff1d(hot_now, hot_before), np.setdiff1d(hot_before, hot_now))

    def replace_tier(self, capacities: list[int]) -> None:
        """Replace the tier by an empty one. The old one's memory is freed first."""
        self.device = self._device_tier([0] * len(self.space.pools))
        self.trim()
        self.device = self._device_tier(capacities)

    def _demote(self, pool: int, rows: NDArray[np.int64]) -> None:
        if not len(rows):
            return
        slots = self.slot_of_row[rows].astype(np.int64)
        self._bring_home(pool, slots, rows - self.space.pools[pool].first_row)
        self.slot_of_row[rows] = COLD
        self.device.clear(pool, slots)
        self._count_moved(pool, len(rows), to_device=False)

    def _promote(self, pool: int, rows: NDArray[np.int64]) -> None:
        if not len(rows):
            return
        slots = self.device.free_slots(pool, len(rows))
        self.send_up(pool, rows - self.space.pools[pool].first_row, slots)
        self.slot_of_row[rows] = slots
        self.device.fill(pool, rows)
        self._count_moved(pool, len(rows), to_device=True)

    def _take_slots_over(self, migration: Migration) -> None:  # noqa: B027 - only a device has a copy of the slots
        """Have batches that are classified from now on find rows that have moved."""

    def _collect_changed(self) -> None:  # noqa: B027 - only a device keeps flags
        """Flag hot rows in `changed_R` that were updated since the last call."""

    @abstractmethod
    def _bring_home(self, pool: int, slots: NDArray[np.int64], host_rows: NDArray[np.int64]) -> None:
        """Copy rows and their optimizer state from slots to the host tier, and have the monitor forget the slots."""

    @abstractmethod
    def send_up(self, pool: int, host_rows: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        """Copy rows and their optimizer state from the host tier to slots."""

    @abstractmethod
    def _read_slots(self, pool: int, slots: NDArray[np.int64]) -> Arrays:
        """Return rows and optimizer state of some slots."""

    def _count_moved(self, pool: int, rows: int, to_device: bool) -> None:
        spec = self.space.pools[pool]
        size = rows * self.rules[pool].bytes_per_row(spec.dim, self.dtype.itemsize)
        self.traffic.add_bytes(to_device=size if to_device else 0, to_host=0 if to_device else size)

    # Restored ----------------------------------------------------------------------------------------------------------

    def restore_placement(self, version: int) -> None:
        """Use the restored slots as a placement of this version."""
        self._take_slots_over(Migration(np.flatnonzero(self.slot_of_row != COLD), NO_ROWS))
        self.hot_rows_T = self.space.count_by_table(np.flatnonzero(self.slot_of_row != COLD))
        self.placement = Placement(version, self.slot_of_row, bool(self.hot_rows_T.any()))

    def set_traffic(self, traffic: Traffic) -> None:
        """Continue from these counts."""
        self.traffic = traffic

    # Whole tables ----------------------------------------------------------------------------------------------------

    def export_table(self, table: int) -> Arrays:
        """Return copies of a table's rows and optimizer state, from both tiers."""
        self.settle()
        pool, low, high = self.space.table_range(table)
        weights, state = (kept[low:high].copy() for kept in self.host.arrays(pool))
        first = self.space.pools[pool].first_row
        slot = self.slot_of_row[first + low : first + high]
        hot = np.flatnonzero(slot != COLD)
        for start in range(0, len(hot), _CHUNK_ROWS):
            rows = hot[start : start + _CHUNK_ROWS]
            weights[rows], state[rows] = self._read_slots(pool, slot[rows].astype(np.int64))
        return weights, state

    # Saving ----------------------------------------------------------------------------------------------------------

    @property
    def changed_bytes(self) -> int:
        """Bytes of the rows updated since the last snapshot, with their optimizer state."""
        self._collect_changed()
        return sum(
            int(np.count_nonzero(self.changed_R[pool.first_row : pool.end_row]))
            * rule.bytes_per_row(pool.dim, self.dtype.itemsize)
            for rule, pool in zip(self.rules, self.space.pools, strict=True)
        )

    def begin_snapshot(self, everything: bool) -> RowSnapshot:
        """Start a snapshot of the rows updated since the last one, or of all rows, for another thread to save. One at a time."""
        assert self.snapshot is None, "a snapshot must end before another one starts"
        self.settle()
        self._collect_changed()
        if everything:
            self.changed_R[:] = True
        self._make_readable(self.changed_R)
        self.snapshot = RowSnapshot(self.space, self.host, self._where, self.changed_R)
        self.host.save_into(self.snapshot)
        self.changed_R = self._unchanged_R  # last, so that a failure loses no flag
        return self.snapshot

    def end_snapshot(self, saved: bool) -> None:
        """End the snapshot. If it was not saved, its rows are part of the next one."""
        snapshot, self.snapshot = self.snapshot, None
        self.host.save_into(None)
        if snapshot is not None:
            snapshot.end()
            if not saved:
                # Not |=, which would also write flags that another thread may set meanwhile.
                self.changed_R[snapshot.mark_R != 0] = True
                snapshot.forget()
            self._unchanged_R = snapshot.mark_R.view(np.bool_)

    def shards(self, snapshot: Any) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield the shards of a snapshot as a checkpoint has them, by the names of their arrays. A shard is valid until the next
        one is requested. Called once, by the saving thread."""
        for shard in snapshot.shards():
            yield dict(zip((ROW, WEIGHT, OPTIMIZER_STATE), self.saved_rows(*shard.arrays), strict=True))

    def saved_rows(
        self, row_N: NDArray[np.int64], weights_ND: NDArray[Any], state_NK: NDArray[Any]
    ) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[Any]]:
        """Return rows of a snapshot with their numbers in the joint row space of all processes."""
        return row_N, weights_ND, state_NK

    def saved_log(self) -> SavedLog | None:
        """Return where the rows are that a snapshot has saved by their addresses, once its shards were yielded; None where shards
        have the rows themselves."""
        return None

    def keep_for(self, kept: Collection[str] | None, written: str = "") -> None:  # noqa: B027 - only a disk has more
        """Keep what these checkpoints need on the disk besides their own files, and nothing else; None: what all need. `written`:
        the one of them that was just written."""

    def _make_readable(self, pending_R: NDArray[np.bool_]) -> None:  # noqa: B027 - only rows on a device are not
        """Copy rows that are to be saved to where `_where` finds them."""

    @abstractmethod
    def _where(self, pool: int) -> Tiers:
        """Return where unchanged rows of a pool can be read now."""

"""Rows in memory and on a disk, between two steps: moves, saving, whole tables, counts. `disk_store.py` is the step.

A row that becomes hot is not read from the disk for that: unless the log still has it in memory, its slot is *empty* until the
first batch that needs the row brings it along (`slot_values.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_rec.embedding.device import DeviceTier
from adaptive_rec.embedding.direct import DirectStore
from adaptive_rec.embedding.disk.disk_snapshot import DiskSnapshot
from adaptive_rec.embedding.disk.disk_tier import DiskTier
from adaptive_rec.embedding.disk.first_values import FreshRows
from adaptive_rec.embedding.disk.saved_segments import NOWHERE, SavedLog, SegmentEntry
from adaptive_rec.embedding.disk.slot_values import SlotValues
from adaptive_rec.embedding.host import Arrays, GivenRows
from adaptive_rec.embedding.missed_steps import MissedSteps
from adaptive_rec.kernels.row_update import TierArrays
from adaptive_rec.placement import COLD

_CHUNK_ROWS = 1 << 16
"""Limit of rows that are overwritten at a time."""

INDEX_BYTES = 8
"""A row's number and its address in a checkpoint."""


class DiskRows(DirectStore):
    """The part of a `DiskStore` that works between two steps. `changed_R` flags rows whose value in memory, or whose address, no
    checkpoint has; of rows in filled slots see `SlotValues`."""

    on_disk = True
    host: DiskTier  # type: ignore[assignment]

    def __init__(self, *arguments: Any, folder: Path) -> None:
        """`arguments`: those of a store in memory; rows that are not set are drawn, in any case. `folder` must exist."""
        self._folder = folder
        self.disk_snapshot: DiskSnapshot | None = None
        self._kept_for: dict[str, list[list[SegmentEntry]]] = {}
        """Segments of each checkpoint that a run may be resumed from."""
        self._rows_ahead = self._rows_again = 0
        self._counted_before: dict[str, int] = {}
        """Counts of a resumed run's earlier processes, of all ranks together."""
        super().__init__(*arguments)

    def _device_tier(self, capacities: list[int]) -> DeviceTier:
        self._slots = SlotValues(capacities)
        return super()._device_tier(capacities)

    def _cold_tier(self, drawn: bool) -> DiskTier:  # type: ignore[override]
        return DiskTier(self.space, self.rule, self.numpy_dtype, self._folder, self._first_values())

    def _first_values(self) -> FreshRows:
        """Return the first values of this store's rows."""
        return FreshRows(self.seed, self.space.tables)

    # Moves -----------------------------------------------------------------------------------------------------------

    def _bring_home(self, pool: int, slots: NDArray[np.int64], host_rows: NDArray[np.int64]) -> None:
        if self.disk_snapshot is not None:
            self.disk_snapshot.keep(pool, slots)
        rows = host_rows + self.space.pools[pool].first_row
        changed = self.changed_R[rows] & ~self._slots.are_absent(pool, slots)
        self.host.append(pool, host_rows[changed], slots[changed], *self.device.arrays(pool))
        self._slots.clear(pool, slots, rows, self.changed_R)
        if self.monitored:
            self.device.monitors[pool].forget(torch.from_numpy(slots))

    def send_up(self, pool: int, host_rows: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        """The slots of those that are on the disk alone stay empty."""
        found = self.host.read_in_memory(pool, host_rows, slots, self.device.arrays(pool))
        self._slots.fill(pool, slots[found], host_rows[found] + self.space.pools[pool].first_row, self.changed_R)

    def catch_up(self, pool: int, row_N: NDArray[np.int64], missed: MissedSteps, next_step: int = 0) -> None:
        spec, rows = self.space.pools[pool], np.unique(row_N)
        slot_R = self.slot_of_row[spec.first_row : spec.end_row]
        is_absent = self._slots.are_absent(pool, slot_R[rows])
        hot, absent = rows[~is_absent], rows[is_absent]
        missed.make(hot, slot_R, next_step, TierArrays(*self.device.arrays(pool), *self.host.arrays(pool)))
        self.changed_R[spec.first_row + hot] = True
        for first in range(0, len(absent), _CHUNK_ROWS):
            some = absent[first : first + _CHUNK_ROWS]
            part, lines = self.host.room_for(pool, len(some)), np.arange(len(some))
            self.host.read(pool, some, lines, *part.arrays)
            before_C = part.state_UK[:, -1].copy()  # the number of the last step that a row has had
            missed.make(lines, np.full(len(some), COLD), next_step, TierArrays(*self.device.arrays(pool), *part.arrays))
            moved = np.flatnonzero(part.state_UK[:, -1] != before_C)
            self.host.append(pool, some[moved], moved, *part.arrays)

    # Saving ----------------------------------------------------------------------------------------------------------

    @property
    def changed_bytes(self) -> int:
        """Bytes of the index of the rows that changed since the last snapshot."""
        return INDEX_BYTES * (int(np.count_nonzero(self.changed_R)) + self._slots.unsaved_slots)

    def begin_snapshot(self, everything: bool) -> DiskSnapshot:  # type: ignore[override]
        assert self.disk_snapshot is None, "a snapshot must end before another one starts"
        held = self.host.hold_live()  # first, as compaction goes on meanwhile
        if everything:
            for pool, log in zip(self.space.pools, self.host.logs, strict=True):
                self.changed_R[pool.first_row : pool.end_row] |= log.address_R != NOWHERE
        self.changed_R[self.host.take_moved()] = True
        slots = self._slots_in_memory(np.flatnonzero(self.changed_R))
        for rows in self._slots.take_unsaved(self.device.row_of_slot):
            self.changed_R[rows] = True  # only their addresses are saved: the log has their values
        changed = np.flatnonzero(self.changed_R)
        self.disk_snapshot = DiskSnapshot(self.space, self.device, self.host, slots, changed, held)
        self.changed_R[changed] = False
        return self.disk_snapshot

    def _slots_in_memory(self, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return for each pool the slots that have the values of some rows."""
        found = []
        for pool, spec in enumerate(self.space.pools):
            slots = self.slot_of_row[spec.select(rows)].astype(np.int64)
            found.append(slots[~self._slots.are_absent(pool, slots)])
        return found

    def shards(self, snapshot: DiskSnapshot) -> Iterator[dict[str, NDArray[Any]]]:
        return snapshot.shards()

    def end_snapshot(self, saved: bool) -> None:
        snapshot, self.disk_snapshot = self.disk_snapshot, None
        if snapshot is not None and not saved:
            self.changed_R[snapshot.changed] = True
            self.host.release(snapshot.segments)

    def saved_log(self) -> SavedLog | None:
        assert self.disk_snapshot is not None, "what a snapshot has saved is known while it lasts"
        return self.host.saved(self.disk_snapshot.segments)

    def keep_for(self, kept: Collection[str] | None, written: str = "") -> None:
        if written and self.disk_snapshot is not None:
            self._kept_for[written] = self.disk_snapshot.segments
        for name in [name for name in self._kept_for if kept is not None and name not in kept]:
            self.host.release(self._kept_for.pop(name))

    def adopt(self, name: str, saved: SavedLog, index: Iterable[tuple[NDArray[np.int64], NDArray[np.uint32]]]) -> None:
        """Take over the rows of a checkpoint of this name, which must fit this store's cold tier. `index` yields rows of all
        ranks, by their numbers in `batch_space`, and their addresses; later ones replace earlier ones. Raises DiskError."""
        self.host.adopt(saved, self._own_addresses(index))
        self._kept_for[name] = [list(pool.segments) for pool in saved.pools]

    def _own_addresses(
        self, index: Iterable[tuple[NDArray[np.int64], NDArray[np.uint32]]]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint32]]]:
        for rows, address_C in index:
            here, own_rows = self.owned(rows)
            yield own_rows, address_C[here]

    @property
    def present_log(self) -> SavedLog:
        """All segments that there are now."""
        return self.host.saved([log.segments.entries for log in self.host.logs])

    # Whole tables ----------------------------------------------------------------------------------------------------

    def export_table(self, table: int) -> Arrays:
        pool, low, high = self.space.table_range(table)
        part = self.host.room_for(pool, high - low)
        slot_R = self.slot_of_row[self.space.pools[pool].first_row + low : self.space.pools[pool].first_row + high]
        is_absent = self._slots.are_absent(pool, slot_R)
        absent, hot = np.flatnonzero(is_absent), np.flatnonzero(~is_absent)
        self.host.read(pool, low + absent, absent, *part.arrays)
        for kept, read in zip(part.arrays, self._read_slots(pool, slot_R[hot].astype(np.int64)), strict=True):
            kept[hot] = read
        return part.arrays

    def _read_cold(self, pool: int, host_rows: NDArray[np.int64]) -> Arrays:
        part = self.host.room_for(pool, len(host_rows))
        self.host.read(pool, host_rows, np.arange(len(host_rows)), *part.arrays)
        return part.arrays

    def _set_drawn(self, pool: int, host_rows: NDArray[np.int64], weights: NDArray[Any], state: NDArray[Any]) -> None:
        self.host.append(pool, host_rows, np.arange(len(host_rows)), weights, state)

    def _overwrite(self, pool: int, host_rows: NDArray[np.int64], given: GivenRows) -> None:
        for first in range(0, len(host_rows), _CHUNK_ROWS):
            some = slice(first, first + _CHUNK_ROWS)
            lines = np.arange(len(host_rows[some]))
            part = self.host.room_for(pool, len(lines))
            if any(values is None for values in given):
                self.host.read(pool, host_rows[some], lines, *part.arrays)
            for kept, values in zip(part.arrays, given, strict=True):
                if values is not None:
                    kept[:] = values[some]
            self.host.append(pool, host_rows[some], lines, *part.arrays)

    # Counts ----------------------------------------------------------------------------------------------------------

    def own_disk_figures(self) -> dict[str, int]:
        return {**self._own_disk_counts(), **self._own_disk_sizes()}

    def _own_disk_counts(self) -> dict[str, int]:
        totals = Counter(rows_ahead=self._rows_ahead, rows_again=self._rows_again)
        for log in self.host.logs:
            totals.update(asdict(log.counts))
        return dict(totals)

    def _own_disk_sizes(self) -> dict[str, int]:
        return {"size_bytes": self.host.size_bytes, "segments": self.host.segments}

    def disk_counts(self) -> dict[str, int]:
        now = self.group.totals(self._own_disk_counts())
        return {name: count + self._counted_before.get(name, 0) for name, count in now.items()}

    def set_disk_counts(self, counts: Mapping[str, int]) -> None:
        self._counted_before = dict(counts)

    def share_addresses(self, address_R: NDArray[np.uint32]) -> None:
        for pool, log in zip(self.space.pools, self.host.logs, strict=True):
            log.share_addresses(address_R[pool.first_row : pool.end_row])

    def disk_sizes(self) -> dict[str, int]:
        return self.group.totals(self._own_disk_sizes())

    # The end ---------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Wait until what was written is written. Raises DiskError where some was not."""
        self.host.flush()

    def close(self) -> None:
        super().close()
        self.host.close()

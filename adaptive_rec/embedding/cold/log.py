"""Cold rows that lie in a log on a disk. Of a CPU run hot rows are in memory (`lazy_hot.py`).

`changed_R` flags rows whose value in memory, or whose address, no checkpoint has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from adaptive_rec.embedding.cold.home import ColdHome, OfParts, no_rows
from adaptive_rec.embedding.cold.lazy_hot import LazyHotRows
from adaptive_rec.embedding.disk.disk_snapshot import DiskSnapshot, RowsInSlots
from adaptive_rec.embedding.disk.disk_tier import DiskTier
from adaptive_rec.embedding.disk.saved_segments import NOWHERE, SavedLog, SegmentEntry
from adaptive_rec.embedding.first_values import FreshRows
from adaptive_rec.embedding.host import Arrays, GivenRows
from adaptive_rec.embedding.index import RowIndex
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.system.group import ALONE, Group

CHUNK_ROWS = 1 << 16
"""Limit of rows that are overwritten at a time."""

INDEX_BYTES = 8
"""A row's number and its address in a checkpoint."""


class OnLog(ColdHome):
    """All cold rows on a disk."""

    on_disk = keeps_unchanged = True
    types: DiskTier

    def __init__(
        self, index: RowIndex, rules: Sequence[RowRule], dtype: DTypeLike, first: FreshRows, folder: Path, group: Group = ALONE
    ) -> None:  # fmt: skip
        """`folder` must exist. `group`: the ranks whose counts are added up, each of which has rows of its own."""
        self._index, self._group = index, group
        self.types = DiskTier(index.space, rules, dtype, folder, first)
        self.snapshot: DiskSnapshot | None = None
        self._kept_for: dict[str, list[list[SegmentEntry]]] = {}
        """Segments of each checkpoint that a run may be resumed from."""
        self._rows_ahead = self._rows_again = 0
        self._counted_before: dict[str, int] = {}
        """Counts of a resumed run's earlier processes, of all ranks together."""

    # Values ----------------------------------------------------------------------------------------------------------

    def read(self, pool: int, rows_C: NDArray[np.int64], packed: Arrays) -> int:
        self.types.read(pool, rows_C, np.arange(len(rows_C)), *packed)
        return len(rows_C)

    def read_near(
        self, pool: int, rows_C: NDArray[np.int64], line_C: NDArray[np.int64], arrays: Arrays
    ) -> NDArray[np.bool_]:
        """Copy those rows that the log has in memory into lines of two arrays. Returns which they are."""
        return self.types.read_in_memory(pool, rows_C, line_C, arrays)

    def write(
        self, pool: int, rows_C: NDArray[np.int64], packed: Arrays, changed_C: NDArray[np.bool_] | None, also: OfParts = no_rows
    ) -> None:
        line_C = np.arange(len(rows_C)) if changed_C is None else np.flatnonzero(changed_C)
        also(0, len(rows_C))
        self.types.append(pool, rows_C[line_C], line_C, *packed)

    def overwrite(self, pool: int, rows_C: NDArray[np.int64], given: GivenRows) -> None:
        for first in range(0, len(rows_C), CHUNK_ROWS):
            some = slice(first, first + CHUNK_ROWS)
            part = self.types.room_for(pool, len(rows_C[some])).arrays
            if any(values is None for values in given):
                self.read(pool, rows_C[some], part)
            for kept, values in zip(part, given, strict=True):
                if values is not None:
                    kept[:] = values[some]
            self.draw(pool, rows_C[some], part)

    def draw(self, pool: int, rows_C: NDArray[np.int64], packed: Arrays) -> None:
        self.types.append(pool, rows_C, np.arange(len(rows_C)), *packed)

    # Saving ----------------------------------------------------------------------------------------------------------

    @property
    def is_being_saved(self) -> bool:
        return self.snapshot is not None

    def keep(self, pool: int, rows_C: NDArray[np.int64], slots_C: NDArray[np.int64]) -> None:
        """Have the snapshot, if there is one, append those of the rows that are in slots."""
        if (snapshot := self.snapshot) is not None:
            snapshot.keep(pool, slots_C[slots_C >= 0])

    def changed_bytes(self, hot: LazyHotRows) -> int:  # type: ignore[override]
        """Bytes of the index of the rows that changed since the last snapshot."""
        hot.flag_changed()
        return INDEX_BYTES * (int(np.count_nonzero(self._index.changed_R)) + hot.unsaved_slots)

    def begin_snapshot(self, hot: LazyHotRows, everything: bool) -> DiskSnapshot:  # type: ignore[override]
        assert self.snapshot is None, "a snapshot must end before another one starts"
        held = self.types.hold_live()  # first, as compaction goes on meanwhile
        in_memory, slots = self._to_append(hot, everything)
        changed_R = self._index.changed_R
        changed = np.flatnonzero(changed_R)
        self.snapshot = DiskSnapshot(self._index.space, in_memory, self.types, slots, changed, held)
        changed_R[changed] = False
        return self.snapshot

    def _to_append(self, hot: LazyHotRows, everything: bool) -> tuple[RowsInSlots, list[NDArray[np.int64]]]:
        """Flag all rows of the next snapshot as changed. Returns those in memory, and for each pool the slots of those whose
        values it must append."""
        self._flag_moved(everything)
        slots = hot.slots_with_values(np.flatnonzero(self._index.changed_R))
        hot.flag_unsaved()  # only their addresses are saved: the log has their values
        return hot.tier, slots

    def _flag_moved(self, everything: bool) -> None:
        """Flag rows whose address must be saved: those that compaction has moved, or all."""
        changed_R = self._index.changed_R
        if everything:
            for pool, log in zip(self._index.space.pools, self.types.logs, strict=True):
                changed_R[pool.first_row : pool.end_row] |= log.address_R != NOWHERE
        changed_R[self.types.take_moved()] = True

    def end_snapshot(self, saved: bool) -> None:
        snapshot, self.snapshot = self.snapshot, None
        if snapshot is not None and not saved:
            self._index.changed_R[snapshot.changed] = True
            self.types.release(snapshot.segments)

    def shards(self, snapshot: DiskSnapshot) -> Iterator[dict[str, NDArray[Any]]]:
        return snapshot.shards()

    def saved_log(self) -> SavedLog | None:
        assert self.snapshot is not None, "what a snapshot has saved is known while it lasts"
        return self.types.saved(self.snapshot.segments)

    def keep_for(self, kept: Collection[str] | None, written: str = "") -> None:
        if written and self.snapshot is not None:
            self._kept_for[written] = self.snapshot.segments
        for name in [name for name in self._kept_for if kept is not None and name not in kept]:
            self.types.release(self._kept_for.pop(name))

    def adopt(
        self, name: str, saved: SavedLog, index: Iterable[tuple[NDArray[np.int64], NDArray[np.uint32]]]
    ) -> None:
        self.types.adopt(saved, index)
        self._kept_for[name] = [list(pool.segments) for pool in saved.pools]

    def fits(self, saved: SavedLog) -> bool:
        return self.types.fits(saved)

    def files(self) -> Iterable[Path]:
        return self.types.saved([log.segments.entries for log in self.types.logs]).files

    # Counts ----------------------------------------------------------------------------------------------------------

    def count_read(self, rows: int, again: bool) -> None:
        if again:
            self._rows_again += rows
        else:
            self._rows_ahead += rows

    def counts(self) -> dict[str, int]:
        totals = Counter(rows_ahead=self._rows_ahead, rows_again=self._rows_again)
        for log in self.types.logs:
            totals.update(asdict(log.counts))
        return dict(totals)

    def sizes(self) -> dict[str, int]:
        segments, size_bytes = self.types.sizes()
        return {"size_bytes": size_bytes, "segments": segments}

    def total_counts(self) -> dict[str, int]:
        now = self._group.totals(self.counts())
        return {name: count + self._counted_before.get(name, 0) for name, count in now.items()}

    def set_total_counts(self, counts: Mapping[str, int]) -> None:
        self._counted_before = dict(counts)

    def total_sizes(self) -> dict[str, int]:
        return self._group.totals(self.sizes())

    def share_addresses(self, address_R: NDArray[np.uint32]) -> None:
        for pool, log in zip(self._index.space.pools, self.types.logs, strict=True):
            log.share_addresses(address_R[pool.first_row : pool.end_row])

    # The end ---------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        self.types.flush()

    def close(self) -> None:
        self.types.close()

"""What every store with a log does between two steps: checkpoints, rows set from outside, counts.

`disk_rows.py` goes on for a CPU, where hot rows are in memory; `staged_disk_store.py` is the store of a device, with three homes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.disk.disk_snapshot import DiskSnapshot, RowsInSlots
from adaptive_rec.embedding.disk.disk_tier import DiskTier
from adaptive_rec.embedding.disk.first_values import FreshRows
from adaptive_rec.embedding.disk.saved_segments import NOWHERE, SavedLog, SegmentEntry
from adaptive_rec.embedding.host import Arrays, GivenRows
from adaptive_rec.embedding.store import EmbeddingStore

CHUNK_ROWS = 1 << 16
"""Limit of rows that are overwritten at a time."""

INDEX_BYTES = 8
"""A row's number and its address in a checkpoint."""


class LoggedRows(EmbeddingStore):
    """The part of a store whose cold tier is a log. `changed_R` flags rows whose value in memory, or whose address, no checkpoint
    has."""

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

    def _cold_tier(self, drawn: bool) -> DiskTier:  # type: ignore[override]
        return DiskTier(self.space, self.rules, self.numpy_dtype, self._folder, self._first_values())

    def _first_values(self) -> FreshRows:
        """Return the first values of this store's rows."""
        return FreshRows(self.seed, self.space.tables)

    # Saving ----------------------------------------------------------------------------------------------------------

    @property
    def changed_bytes(self) -> int:
        """Bytes of the index of the rows that changed since the last snapshot."""
        self._collect_changed()
        return INDEX_BYTES * int(np.count_nonzero(self.changed_R))

    def begin_snapshot(self, everything: bool) -> DiskSnapshot:  # type: ignore[override]
        assert self.disk_snapshot is None, "a snapshot must end before another one starts"
        held = self.host.hold_live()  # first, as compaction goes on meanwhile
        in_memory, slots = self._to_append(everything)
        changed = np.flatnonzero(self.changed_R)
        self.disk_snapshot = DiskSnapshot(self.space, in_memory, self.host, slots, changed, held)
        self.changed_R[changed] = False
        return self.disk_snapshot

    @abstractmethod
    def _to_append(self, everything: bool) -> tuple[RowsInSlots, list[NDArray[np.int64]]]:
        """Flag all rows of the next snapshot as changed. Returns those in memory, and for each pool the slots of those whose
        values it must append."""

    def _flag_moved(self, everything: bool) -> None:
        """Flag rows whose address must be saved: those that compaction has moved, or all."""
        if everything:
            for pool, log in zip(self.space.pools, self.host.logs, strict=True):
                self.changed_R[pool.first_row : pool.end_row] |= log.address_R != NOWHERE
        self.changed_R[self.host.take_moved()] = True

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

    # Rows that are set -----------------------------------------------------------------------------------------------

    def _read_cold(self, pool: int, host_rows: NDArray[np.int64]) -> Arrays:
        part = self.host.room_for(pool, len(host_rows))
        self.host.read(pool, host_rows, np.arange(len(host_rows)), *part.arrays)
        return part.arrays

    def _set_drawn(self, pool: int, host_rows: NDArray[np.int64], weights: NDArray[Any], state: NDArray[Any]) -> None:
        self.host.append(pool, host_rows, np.arange(len(host_rows)), weights, state)

    def _overwrite(self, pool: int, host_rows: NDArray[np.int64], given: GivenRows) -> None:
        for first in range(0, len(host_rows), CHUNK_ROWS):
            some = slice(first, first + CHUNK_ROWS)
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
        """Wait until all rows are where they belong, and what was appended is written. Raises DiskError where some was not."""
        super().settle()
        self.host.flush()

    def close(self) -> None:
        super().close()
        self.host.close()

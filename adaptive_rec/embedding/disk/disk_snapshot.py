"""A snapshot of rows of which most lie on the disk already: it appends the rows in memory that have changed, and saves an index.

As in `embedding/snapshot.py` nothing is copied at its moment. A row in memory is *pending* until it is appended: by the saving
thread, which passes over all slots, or by a caller of `keep` that is about to change or move it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.disk.disk_tier import DiskTier
from adaptive_rec.embedding.disk.saved_segments import SegmentEntry
from adaptive_rec.embedding.disk.segment import Segment
from adaptive_rec.embedding.host import Arrays
from adaptive_rec.embedding.shard_arrays import ADDRESS, ROW
from adaptive_rec.placement import RowSpace

_SLICE = 1 << 13
"""Slots that are looked at at a time, while `keep` waits."""

_SHARD_ROWS = 1 << 21
"""Limit of rows in a shard of the index."""


class RowsInSlots(Protocol):
    """Rows in memory: the hot ones of a CPU run, or those that a device run keeps in host memory."""

    @property
    def capacities(self) -> list[int]: ...

    @property
    def row_of_slot(self) -> list[NDArray[np.int64]]: ...

    def arrays(self, pool: int) -> Arrays: ...


class DiskSnapshot:
    """The rows that changed since the last one. Who changes or moves rows calls `keep`; the saving thread `shards`."""

    def __init__(
        self, space: RowSpace, in_memory: RowsInSlots, host: DiskTier, slots: list[NDArray[np.int64]], changed: NDArray[np.int64],
        held: list[list[Segment]],
    ) -> None:  # fmt: skip
        """`changed` are the rows that changed since the last snapshot, by their numbers in the joint row space, ascending;
        `slots`: for each pool those that have the values of such rows; `held`: for each pool the segments kept for the snapshot,
        from before `changed` was found."""
        self._space, self._in_memory, self._host = space, in_memory, host
        self.changed = changed
        self.rows = len(changed)
        self.kept_seconds = 0.0
        """Time spent in `keep`."""
        self._held = held
        self._saving = threading.Lock()
        self._address_C = np.zeros(len(changed), np.uint32)
        """Where the value of each changed row is, of this snapshot's moment."""
        self._pending: list[NDArray[np.bool_]] = []
        for pool, spec in enumerate(space.pools):
            low, high = np.searchsorted(changed, (spec.first_row, spec.end_row))
            rows = changed[low:high]
            pending_H = np.zeros(in_memory.capacities[pool], np.bool_)
            pending_H[slots[pool]] = True
            self._pending.append(pending_H)
            self._address_C[low:high] = host.logs[pool].address_R[rows - spec.first_row]
            self._hold(pool)

    def keep(self, pool: int, slots: NDArray[np.int64]) -> None:
        """Append the pending ones of some slots' rows, which are about to change or move."""
        pending_H = self._pending[pool]
        if not pending_H.any():
            return
        began = time.perf_counter()
        with self._saving:
            inside = slots[slots < len(pending_H)]  # a larger tier has more slots, which hold nothing that is pending
            self._append(pool, inside[pending_H[inside]])
        self.kept_seconds += time.perf_counter() - began

    def shards(self) -> Iterator[dict[str, NDArray[Any]]]:
        """Append all pending rows, then yield the index: numbers of rows, ascending, and their addresses."""
        for pool, pending_H in enumerate(self._pending):
            for first in range(0, len(pending_H), _SLICE):
                with self._saving:
                    self._append(pool, first + np.flatnonzero(pending_H[first : first + _SLICE]))
                time.sleep(0)  # lets `keep` have the lock first
        self._held = self._host.sync(self._held)
        for first in range(0, self.rows, _SHARD_ROWS):
            some = slice(first, first + _SHARD_ROWS)
            yield {ROW: self.changed[some], ADDRESS: self._address_C[some]}

    @property
    def segments(self) -> list[list[SegmentEntry]]:
        """For each pool the segments that are kept for it; once `shards` has begun to yield, all that have its rows."""
        return [[segment.entry for segment in segments] for segments in self._held]

    def _append(self, pool: int, slots: NDArray[np.int64]) -> None:
        if not len(slots):
            return
        spec, log = self._space.pools[pool], self._host.logs[pool]
        rows = self._in_memory.row_of_slot[pool][slots]
        self._host.append(pool, rows - spec.first_row, slots, *self._in_memory.arrays(pool))
        self._address_C[np.searchsorted(self.changed, rows)] = log.address_R[rows - spec.first_row]
        self._pending[pool][slots] = False
        self._hold(pool)

    def _hold(self, pool: int) -> None:
        """Keep the segments of the addresses that were just found."""
        self._held[pool] += self._host.logs[pool].segments.hold_live(self._held[pool])

    def end(self) -> None:
        """Nothing waits for it."""

    def forget(self) -> None:
        """Nothing is marked."""

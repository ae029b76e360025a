"""Placement of the rows that a phase of the stream lists: as many as there are slots, without a limit on moves."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import AdaptiveRecError, CheckpointError
from adaptive_rec.placement import Migration
from adaptive_rec.saved import ANY, Saved, parts_by_number

Rows = NDArray[np.int64]
Slots = NDArray[Any]

FREE = -1
FEW = 1 << 10


class Recency:
    """The hot slots of a pool, ordered by when they were last listed. Listing slots and taking the oldest ones touches few
    others."""

    def __init__(self, row_of_slot: Rows) -> None:
        hot = np.flatnonzero(row_of_slot >= 0)
        self._listed = np.full(len(row_of_slot), FREE, dtype=np.int64)
        """When each slot was last listed."""
        self._listed[hot] = 0
        self._lists = deque([(0, hot)])
        """Lists by time. A slot that was listed again or freed later stays in its old list, but no longer counts there."""
        self._length = len(hot)
        self._hot = len(hot)

    @property
    def slots(self) -> int:
        return len(self._listed)

    @property
    def free(self) -> int:
        return len(self._listed) - self._hot

    def stay(self, time: int, slots: Slots) -> None:
        """Protect hot slots that will be listed now from being taken."""
        self._listed[slots] = time

    def list(self, time: int, slots: Slots) -> None:
        """Record that these distinct, hot slots are listed, the best first."""
        if not len(slots):
            return
        self._hot += int(np.count_nonzero(self._listed[slots] == FREE))
        self._listed[slots] = time
        self._lists.append((time, slots))
        self._length += len(slots)
        if self._length > 2 * len(self._listed) + len(slots):
            kept = ((then, self._still(then, old)) for then, old in self._lists)
            self._lists = deque((then, old) for then, old in kept if len(old))
            self._length = sum(len(old) for _, old in self._lists)

    def take_unlisted(self, time: int) -> Slots:
        """Free and return all slots that are not listed now."""
        return self._taken(np.flatnonzero((self._listed != FREE) & (self._listed < time)))

    def take_oldest(self, count: int) -> Slots:
        """Free and return the slots listed longest ago; within one list the last come first."""
        parts = [np.empty(0, dtype=np.int64)]
        while count > 0:
            time, old = self._lists.popleft()
            begin = max(0, len(old) - max(count, FEW))  # only the end of a long list
            still = self._still(time, old[begin:])
            cut = max(0, len(still) - count)
            parts.append(still[cut:])
            count -= len(still) - cut
            self._length -= len(old) - begin - cut
            for left in (old[:begin], still[:cut]):
                if len(left):
                    self._lists.appendleft((time, left))
        return self._taken(np.concatenate(parts))

    def state(self) -> dict[str, Any]:
        return {
            "listed_H": self._listed,
            "times": np.array([time for time, _ in self._lists], dtype=np.int64),
            "lengths": np.array([len(slots) for _, slots in self._lists], dtype=np.int64),
            "slots": np.concatenate([np.empty(0, dtype=np.int64), *(slots for _, slots in self._lists)]),
        }

    def set_state(self, found: Saved) -> None:
        self._listed[:] = found.array("listed_H", np.int64, len(self._listed))
        times, lengths = found.array("times", np.int64, ANY), found.array("lengths", np.int64, ANY)
        slots = found.array("slots", np.int64, ANY)
        if len(times) != len(lengths) or (lengths < 0).any() or lengths.sum() != len(slots):
            raise CheckpointError(f"lists of slots must have as many as their lengths say, got {len(slots)} slots")
        if len(slots) and not (0 <= slots.min() and slots.max() < len(self._listed)):
            raise CheckpointError(
                f"slots listed must lie in [0, {len(self._listed)}), got {slots.min()} to {slots.max()}"
            )
        parts = np.split(slots, np.cumsum(lengths)[:-1]) if len(lengths) else []
        self._lists = deque(zip(times.tolist(), parts, strict=True))
        self._length, self._hot = len(slots), int(np.count_nonzero(self._listed != FREE))

    def _still(self, time: int, slots: Slots) -> Slots:
        return slots[self._listed[slots] == time]

    def _taken(self, slots: Slots) -> Slots:
        self._listed[slots] = FREE
        self._hot -= len(slots)
        return slots


class ListedRows:
    """Makes listed rows hot, the best first. Others leave, or stay until their slot is needed."""

    def __init__(self) -> None:
        self._time = 0
        self._recency: list[Recency] = []
        self._version = -1
        """Version of the placement that `_recency` describes."""

    def place(self, store: EmbeddingStore, rows: Rows, others_stay: bool) -> Migration:
        """Make rows hot, as many as each pool has slots. The others leave; with `others_stay` only as many of them as needed,
        those listed longest ago first. Returns what moved."""
        if len(rows) and not (0 <= rows.min() and rows.max() < store.space.rows):
            wrong = rows.min() if rows.min() < 0 else rows.max()
            raise AdaptiveRecError(f"rows listed to be hot must lie in [0, {store.space.rows}), got {wrong}")
        self._time += 1
        slots = [recency.slots for recency in self._recency]
        if store.index.placement.version != self._version or slots != store.hot.tier.capacities:
            # Rows were moved otherwise, or the number of slots changed: all that is hot counts as listed long ago.
            self._recency = [Recency(row_of_slot) for row_of_slot in store.hot.tier.row_of_slot]
        wanted = [
            pool.select(rows)[:slots]
            for pool, slots in zip(store.space.pools, store.hot.tier.capacities, strict=True)
        ]
        parts = [self._plan(store, pool, part, others_stay) for pool, part in enumerate(wanted)]
        migration = Migration(*(np.concatenate(moves) for moves in zip(*parts, strict=True)))
        store.migrate(migration)
        self._version = store.index.placement.version
        for recency, part in zip(self._recency, wanted, strict=True):
            recency.list(self._time, store.index.placement.slot_of_row[part])
        return migration

    def state(self) -> dict[str, Any]:
        return {
            "time": self._time,
            "version": self._version,
            "recency": parts_by_number(recency.state() for recency in self._recency),
        }

    def set_state(self, found: Saved, store: EmbeddingStore) -> None:
        """Restore the saved order. The placement of `store` must be restored before."""
        self._time, self._version = found.integer("time"), found.integer("version")
        recencies = found.parts("recency")
        if recencies and len(recencies) != len(store.space.pools):
            raise CheckpointError(f"recency must be of {len(store.space.pools)} pools, got {len(recencies)}")
        self._recency = []
        if recencies and [part.shape("listed_H") for part in recencies] != [(n,) for n in store.hot.tier.capacities]:
            for part in recencies:  # the number of slots has changed since rows were listed, so `place` begins anew
                part.everything()
            return
        for part, row_of_slot in zip(recencies, store.hot.tier.row_of_slot, strict=False):
            self._recency.append(Recency(row_of_slot))
            self._recency[-1].set_state(part)

    def _plan(self, store: EmbeddingStore, pool: int, wanted: Rows, others_stay: bool) -> tuple[Rows, Rows]:
        """Return the rows of a pool to promote and to demote."""
        recency = self._recency[pool]
        ordered = np.sort(wanted)
        twice = ordered[:-1][ordered[1:] == ordered[:-1]]
        if len(twice):
            raise AdaptiveRecError(f"rows listed to be hot must be distinct, got {twice[0]} twice")
        slots = store.index.placement.slot_of_row[wanted]
        promote = wanted[slots < 0]
        recency.stay(self._time, slots[slots >= 0])
        leaving = recency.take_oldest(len(promote) - recency.free) if others_stay else recency.take_unlisted(self._time)
        return promote, store.hot.tier.row_of_slot[pool][leaving]

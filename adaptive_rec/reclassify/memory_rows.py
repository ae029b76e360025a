"""Which cold rows of a device run are in host memory: the most popular of those that are not hot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.placement import Migration
from adaptive_rec.reclassify.guard_rails import plan_migration
from adaptive_rec.reclassify.observer import Observer

if TYPE_CHECKING:
    from adaptive_rec.embedding.cold.memory_slots import MemorySlots


def place_in_memory(store: EmbeddingStore, observer: Observer, knobs: Knobs) -> None:
    """Move cold rows between disk and host memory by their estimates, once the hot rows are placed. Without a third home, and
    before any lookup was counted, nothing moves."""
    if (memory := store.cold.memory) is None:
        return
    candidates = observer.tracker.candidates()
    outside = candidates[(store.index.slot_of_row[candidates] < 0) & (memory.slot_of_row[candidates] < 0)]
    parts = [
        _plan(store, memory, observer, pool, spec.select(outside), knobs)
        for pool, spec in enumerate(store.space.pools)
    ]  # fmt: skip
    store.place_in_memory(
        Migration(np.concatenate([part.promote for part in parts]), np.concatenate([part.demote for part in parts]))
    )


def _plan(
    store: EmbeddingStore, memory: MemorySlots, observer: Observer, pool: int, outside: NDArray[np.int64], knobs: Knobs
) -> Migration:
    """Plan the moves of a pool, within the limits that hot rows have too. `outside`: candidates in no memory."""
    rows, slots = memory.rows_of(pool), memory.capacities[pool]
    if len(outside) <= slots - len(rows):
        return Migration(outside, rows[:0])  # whatever their popularity is
    of_outside, of_rows = (observer.tracker.estimate(some, store.threads) for some in (outside, rows))
    most = knobs.max_moved_bytes // store.hot.row_bytes(monitored=False)[pool]
    limits = slots, knobs.hysteresis, most, store.threads
    return plan_migration(outside, of_outside, rows, of_rows, memory.slot_of_row, *limits)

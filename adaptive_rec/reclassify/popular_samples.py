"""Popular samples of probe steps, kept to find the threshold that skips a wanted share of samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.classify import ClassifiedBatch, expand_ranges
from adaptive_rec.errors import CheckpointError
from adaptive_rec.saved import ANY, Saved

SAMPLES_PER_PROBE = 512
SAMPLES_PER_WINDOW = 8192
"""Limits of the samples that are kept."""


class PopularSamples:
    """The lookups of some popular samples, as slots; the slots of all pools are numbered in one line."""

    def __init__(self) -> None:
        self._slots: list[NDArray[np.int64]] = []
        self._lengths: list[NDArray[np.int64]] = []

    def keep(self, work: ClassifiedBatch, capacities: list[int]) -> None:
        """Keep some popular samples of a batch. `capacities` are the slots of each pool."""
        if sum(map(len, self._lengths)) >= SAMPLES_PER_WINDOW:
            return
        chosen = np.flatnonzero(work.popular_B)[:SAMPLES_PER_PROBE]
        starts = work.batch.offsets[chosen * len(work.space.features)]
        lengths = work.lookups_B[chosen]
        lookups = expand_ranges(starts, lengths)
        self._slots.append(_slots(work, capacities)[work.inverse_N[lookups]])
        self._lengths.append(lengths)

    def clear(self) -> None:
        self._slots.clear()
        self._lengths.clear()

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the slots of all lookups, and the number of lookups of each sample."""
        nothing = np.empty(0, dtype=np.int64)
        return np.concatenate([nothing, *self._slots]), np.concatenate([nothing, *self._lengths])

    def set_state(self, found: Saved, slots_in_all: int) -> None:
        """Restore the samples of an observer's saved state."""
        slots, lengths = found.array("sample_slots", np.int64, ANY), found.array("sample_lengths", np.int64, ANY)
        if lengths.sum() != len(slots) or (len(slots) and not (-1 <= slots.min() and slots.max() < slots_in_all)):
            raise CheckpointError(f"slots of kept samples must be as many as their lookups and below {slots_in_all}")
        self._slots, self._lengths = ([slots], [lengths]) if len(lengths) else ([], [])


def _slots(work: ClassifiedBatch, capacities: list[int]) -> NDArray[np.int64]:
    """Return the slot of each distinct row, -1 where it is cold."""
    slot_U = work.source_U.copy()
    first = 0
    for pool, capacity in enumerate(capacities):
        span = work.pool_range(pool)
        slot_U[span] = np.where(slot_U[span] >= 0, slot_U[span] + first, -1)
        first += capacity
    return slot_U

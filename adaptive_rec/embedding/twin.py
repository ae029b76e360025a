"""A second copy of the hot rows, which a trial trains otherwise than the run. Cold rows have none: they are read from the run."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.device import TierRows
from adaptive_rec.embedding.records import MicroBatch, RowUpdate
from adaptive_rec.embedding.row_types import as_array, as_tensor
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.saved import ANY, Saved, parts_by_number


class TwinRows:
    """A copy of the hot rows with their optimizer state, slot by slot. A row that becomes hot is copied from the run; one that
    leaves the hot tier has no copy any more."""

    def __init__(self, store: EmbeddingStore) -> None:
        """Copy the hot rows of a store, as they are when all work launched so far is done."""
        self._store = store
        tier = store.hot.tier
        self._copy = TierRows([self._cloned(part) for part in tier.weights], [self._cloned(part) for part in tier.state])
        self._rows = [rows.copy() for rows in tier.row_of_slot]
        self._version = store.index.placement.version
        self._absent = [_absent(store, pool) for pool in range(len(tier.weights))]
        """Slots whose rows' values are on the disk alone."""

    def _cloned(self, tensor: Tensor) -> Tensor:
        cloned = torch.empty_like(tensor)
        self._store.hot.launch(lambda: cloned.copy_(tensor))
        return cloned

    @staticmethod
    def bytes_of(store: EmbeddingStore) -> int:
        """Return the memory that a copy takes."""
        tier = store.hot.tier
        return sum(part.nbytes for part in (*tier.weights, *tier.state))

    def gather(self, work: ClassifiedBatch, scale_B: NDArray[np.float64], micro: MicroBatch) -> None:
        """Fill a micro-batch with all samples of a batch whose step has gathered them, before it updates them."""
        self.follow()
        for pool, absent in enumerate(self._absent):
            if len(absent):
                self._fill(pool, absent, work)
        self._store.path.gather_beside(work, scale_B, micro, self._copy)

    def update(self, work: ClassifiedBatch, update: RowUpdate) -> bool:
        """Update the hot rows of that batch. Returns False where one has become too large for its type."""
        return self._store.path.update_beside(work, update, self._copy)

    def follow(self) -> None:
        """Follow rows that have moved."""
        tier, version = self._store.hot.tier, self._store.index.placement.version
        if self._version == version:
            return
        for pool, (before, now) in enumerate(zip(self._rows, tier.row_of_slot, strict=True)):
            slots, slots_before = _slots_of_both(before, now)
            filled = ~np.isin(slots_before, self._absent[pool])
            to, source = (torch.from_numpy(part[filled]).to(tier.weights[pool].device) for part in (slots, slots_before))
            for own, runs in ((self._copy.weights, tier.weights), (self._copy.state, tier.state)):
                former, own[pool] = own[pool], self._cloned(runs[pool])
                self._store.hot.launch(partial(_put, own[pool], to, former, source))
            self._rows[pool] = now.copy()
            self._absent[pool] = np.setdiff1d(_absent(self._store, pool), slots[filled])  # after a restart the run lacks some
        self._version = version

    def _fill(self, pool: int, absent: NDArray[np.int64], work: ClassifiedBatch) -> None:
        """Copy rows of a batch that its step has read from the disk."""
        slots = work.source_U[work.pool_range(pool)]
        filled = np.intersect1d(absent, slots[slots >= 0])
        tier, places = self._store.hot.tier, torch.from_numpy(filled)
        for own, runs in ((self._copy.weights, tier.weights), (self._copy.state, tier.state)):
            _put(own[pool], places, runs[pool], places)
        self._absent[pool] = np.setdiff1d(absent, filled)

    def state(self) -> dict[str, Any]:
        """Return the rows whose values differ from the run's: a checkpoint has the others. A row without values here is the
        run's; one that only the run lacks is of this copy."""
        self.follow()
        self._store.path.settle()
        tier, parts = self._store.hot.tier, []
        for pool in range(len(self._rows)):
            own, runs = (self._copy.weights[pool], self._copy.state[pool]), (tier.weights[pool], tier.state[pool])
            differing = np.flatnonzero(_differ(own[0], runs[0]) | _differ(own[1], runs[1]))
            slots = np.setdiff1d(np.union1d(differing, _absent(self._store, pool)), self._absent[pool])
            weights, state = (part.cpu()[torch.from_numpy(slots)] for part in own)
            parts.append({"slots": slots, "weights": as_array(weights), "state": state.numpy()})
        return {"pools": parts_by_number(parts)}

    def set_state(self, found: Saved) -> None:
        """Restore the copy beside a store that is restored already."""
        for pool, part in enumerate(found.parts("pools", len(self._rows))):
            own = self._copy.weights[pool], self._copy.state[pool]
            slots = part.array("slots", np.int64, ANY)
            places = torch.from_numpy(slots).to(own[0].device)
            for name, values in zip(("weights", "state"), own, strict=True):
                array = part.array(name, as_array(values[:0].cpu()).dtype, len(slots), values.shape[1])
                self._store.hot.launch(partial(values.index_copy_, 0, places, as_tensor(array.copy()).to(values.device)))
            self._absent[pool] = np.setdiff1d(self._absent[pool], slots)


def _absent(store: EmbeddingStore, pool: int) -> NDArray[np.int64]:
    rows = store.hot.tier.row_of_slot[pool]
    slots = np.flatnonzero(rows >= 0)
    return slots[store.hot.absent(pool, slots)]


def _slots_of_both(before: NDArray[np.int64], now: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the slots of rows that are hot now and were before, and the slots that they had before."""
    are, were = np.flatnonzero(now >= 0), np.flatnonzero(before >= 0)
    _, own_were, own_are = np.intersect1d(before[were], now[are], assume_unique=True, return_indices=True)
    return are[own_are], were[own_were]


def _put(values: Tensor, places: Tensor, others: Tensor, their_places: Tensor) -> None:
    values[places] = others[their_places]


def _differ(one: Tensor, other: Tensor) -> NDArray[np.bool_]:
    """Return which lines of two arrays differ in a bit."""
    lines = [as_array(part.cpu()).view(np.uint8).reshape(len(part), -1) for part in (one, other)]
    found: NDArray[np.bool_] = (lines[0] != lines[1]).any(axis=1)
    return found

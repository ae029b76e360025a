"""A store with a placement but without values: rows have tiers, slots and bytes.

The code that decides about placements (the reclassifier, the observer, the policies) works on it as on any other store, so it
decides here as in a run.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_rec.embedding.cold.memory import InMemory
from adaptive_rec.embedding.device import DeviceTier, FreeSlots, split_budget
from adaptive_rec.embedding.hot import Home, HotRows
from adaptive_rec.embedding.index import RowIndex
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.path.row_path import RowPath
from adaptive_rec.embedding.peers.peers import Peers
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.placement import RowSpace
from adaptive_rec.tracking.delta import MEASURES
from adaptive_rec.tracking.rules import RowMovement


class PlacementTier(DeviceTier):
    """A device tier with slots and their records, but without rows."""

    def __init__(self, capacities: list[int], monitored: bool) -> None:
        self.weights, self.state = [], []
        self.row_of_slot = [np.full(capacity, -1, dtype=np.int64) for capacity in capacities]
        self.free = [FreeSlots() for _ in capacities]
        self.stale = [np.zeros(capacity, dtype=np.bool_) for capacity in capacities]
        self.estimate = [np.zeros(capacity, dtype=np.float32) for capacity in capacities]
        self.movement = [np.full(capacity, np.inf, dtype=np.float32) for capacity in capacities]
        self.monitors: list[Any] = [NothingMeasured() for _ in capacities] if monitored else []


class NothingMeasured:
    """A monitor of rows without values."""

    def begin_window(self) -> None:
        """Do nothing, as nothing was measured."""


class PlacementRows(HotRows):
    """Hot rows without values: their moves are counted by the store, while nothing is copied."""

    def _make_tier(self, capacities: list[int]) -> DeviceTier:
        return PlacementTier(capacities, self.monitored)

    def up(self, pool: int, host_rows: NDArray[np.int64], slots: NDArray[np.int64], cold: Home) -> None:
        """Do nothing."""

    def leave(self, pool: int, host_rows: NDArray[np.int64], slots: NDArray[np.int64], cold: Home) -> None:
        """Do nothing."""

    def movement(self, pool: int) -> RowMovement:
        """Return that no row was ever measured, so that none is stale."""
        slots = self.tier.capacities[pool]
        return RowMovement.of(np.zeros((slots, MEASURES)), np.zeros(slots, dtype=np.int32))


class NoHome(InMemory):
    """A home without rows."""

    def __init__(self) -> None:
        """Allocate nothing."""

    def flush(self) -> None:
        """Do nothing."""


class NoPath(RowPath):
    """A path on which no row travels."""

    def gather(self, *_: Any) -> NoReturn:
        raise AssertionError("rows without values cannot be gathered")

    def apply(self, *_: Any) -> NoReturn:
        raise AssertionError("rows without values cannot be updated")

    def gather_beside(self, *_: Any) -> NoReturn:
        raise AssertionError("rows without values cannot be gathered")

    def update_beside(self, *_: Any) -> NoReturn:
        raise AssertionError("rows without values cannot be updated")


def placement_store(
    space: RowSpace, rule: RowRule, dtype: torch.dtype, budget_bytes: int, monitored: bool
) -> EmbeddingStore:
    """Return a store whose migrations change the placement and are counted in rows and bytes."""
    index, rules = RowIndex(space), [rule] * len(space.pools)
    hot, cold = PlacementRows(index, rules, dtype, torch.device("cpu"), monitored), NoHome()
    hot.replace(split_budget(space, hot.row_bytes(), budget_bytes))
    return EmbeddingStore(index, rules, 0, hot, cold, Peers(index, hot, NoPath(index, rules, hot, cold)))

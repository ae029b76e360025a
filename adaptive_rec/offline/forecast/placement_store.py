"""A store with a placement but without values: rows have tiers, slots and bytes.

The code that decides about placements (the reclassifier, the observer, the policies) works on it as on any other store, so it
decides here as in a run.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_rec.embedding.device import DeviceTier, FreeSlots, split_budget
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.records import Traffic
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.placement import COLD, Placement, RowSpace
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


class PlacementStore(EmbeddingStore):
    """A store whose migrations change the placement and are counted in rows and bytes, while nothing is copied."""

    def __init__(self, space: RowSpace, rule: RowRule, dtype: torch.dtype, budget_bytes: int, monitored: bool) -> None:
        # The base's constructor is not called, as it allocates all tables.
        self.space, self.rule, self.dtype, self.monitored = space, rule, dtype, monitored
        self.rules = [rule] * len(space.pools)
        self.torch_device, self.seed, self.threads = torch.device("cpu"), 0, 1
        self.slot_of_row = np.full(space.rows, COLD, dtype=np.int32)
        self.placement = Placement(0, self.slot_of_row)
        self.traffic = Traffic()
        self.hot_rows_T = np.zeros(len(space.tables), dtype=np.int64)
        self.device = self._device_tier(split_budget(space, self.row_bytes, budget_bytes))

    def _device_tier(self, capacities: list[int]) -> DeviceTier:
        return PlacementTier(capacities, self.monitored)

    def take_traffic(self) -> Traffic:
        """What was moved since the last call."""
        taken, self.traffic = self.traffic, Traffic()
        return taken

    def movement(self, pool: int) -> RowMovement:
        """Return that no row was ever measured, so that none is stale."""
        slots = self.device.capacities[pool]
        return RowMovement.of(np.zeros((slots, MEASURES)), np.zeros(slots, dtype=np.int32))

    def _bring_home(self, pool: int, slots: NDArray[np.int64], host_rows: NDArray[np.int64]) -> None:
        """Do nothing: the caller counts the rows."""

    def send_up(self, pool: int, host_rows: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        """Do nothing: the caller counts the rows."""

    def gather(self, *_: Any) -> NoReturn:
        raise AssertionError("rows without values cannot be gathered")

    def apply(self, *_: Any) -> NoReturn:
        raise AssertionError("rows without values cannot be updated")

    def _where(self, *_: Any) -> NoReturn:
        raise AssertionError("rows without values cannot be saved")

    def _read_slots(self, *_: Any) -> NoReturn:
        raise AssertionError("rows without values cannot be read")

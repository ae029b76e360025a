"""The device tier: hot rows, with one tensor of rows and one of optimizer state for each pool."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_rec.embedding.host import Arrays
from adaptive_rec.embedding.optimizer import RowRule, rules_of_pools
from adaptive_rec.embedding.row_types import as_array, as_tensor
from adaptive_rec.kernels.aligned import zeros
from adaptive_rec.placement import RowSpace
from adaptive_rec.tracking.delta import UpdateDeltaMonitor

SLOT_RECORD_BYTES = 8 + 1 + 4 + 4
"""Host memory of a slot: its row's number, class, estimate and movement."""


class FreeSlots:
    """The free slots of a pool: gaps between filled ones, and all slots from an end on. They are known without a search, as a
    pool may have millions of slots."""

    def __init__(self) -> None:
        self.gaps = np.empty(0, dtype=np.int64)
        """In rising order."""
        self.end = 0
        """The slot before it is filled."""

    def find(self, row_of_slot: NDArray[np.int64]) -> None:
        """Find the free slots after others were filled."""
        filled = np.flatnonzero(row_of_slot >= 0)
        self.end = int(filled[-1]) + 1 if len(filled) else 0
        self.gaps = np.flatnonzero(row_of_slot[: self.end] < 0)

    def lowest(self, count: int) -> NDArray[np.int64]:
        """Return the lowest free slots, so many, in rising order."""
        gaps = self.gaps[:count]
        return np.concatenate([gaps, np.arange(self.end, self.end + count - len(gaps))])

    def take(self, count: int) -> None:
        """Take the slots that `lowest` returns."""
        self.end += max(0, count - len(self.gaps))
        self.gaps = self.gaps[count:]

    def give_back(self, slots: NDArray[np.int64]) -> None:
        gaps = np.sort(np.concatenate([self.gaps, slots]))
        # The last ones are no gaps if nothing is filled behind them: these are as far from the end as from the list's end.
        kept = int(np.searchsorted(gaps - np.arange(len(gaps)), self.end - len(gaps)))
        self.gaps, self.end = gaps[:kept], self.end - (len(gaps) - kept)


class TierRows:
    """Values of the slots of every pool. On the CPU, kernels use NumPy views of the tensors."""

    def __init__(self, weights: list[torch.Tensor], state: list[torch.Tensor]) -> None:
        """`weights` (slots, D) and optimizer `state` of each pool."""
        self.weights, self.state = weights, state

    def arrays(self, pool: int) -> Arrays:
        """Return a pool's rows and optimizer state, on the CPU only."""
        return as_array(self.weights[pool]), self.state[pool].numpy()


class DeviceTier(TierRows):
    """The slots of every pool, their values and which rows they hold."""

    def __init__(
        self,
        space: RowSpace,
        rule: RowRule | Sequence[RowRule],
        dtype: torch.dtype,
        device: torch.device,
        capacities: list[int],
        monitored: bool,
    ) -> None:
        rules = rules_of_pools(rule, len(space.pools))
        weights = [
            _zeros((capacity, pool.dim), rules[0].weight_type(dtype), device)
            for pool, capacity in zip(space.pools, capacities, strict=True)
        ]
        state = [
            _zeros((capacity, own.state_width(pool.dim)), dtype, device)
            for own, pool, capacity in zip(rules, space.pools, capacities, strict=True)
        ]
        super().__init__(weights, state)
        self.row_of_slot: list[NDArray[np.int64]] = [np.full(capacity, -1, dtype=np.int64) for capacity in capacities]
        """Joint row of each slot, -1 where the slot is free. Only the methods below change it."""
        self.free = [FreeSlots() for _ in capacities]
        self.stale: list[NDArray[np.bool_]] = [np.zeros(capacity, dtype=np.bool_) for capacity in capacities]
        """Whether each slot's row is stale."""
        self.estimate = [np.zeros(capacity, dtype=np.float32) for capacity in capacities]
        """Popularity of each slot's row at the last window's end; for display, not for decisions."""
        self.movement = [np.full(capacity, np.inf, dtype=np.float32) for capacity in capacities]
        """Movement of each slot's row when it was last judged, inf where it is not known; likewise."""
        self.monitors = [
            UpdateDeltaMonitor(capacity, pool.dim, device)
            for pool, capacity in zip(space.pools, capacities, strict=True)
            if monitored
        ]

    @property
    def capacities(self) -> list[int]:
        return [len(rows) for rows in self.row_of_slot]

    def free_slots(self, pool: int, count: int) -> NDArray[np.int64]:
        """Return the lowest free slots of a pool, so many."""
        slots = self.free[pool].lowest(count)
        fits = not count or slots[-1] < self.capacities[pool]
        assert fits, "a migration may not promote more rows than there are free slots"
        return slots

    def fill(self, pool: int, rows: NDArray[np.int64]) -> None:
        """Give rows of a pool the `free_slots`."""
        slots = self.free_slots(pool, len(rows))
        self.free[pool].take(len(rows))
        self.row_of_slot[pool][slots] = rows
        self.stale[pool][slots] = False
        self.movement[pool][slots] = np.inf

    def clear(self, pool: int, slots: NDArray[np.int64]) -> None:
        """Free some slots of a pool."""
        self.row_of_slot[pool][slots] = -1
        self.stale[pool][slots] = False
        self.free[pool].give_back(slots)

    def restore(self, pool: int, row_of_slot: NDArray[np.int64]) -> None:
        """Restore the rows of all slots of a pool."""
        self.row_of_slot[pool][:] = row_of_slot
        self.free[pool].find(row_of_slot)

    def hot_rows_of(self, pool: int) -> NDArray[np.int64]:
        """Return the hot rows of a pool, in the order of their slots. The array is valid until a row moves, and not to be
        changed: millions of rows are not copied where there are no gaps between them."""
        rows = self.row_of_slot[pool][: self.free[pool].end]
        return rows[rows >= 0] if len(self.free[pool].gaps) else rows

    def set_estimates(self, pool: int, estimates: NDArray[np.float64]) -> None:
        """Set the popularity that is shown with the rows of `hot_rows_of`."""
        shown, free = self.estimate[pool], self.free[pool]
        if len(free.gaps):
            shown[self.row_of_slot[pool] >= 0] = estimates
        else:
            shown[: free.end] = estimates

    @property
    def hot_rows(self) -> int:
        return sum(free.end - len(free.gaps) for free in self.free)

    @property
    def stale_rows(self) -> int:
        return sum(int(np.count_nonzero(stale)) for stale in self.stale)


def _zeros(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return as_tensor(zeros(shape, as_array(torch.empty(0, dtype=dtype)).dtype))


def row_bytes(space: RowSpace, rule: RowRule | Sequence[RowRule], itemsize: int, monitored: bool) -> list[int]:
    """Return the device bytes of one hot row of each pool: weights, optimizer state and, if `monitored`, movement record."""
    record = UpdateDeltaMonitor.bytes_per_slot
    return [
        own.bytes_per_row(pool.dim, itemsize) + (record(pool.dim) if monitored else 0)
        for own, pool in zip(rules_of_pools(rule, len(space.pools)), space.pools, strict=True)
    ]


def all_rows_bytes(space: RowSpace, bytes_per_row: list[int]) -> int:
    """Return the device bytes of all rows."""
    return sum(pool.rows * size for pool, size in zip(space.pools, bytes_per_row, strict=True))


def split_budget(space: RowSpace, bytes_per_row: list[int], budget_bytes: int) -> list[int]:
    """Share a budget among the pools by their part of the lookups; a small pool's unused part goes to the others.

    Returns the slots of each pool, within the budget.
    """
    capacities = [0] * len(space.pools)
    left = budget_bytes
    # The pool that needs least of its part comes first, so that the others get its remainder.
    shares = [len(pool.features) * size for pool, size in zip(space.pools, bytes_per_row, strict=True)]
    order = sorted(range(len(space.pools)), key=lambda p: space.pools[p].rows * bytes_per_row[p] / max(shares[p], 1))
    for place, p in enumerate(order):
        total_share = sum(shares[q] for q in order[place:])
        part = left * shares[p] // total_share if total_share else 0
        capacities[p] = min(space.pools[p].rows, part // bytes_per_row[p])
        left -= capacities[p] * bytes_per_row[p]
    return capacities


def least_budget(space: RowSpace, bytes_per_row: list[int]) -> int:
    """Return the least budget of which `split_budget` gives some pool a slot."""
    low, high = 0, all_rows_bytes(space, bytes_per_row)  # too little, and enough
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if any(split_budget(space, bytes_per_row, middle)) else (middle, high)
    return high

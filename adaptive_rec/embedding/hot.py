"""Hot rows, between two steps: how they are moved, measured and saved. On a CPU they are in host memory too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.embedding.device import DeviceTier, row_bytes
from adaptive_rec.embedding.host import COPIED_ROWS, Arrays, room_like
from adaptive_rec.embedding.index import RowIndex
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.records import Fetched
from adaptive_rec.system.host_memory import available_bytes
from adaptive_rec.tracking.rules import RowMovement

if TYPE_CHECKING:
    from adaptive_rec.embedding.snapshot import Tiers


class Home(Protocol):
    """Where rows that are not hot are: what moves need of a `ColdHome`."""

    @property
    def keeps_unchanged(self) -> bool: ...

    def read(self, pool: int, rows_C: NDArray[np.int64], packed: Arrays) -> int: ...

    def read_near(
        self, pool: int, rows_C: NDArray[np.int64], line_C: NDArray[np.int64], arrays: Arrays
    ) -> NDArray[np.bool_]: ...

    def write(
        self, pool: int, rows_C: NDArray[np.int64], packed: Arrays, changed_C: NDArray[np.bool_] | None
    ) -> None: ...

    def keep(self, pool: int, rows_C: NDArray[np.int64], slots_C: NDArray[np.int64]) -> None: ...

    def leave(self, pool: int, rows_C: NDArray[np.int64]) -> None: ...


class HotRows:
    """The hot rows of a CPU run, which kernels read and write in place. `staged/device_hot.py` has those of a device."""

    def __init__(
        self, index: RowIndex, rules: Sequence[RowRule], dtype: torch.dtype, device: torch.device, monitored: bool
    ) -> None:  # fmt: skip
        """`monitored`: whether the tier records how far its rows move."""
        self._index, self._rules = index, rules
        self.dtype, self.device = dtype, device
        self.monitored = monitored
        self.tier = self._make_tier([0] * len(index.space.pools))

    # Slots -----------------------------------------------------------------------------------------------------------

    def row_bytes(self, monitored: bool | None = None) -> list[int]:
        """Return the device bytes of one hot row of each pool, with or without a record of its movement (None: as it is now)."""
        recorded = self.monitored if monitored is None else monitored
        return row_bytes(self._index.space, self._rules, self.dtype.itemsize, recorded)

    @property
    def bytes(self) -> int:
        """Device memory of the tier, free slots included."""
        return sum(size * slots for size, slots in zip(self.row_bytes(), self.tier.capacities, strict=True))

    def replace(self, capacities: list[int], monitored: bool | None = None) -> None:
        """Replace the tier by an empty one. The old one's memory is freed first."""
        self.monitored = self.monitored if monitored is None else monitored
        self.tier = self._make_tier([0] * len(self._index.space.pools))
        self.trim()
        self.tier = self._make_tier(capacities)

    def _make_tier(self, capacities: list[int]) -> DeviceTier:
        return DeviceTier(self._index.space, self._rules, self.dtype, self.device, capacities, self.monitored)

    def trim(self) -> None:
        """Return unused memory to the device."""

    def free_bytes(self) -> int:
        """Return the memory that a copy of the tier may take."""
        return available_bytes()

    # Moves -----------------------------------------------------------------------------------------------------------

    def up(self, pool: int, host_rows: NDArray[np.int64], slots: NDArray[np.int64], cold: Home) -> None:
        """Copy rows, by their numbers within the pool, and their optimizer state from their home into slots."""
        cold.keep(pool, host_rows, slots)
        tier = self.tier.arrays(pool)
        for first in range(0, len(slots), COPIED_ROWS):
            some = slice(first, first + COPIED_ROWS)
            packed = room_like(tier, len(slots[some]))
            cold.read(pool, host_rows[some], packed)
            for hot, values in zip(tier, packed, strict=True):
                hot[slots[some]] = values

    def down(self, pool: int, slots: NDArray[np.int64], take: Callable[[slice, Arrays], None]) -> None:
        """Copy slots down. `take` is given some of them and their weights and optimizer state, valid until it returns."""
        for first in range(0, len(slots), COPIED_ROWS):
            some = slice(first, first + COPIED_ROWS)
            take(some, self.read(pool, slots[some]))

    def leave(self, pool: int, host_rows: NDArray[np.int64], slots: NDArray[np.int64], cold: Home) -> None:
        """Copy rows that leave their slots to their home, where it does not have their values, and forget how they moved."""
        rows = self._index.joint_rows(pool, host_rows)
        self._flag_changed_in(pool, slots, rows)
        changed_C = self._index.changed_R[rows]
        chosen = self._with_values(pool, slots)
        if cold.keeps_unchanged:
            chosen = changed_C if chosen is None else chosen & changed_C
        if chosen is not None:
            slots_down, host_rows, changed_C = slots[chosen], host_rows[chosen], changed_C[chosen]
        else:
            slots_down = slots
        self.down(
            pool, slots_down, lambda some, packed: cold.write(pool, host_rows[some], packed, changed_C[some])
        )
        self._forget(pool, slots, rows)

    def read(self, pool: int, slots: NDArray[np.int64]) -> Arrays:
        """Return rows and optimizer state of some slots."""
        weights, state = self.tier.arrays(pool)
        return weights[slots], state[slots]

    def _with_values(self, pool: int, slots: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """Return which slots have the values of their rows; None: all."""
        return None

    def _flag_changed_in(self, pool: int, slots: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        """Flag rows that leave slots as changed where only the device knows it."""

    def _forget(self, pool: int, slots: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        if self.monitored:
            self.tier.monitors[pool].forget(torch.from_numpy(slots))

    def absent(self, pool: int, slot_N: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return which rows, by their slots (negative for cold ones), have their values at their home alone."""
        cold: NDArray[np.bool_] = slot_N < 0
        return cold

    def check_range(self) -> None:
        """Raise TrainingError where a row has become too large for half precision, where only the device knows it."""

    # Saving ----------------------------------------------------------------------------------------------------------

    def flag_changed(self) -> None:
        """Flag all hot rows in `changed_R` that were updated, where only the device knows it."""

    def copy_to(self, cold: Home, pending_R: NDArray[np.bool_]) -> None:
        """Copy rows that are to be saved to where `tiers` finds them."""

    def tiers(self, pool: int, cold: Arrays) -> Tiers:
        """Return where unchanged rows of a pool can be read now. `cold`: the rows in host memory."""
        return self._index.slots_of_pool(pool), *self.tier.arrays(pool), *cold

    # Figures ---------------------------------------------------------------------------------------------------------

    def launch(self, work: Callable[[], object]) -> None:
        """Queue work on the device, in the order of these calls."""
        work()

    def fetch(self, tensor: Tensor) -> NDArray[Any]:
        """Return a tensor of the device, after all work launched so far."""
        return self.fetch_later(tensor).array()

    def fetch_later(self, tensor: Tensor) -> Fetched:
        """Fetch in the background; work launched later does not change the result."""
        return Fetched(tensor.numpy().copy())

    def movement(self, pool: int) -> RowMovement:
        """Return how the row of each slot of a pool moved."""
        return RowMovement.of(self.measure(pool), self.touches(pool))

    def measure(self, pool: int) -> NDArray[Any]:
        """Return the measures of each slot by a pool's monitor."""
        measured: NDArray[Any] = self.tier.monitors[pool].measure(self.tier.weights[pool]).numpy()
        return measured

    def touches(self, pool: int) -> NDArray[np.int32]:
        """Return the number of probe steps of the window that updated each slot's row."""
        found: NDArray[np.int32] = self.tier.monitors[pool].touches_H.numpy()
        return found

    def movement_record(self, pool: int) -> NDArray[Any]:
        """Return the present record of a pool's monitor."""
        return self.fetch(self.tier.monitors[pool].record_HR)

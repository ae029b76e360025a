"""Hot rows on a device, between two steps: rows that move, are measured, saved or exported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.embedding.device import DeviceTier
from adaptive_rec.embedding.host import Arrays, ColdTier, room_like
from adaptive_rec.embedding.hot import Home, HotRows
from adaptive_rec.embedding.index import RowIndex
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.records import Fetched
from adaptive_rec.embedding.row_types import FP16_LIMIT
from adaptive_rec.embedding.snapshot import Tiers
from adaptive_rec.embedding.staged.moves import SlotMoves
from adaptive_rec.embedding.staged.streams import Streams
from adaptive_rec.errors import TrainingError
from adaptive_rec.tracking.delta import MEASURES

HEADROOM_BYTES = 1 << 30
"""Device memory that hot rows must leave free for staging, the dense part and its graphs, and CUDA's libraries."""


class DeviceHotRows(HotRows):
    """The hot rows of a device run, which copies reach (`moves.py`)."""

    def __init__(
        self, index: RowIndex, rules: Sequence[RowRule], dtype: torch.dtype, streams: Streams, monitored: bool
    ) -> None:  # fmt: skip
        self._streams = streams
        self.moves = SlotMoves(index.space, rules[0], dtype, lambda: self.tier, streams)
        self.overflow_P = torch.zeros(len(index.space.pools), dtype=torch.int32, device=streams.device)
        """Whether a row of each pool was too large for half precision; set by updates, which nobody waits for."""
        self._types = ColdTier(index.space, rules, torch.empty(0, dtype=dtype).numpy().dtype, [0] * len(index.space.pools))
        super().__init__(index, rules, dtype, streams.device, monitored)

    def _make_tier(self, capacities: list[int]) -> DeviceTier:
        tier = super()._make_tier(capacities)
        self.changed_H = [torch.zeros(capacity, dtype=torch.bool, device=self.device) for capacity in capacities]
        """Flags of hot rows that were updated since `flag_changed`, or since they came; set by the update."""
        if any(capacities):
            self.moves.reserve()  # rows must be able to leave when the device's memory is full
            if (free := self._streams.free_bytes()) < HEADROOM_BYTES:
                raise torch.OutOfMemoryError(f"hot rows would leave {free} bytes of the device's memory to work with")
        return tier

    def trim(self) -> None:
        self._streams.trim()

    def free_bytes(self) -> int:
        return self._streams.free_bytes() - HEADROOM_BYTES

    # Moves -----------------------------------------------------------------------------------------------------------

    def up(self, pool: int, host_rows: NDArray[np.int64], slots: NDArray[np.int64], cold: Home) -> None:
        self.moves.up(pool, cold, host_rows, slots)
        cold.leave(pool, host_rows)

    def down(self, pool: int, slots: NDArray[np.int64], take: Callable[[slice, Arrays], None]) -> None:
        self.moves.down(pool, slots, take)

    def read(self, pool: int, slots: NDArray[np.int64]) -> Arrays:
        weights, state = room_like(self._types.arrays(pool), len(slots))

        def take(some: slice, packed: Arrays) -> None:
            weights[some], state[some] = packed

        self.down(pool, slots, take)
        return weights, state

    def _flag_changed_in(self, pool: int, slots: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        self._index.changed_R[rows[self.moves.take_flags(self.changed_H[pool], slots)]] = True

    def _forget(self, pool: int, slots: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        if self.monitored:
            self.moves.forget(pool, slots)

    def check_range(self) -> None:
        """Raise TrainingError where a row has become too large for half precision."""
        if self._rules[0].row_precision != "fp16":
            return
        space = self._index.space
        for pool in np.flatnonzero(self._copied(self.overflow_P)):
            spec = space.pools[pool]
            inside = range(spec.first_row, spec.end_row)
            names = [t.name for t, first in zip(space.tables, space.table_first_row, strict=True) if first in inside]
            raise TrainingError(
                f"rows of half precision must stay within {FP16_LIMIT}, one of table {' or '.join(names[:3])} "
                f"({len(names)} tables of dim {spec.dim}) no longer does; lower their learning rate (optimizer.embedding_lr) or "
                "take bf16 (run.row_precision=bf16)"
            )

    # Saving ----------------------------------------------------------------------------------------------------------

    def flag_changed(self) -> None:
        self.check_range()
        for pool, changed_H in enumerate(self.changed_H):
            rows = self.tier.row_of_slot[pool][self._copied(changed_H)]
            self._index.changed_R[rows[rows >= 0]] = True
            self._streams.launch(changed_H.zero_)

    def copy_to(self, cold: Home, pending_R: NDArray[np.bool_]) -> None:
        """Copy the hot rows to be saved to host memory, where they can be read while they stay hot."""
        for pool, spec in enumerate(self._index.space.pools):
            row_of_slot = self.tier.row_of_slot[pool]
            slots = np.flatnonzero(row_of_slot >= 0)
            slots = slots[pending_R[row_of_slot[slots]]]
            self._copy_out(cold, pool, slots, row_of_slot[slots] - spec.first_row)

    def _copy_out(self, cold: Home, pool: int, slots: NDArray[np.int64], host_rows: NDArray[np.int64]) -> None:
        """Copy hot rows, which stay hot, to their home."""
        self.down(pool, slots, lambda some, packed: cold.write(pool, host_rows[some], packed, None))

    def tiers(self, pool: int, cold: Arrays) -> Tiers:
        return np.empty(0, np.int32), *cold, *cold

    # Figures ---------------------------------------------------------------------------------------------------------

    def launch(self, work: Callable[[], object]) -> None:
        self._streams.launch(work)

    def fetch_later(self, tensor: Tensor) -> Fetched:
        return self.moves.fetch_later(tensor)

    def measure(self, pool: int) -> NDArray[Any]:
        monitor, weights, kernels = self.tier.monitors[pool], self.tier.weights[pool], self._streams.kernels

        def fill(span: slice, out_H4: Tensor) -> None:
            kernels.movement(monitor.record_HR[span], weights[span], out_H4)

        return self.moves.read((len(weights), MEASURES), self.dtype, fill)

    def touches(self, pool: int) -> NDArray[np.int32]:
        return self._copied(self.tier.monitors[pool].touches_H)

    def movement_record(self, pool: int) -> NDArray[Any]:
        return self._copied(self.tier.monitors[pool].record_HR)

    def _copied(self, tensor: Tensor) -> NDArray[Any]:
        return self.moves.read(tuple(tensor.shape), tensor.dtype, lambda span, out: out.copy_(tensor[span]))

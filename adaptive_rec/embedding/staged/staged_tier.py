"""Both tiers of a device run between two steps: rows that move, hot rows that are measured, saved or exported."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.embedding.device import DeviceTier
from adaptive_rec.embedding.host import Arrays
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.records import Fetched
from adaptive_rec.embedding.row_types import FP16_LIMIT
from adaptive_rec.embedding.snapshot import Tiers
from adaptive_rec.embedding.staged.host_rows import HostRows, OfParts, RowCopier, RowsInMemory
from adaptive_rec.embedding.staged.moves import SlotMoves
from adaptive_rec.embedding.staged.streams import Streams
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import TrainingError
from adaptive_rec.kernels import staging
from adaptive_rec.kernels.jit import usable_threads
from adaptive_rec.placement import Migration, RowSpace
from adaptive_rec.system.crew import Crew
from adaptive_rec.tracking.delta import MEASURES

HEADROOM_BYTES = 1 << 30
"""Device memory that hot rows must leave free for staging, the dense part and its graphs, and CUDA's libraries."""


class StagedTier(EmbeddingStore):
    """The part of a `StagedStore` that works between two steps."""

    def __init__(
        self,
        space: RowSpace,
        rule: RowRule,
        seed: int,
        dtype: torch.dtype,
        streams: Streams,
        budget_bytes: int,
        monitored: bool,
        copy_threads: int,
        drawn: bool,
    ) -> None:
        self.streams = streams
        self._crew = Crew(copy_threads)
        self._copier = RowCopier(self._crew)
        self._moves = SlotMoves(self, streams)
        self._overflow_P = torch.zeros(len(space.pools), dtype=torch.int32, device=streams.device)
        """Whether a row of each pool was too large for half precision; set by updates, which nobody waits for."""
        super().__init__(space, rule, seed, dtype, streams.device, budget_bytes, monitored, drawn)
        self.threads = usable_threads(copy_threads)
        self.counting_threads = copy_threads
        self._rows = self._host_rows()

    def _host_rows(self) -> HostRows:
        """Return where cold rows are read and written."""
        return RowsInMemory(self.host, self._copier)

    def _flagging(self, pool: int, host_rows_C: NDArray[np.int64], changed_C: NDArray[np.bool_] | None) -> OfParts:
        """Return the work that flags parts of a pool's rows as changed, those of `changed_C` or all of them (None)."""
        return self._flagging_from(self.space.pools[pool].first_row, host_rows_C, changed_C)

    def _flagging_from(self, first_row: int, rows_C: NDArray[np.int64], changed_C: NDArray[np.bool_] | None) -> OfParts:
        """The same for rows that are counted from `first_row` on."""

        def flag(first: int, end: int) -> None:
            chosen = None if changed_C is None else changed_C[first:end]
            staging.flag_rows(rows_C[first:end], chosen, first_row, self.changed_R)

        return flag

    def migrate(self, migration: Migration) -> None:
        self._check_range()
        super().migrate(migration)

    def _check_range(self) -> None:
        """Raise TrainingError where a row has become too large for half precision."""
        if self.rule.row_precision != "fp16":
            return
        for pool in np.flatnonzero(self._copied(self._overflow_P)):
            spec = self.space.pools[pool]
            inside = range(spec.first_row, spec.end_row)
            names = [t.name for t, first in zip(self.space.tables, self.space.table_first_row, strict=True) if first in inside]
            raise TrainingError(
                f"rows of half precision must stay within {FP16_LIMIT}, one of table {' or '.join(names[:3])} "
                f"({len(names)} tables of dim {spec.dim}) no longer does; lower their learning rate (optimizer.embedding_lr) or "
                "take bf16 (run.row_precision=bf16)"
            )

    def _collect_changed(self) -> None:
        self._check_range()
        for pool, changed_H in enumerate(self.changed_H):
            rows = self.device.row_of_slot[pool][self._copied(changed_H)]
            self.changed_R[rows[rows >= 0]] = True
            self.streams.launch(changed_H.zero_)

    def launch(self, work: Any) -> None:
        self.streams.launch(work)

    def fetch_later(self, tensor: Tensor) -> Fetched:
        return self._moves.fetch_later(tensor)

    def measure(self, pool: int) -> NDArray[Any]:
        monitor, weights, kernels = self.device.monitors[pool], self.device.weights[pool], self.streams.kernels

        def fill(span: slice, out_H5: Tensor) -> None:
            kernels.movement(monitor.record_HR[span], weights[span], out_H5)

        return self._moves.read((len(weights), MEASURES), self.dtype, fill)

    def touches(self, pool: int) -> NDArray[np.int32]:
        return self._copied(self.device.monitors[pool].touches_H)

    def movement_record(self, pool: int) -> NDArray[Any]:
        return self._copied(self.device.monitors[pool].record_HR)

    def _copied(self, tensor: Tensor) -> NDArray[Any]:
        return self._moves.read(tuple(tensor.shape), tensor.dtype, lambda span, out: out.copy_(tensor[span]))

    def _device_tier(self, capacities: list[int]) -> DeviceTier:
        tier = super()._device_tier(capacities)
        self.changed_H = [torch.zeros(capacity, dtype=torch.bool, device=self.torch_device) for capacity in capacities]
        """Flags of hot rows that were updated since `_collect_changed`, or since they came; set by the update."""
        if any(capacities):
            self._moves.reserve()  # rows must be able to leave when the device's memory is full
            if (free := self.streams.free_bytes()) < HEADROOM_BYTES:
                raise torch.OutOfMemoryError(f"hot rows would leave {free} bytes of the device's memory to work with")
        return tier

    def _bring_home(self, pool: int, slots: NDArray[np.int64], host_rows: NDArray[np.int64]) -> None:
        rows = host_rows + self.space.pools[pool].first_row
        self.changed_R[rows[self._moves.take_flags(self.changed_H[pool], slots)]] = True
        changed_C = self.changed_R[rows]
        self._moves.down(
            pool, slots, lambda some, packed: self._rows.write(pool, host_rows[some], packed, changed_C[some])
        )
        if self.monitored:
            self._moves.forget(pool, slots)

    def send_up(self, pool: int, host_rows: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        self._moves.up(pool, self._rows, host_rows, slots)

    def _make_readable(self, pending_R: NDArray[np.bool_]) -> None:
        """Copy the hot rows to be saved to the host tier, where they can be read while they stay hot."""
        for pool, spec in enumerate(self.space.pools):
            row_of_slot = self.device.row_of_slot[pool]
            hot = np.flatnonzero(row_of_slot >= 0)
            slots = hot[pending_R[row_of_slot[hot]]]
            self._copy_down(pool, slots, self.host.arrays(pool), row_of_slot[slots] - spec.first_row)

    def _copy_down(
        self, pool: int, slots: NDArray[np.int64], targets: Arrays, target_rows: NDArray[np.int64]
    ) -> None:
        """Copy slots into rows of two arrays, weights and optimizer state."""
        self._moves.down(pool, slots, lambda some, packed: self._copier.scatter(targets, target_rows[some], packed))

    def _where(self, pool: int) -> Tiers:
        return np.empty(0, np.int32), *self.host.arrays(pool), *self.host.arrays(pool)

    def _read_slots(self, pool: int, slots: NDArray[np.int64]) -> Arrays:
        weights, state = (np.empty((len(slots), kept.shape[1]), kept.dtype) for kept in self.host.arrays(pool))
        self._copy_down(pool, slots, (weights, state), np.arange(len(slots)))
        return weights, state

"""Work of a step on the device: pool a staged batch's rows, take rows over from earlier batches, update.

These calls only queue the work, after what it depends on.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.device import DeviceTier
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.records import MicroBatch, RowUpdate
from adaptive_rec.embedding.staged.in_flight import Staged
from adaptive_rec.embedding.staged.packing import Parcel, send
from adaptive_rec.embedding.staged.ring import StagingRing
from adaptive_rec.embedding.staged.streams import Streams
from adaptive_rec.errors import MemoryPlanError, first_line, is_out_of_memory
from adaptive_rec.placement import RowSpace

NOTES = 12
"""Slots for notes. A step sends up to three, so the host is at most about four steps ahead, even where no row travels."""

TOO_SMALL = "the device's memory must hold an update; lower knobs.hot_budget_bytes or run.batch_size"


class DeviceStep:
    """Queues gather, forward and update. It makes views of slots at once: when the work runs, a slot may be another batch's."""

    def __init__(self, space: RowSpace, rule: RowRule, streams: Streams) -> None:
        self._space = space
        self._rule = rule
        self._streams = streams
        self.notes = StagingRing(streams, urgent=True, at_least=NOTES)
        """Slots for the small arrays of a step."""
        self._column_F = torch.tensor(space.column_of_feature, dtype=torch.int32, device=streams.device)
        self._mean_F = torch.tensor(space.mean_F, device=streams.device)
        self._features = [torch.tensor(pool.features, dtype=torch.int32, device=streams.device) for pool in space.pools]

    def _send(self, arrays: list[NDArray[Any]]) -> Parcel:
        parcel = send(self.notes, arrays)
        self._streams.compute_waits(parcel.here)
        return parcel

    def gather(
        self,
        staged: Staged,
        tier: DeviceTier,
        samples_S: NDArray[np.int64],
        scale_S: NDArray[np.floating],
        micro: MicroBatch,
    ) -> int:
        """Fill a micro-batch; lines after the samples are padding, with zero vectors and scale 0. Returns the bytes sent."""
        padding = len(micro.labels_S) - len(samples_S)
        # Padding takes the dense features of sample 0: finite numbers, whose loss does not count.
        numbers = [np.pad(samples_S, (0, padding), constant_values=fill).astype(np.int32) for fill in (-1, 0)]
        parcel = self._send([*numbers, np.pad(scale_S, (0, padding))])
        samples, lines, scale = parcel.arrays
        kernels, features = self._streams.kernels, len(self._space.features)
        dense_BX, labels_B = staged.on_device(staged.dense_BX), staged.on_device(staged.labels_B)
        where = [staged.on_device(part) for part in (staged.offsets, staged.inverse_N, staged.source_U)]
        cold = [staged.on_device(parts.weights_CD) for parts in staged.pools]
        pools = list(zip(self._features, tier.weights, cold, micro.pooled, strict=True))

        def fill() -> None:
            torch.index_select(dense_BX, 0, lines, out=micro.dense_SX)
            torch.index_select(labels_B, 0, lines, out=micro.labels_S)
            micro.scale_S.copy_(scale)
            for of_pool, hot_HD, cold_CD, pooled_STD in pools:
                kernels.gather_pooled(samples, of_pool, features, *where, self._mean_F, hot_HD, cold_CD, pooled_STD)

        self._streams.launch(fill)
        parcel.slot.release(self._streams.compute_event())
        return parcel.nbytes

    def take_rows_over(self, staged: Staged) -> None:
        """Copy the rows that earlier batches hold, then release their slots."""
        copies = []
        for one in staged.forwards:
            mine, theirs = staged.pools[one.pool], one.origin.pools[one.pool]
            from_C, to_C = staged.on_device(one.from_C), staged.on_device(one.to_C)
            for source, target in zip(theirs.rows, mine.rows, strict=True):
                copies.append((one.origin.on_device(source), from_C, staged.on_device(target), to_C))

        def forward() -> None:
            for copy in copies:
                self._streams.kernels.copy_rows(*copy)

        if copies:
            self._streams.launch(forward)
            staged.release_forwards(self._streams.compute_event())

    def update(
        self,
        work: ClassifiedBatch,
        staged: Staged,
        tier: DeviceTier,
        update: RowUpdate,
        active_U: NDArray[np.bool_],
        monitored: bool,
    ) -> int:
        """Update every active distinct row once, hot rows in the tier and cold ones in the slot. Returns the bytes sent."""
        rule = self._rule
        correction = math.sqrt(1 - rule.beta2**update.step) / (1 - rule.beta1**update.step)
        hyper = np.array([update.lr, rule.eps, rule.beta1, rule.beta2, correction], dtype=np.float64)
        parcel = self._send([update.position_B.astype(np.int32), active_U, hyper])
        # Memory is taken first: if the device has too little, no row has been updated yet.
        partial_PD = [
            gradients.new_empty((parts.piece_P1.shape[0] - 1, gradients.shape[2]))
            for gradients, parts in zip(update.gradients, staged.pools, strict=True)
        ]
        try:
            for pool, gradients in enumerate(update.gradients):
                monitor = tier.monitors[pool] if monitored else None
                record = (None, None) if monitor is None else (monitor.record_HR, monitor.touches_H)
                hot = [tier.weights[pool], tier.state[pool], *record]
                both = [gradients, partial_PD[pool]]
                self._update_pool(staged, pool, work.pool_range(pool), both, parcel.arrays, hot)
        except RuntimeError as error:  # some rows may be updated by now
            if is_out_of_memory(error):
                raise MemoryPlanError(f"{TOO_SMALL}: {first_line(error)}") from error
            raise
        parcel.slot.release(self._streams.compute_event())
        return parcel.nbytes

    def _update_pool(
        self, staged: Staged, pool: int, span: slice, gradients: list[Tensor], sent: list[Tensor], hot: list[Any]
    ) -> None:
        parts, on_device, kernels = staged.pools[pool], staged.on_device, self._streams.kernels
        position_B, active_U, hyper_5 = sent
        bags = [on_device(parts.piece_P1), on_device(staged.bag_N)]
        of_bags = [len(self._space.features), on_device(staged.offsets), self._column_F, self._mean_F, position_B]
        piece_U1, rows = on_device(parts.piece_U1), [on_device(staged.source_U)[span], active_U[span]]
        cold = [on_device(part) for part in parts.rows]

        def step() -> None:
            kernels.sum_pieces(*bags, *of_bags, *gradients)
            kernels.apply_rows(self._rule.code, hyper_5, piece_U1, gradients[1], *rows, *hot[:2], *cold, *hot[2:])

        self._streams.launch(step)

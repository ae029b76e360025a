"""Work of a step on the device: pool a staged batch's rows, take rows over from earlier batches, update.

These calls only queue the work, after what it depends on.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.device import DeviceTier
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.records import MicroBatch, RowUpdate
from adaptive_rec.embedding.staged.device_bags import BatchOnDevice, DeviceBags
from adaptive_rec.embedding.staged.in_flight import Staged
from adaptive_rec.embedding.staged.streams import Streams
from adaptive_rec.errors import MemoryPlanError, first_line, is_out_of_memory
from adaptive_rec.placement import RowSpace

TOO_SMALL = "the device's memory must hold an update; lower knobs.hot_budget_bytes or run.batch_size"


class DeviceStep(DeviceBags):
    """Queues gather, forward and update."""

    def __init__(self, space: RowSpace, rule: RowRule, streams: Streams) -> None:
        super().__init__(space, streams)
        self._rule = rule

    def gather(
        self,
        staged: Staged,
        tier: DeviceTier,
        samples_S: NDArray[np.int64],
        scale_S: NDArray[np.floating],
        micro: MicroBatch,
    ) -> int:
        """Fill a micro-batch. Returns the bytes sent."""
        return self._fill(self._batch(staged), self._rows(staged, tier), samples_S, scale_S, micro)

    def pool_bags(self, staged: Staged, tier: DeviceTier, pool: int, samples: Tensor, pooled_STD: Tensor) -> None:
        """Pool the bags of some samples in one pool."""
        batch, rows = self._batch(staged), self._rows(staged, tier)[pool]
        self._streams.launch(lambda: self._pool(pool, batch, rows, samples, pooled_STD))

    def _batch(self, staged: Staged) -> BatchOnDevice:
        at = staged.on_device
        inputs = at(staged.dense_BX), at(staged.labels_B)
        return BatchOnDevice(*inputs, at(staged.offsets), at(staged.inverse_N), at(staged.source_U), self._mean_F)

    def _rows(self, staged: Staged, tier: DeviceTier) -> list[tuple[Tensor, Tensor]]:
        cold = [staged.on_device(parts.weights_CD) for parts in staged.pools]
        return list(zip(tier.weights, cold, strict=True))

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

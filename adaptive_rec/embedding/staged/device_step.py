"""Work of a step on the device: pool a staged batch's rows, take rows over from earlier batches, update.

These calls only queue the work, after what it depends on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.embedding.device import DeviceTier, TierRows
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.records import MicroBatch, RowUpdate
from adaptive_rec.embedding.staged.device_bags import DeviceBags
from adaptive_rec.embedding.staged.in_flight import PoolParts, Staged
from adaptive_rec.embedding.staged.streams import Streams
from adaptive_rec.errors import MemoryPlanError, first_line, is_out_of_memory
from adaptive_rec.kernels.rows16 import step_dice
from adaptive_rec.placement import RowSpace

TOO_SMALL = "the device's memory must hold an update; lower knobs.hot_budget_bytes or run.batch_size"


class DeviceStep(DeviceBags):
    """Queues gather, forward and update."""

    def __init__(self, space: RowSpace, rule: RowRule, seed: int, streams: Streams, overflow_P: Tensor) -> None:
        """`seed`: of the dice that round rows of 16 bits. Updates set `overflow_P` (int32) for pools with a row that is too large
        for half precision."""
        super().__init__(space, streams)
        self._rule, self._seed = rule, seed
        self._overflow = overflow_P.split(1) if rule.row_precision == "fp16" else [None] * len(space.pools)
        self._active = torch.ones(0, dtype=torch.bool, device=streams.device)
        self._partial: dict[int, Tensor] = {}
        """Memory for the sums of the pieces, by pool."""

    def gather(
        self,
        staged: Staged,
        tier: TierRows,
        samples_S: NDArray[np.int64],
        scale_S: NDArray[np.float64],
        micro: MicroBatch,
    ) -> int:
        """Fill a micro-batch. Returns the bytes sent."""
        return self._fill(staged.bags, self._rows(staged, tier), samples_S, scale_S, micro)

    def pool_bags(self, staged: Staged, tier: DeviceTier, pool: int, samples: Tensor, pooled_STD: Tensor) -> None:
        """Pool the bags of some samples in one pool."""
        rows = self._rows(staged, tier)[pool]
        self._streams.launch(lambda: self._pool(pool, staged.bags, rows, samples, pooled_STD))

    def _rows(self, staged: Staged, tier: TierRows) -> list[tuple[Tensor, Tensor]]:
        return [(hot, parts.rows[0]) for hot, parts in zip(tier.weights, staged.pools, strict=True)]

    def take_rows_over(self, staged: Staged) -> None:
        """Copy the rows that earlier batches hold. Their slots are held until the step ends."""
        taken = staged.rows_taken
        if not staged.forwards or taken is None:
            return
        memory: list[Tensor] = []
        for one in staged.forwards:
            memory += one.origin.pools[one.pool].rows + staged.pools[one.pool].rows
        table = (taken.table_L8, taken.from_R, taken.to_R, taken.longest, taken.unit_bytes)
        self._streams.launch(lambda: self._streams.kernels.take_rows(*table, memory))

    def update(
        self,
        staged: Staged,
        tier: TierRows,
        changed: list[Tensor],
        update: RowUpdate,
        active_U: NDArray[np.bool_] | None,
        monitored: bool,
    ) -> int:
        """Update every active distinct row once, hot rows in the tier and cold ones in the slot; None: all are active. Sets the
        flags of the hot ones (`changed`). Returns the bytes sent."""
        rule = self._rule
        constants = update.lr, rule.eps, rule.beta1, rule.beta2, rule.bias_correction(update.step)
        hyper = np.array(constants, dtype=np.float64)
        (position_B,), sent_positions = self._keep("positions", [update.position_B], lambda: [update.position_B.astype(np.int32)])
        (hyper_5,), sent_hyper = self._keep("hyper", [hyper])
        step_bits, sent_bits = self._step_bits(update.step)
        rows = [parts.distinct for parts in staged.pools]
        parcel = None if active_U is None else self._send([active_U])
        active = [self._all_active(max(rows))] * len(rows) if parcel is None else parcel.arrays[0].split(rows)
        # Memory is taken first: if the device has too little, no row has been updated yet.
        of_pools = list(enumerate(zip(update.gradients, staged.pools, strict=True)))
        partial_PD = [self._partial_sums(pool, gradients, parts) for pool, (gradients, parts) in of_pools]
        try:
            for pool, (gradients, parts) in of_pools:
                monitor = tier.monitors[pool] if monitored and isinstance(tier, DeviceTier) else None
                record = (None, None) if monitor is None else (monitor.record_HR, monitor.touches_H)
                rounding = [parts.number_U, step_bits, self._overflow[pool]]
                hot = [tier.weights[pool], tier.state[pool], *record, changed[pool], *rounding]
                both = [gradients, partial_PD[pool]]
                of_rows, frozen = [position_B, active[pool], hyper_5], update.frozen_U is not None
                self._update_pool(staged, parts, both, of_rows, hot, update.sound, frozen)
        except RuntimeError as error:  # some rows may be updated by now
            if is_out_of_memory(error):
                raise MemoryPlanError(f"{TOO_SMALL}: {first_line(error)}") from error
            raise
        if parcel is not None:
            parcel.slot.release(self._streams.compute_event())
        return sent_positions + sent_hyper + sent_bits + (0 if parcel is None else parcel.nbytes)

    def _step_bits(self, step: int) -> tuple[Tensor | None, int]:
        """Return a step's random bits on the device, where rows are of 16 bits, and the bytes sent."""
        if not self._rule.rounds:
            return None, 0
        bits = np.array([step_dice(self._seed, step)], dtype=np.uint64).view(np.int64)
        (step_bits_1,), sent = self._keep("step bits", [bits])
        return step_bits_1, sent

    def _all_active(self, rows: int) -> Tensor:
        """Return flags of active rows, all of them set, at least so many."""
        if len(self._active) < rows:
            self._active = torch.ones(rows + rows // 4, dtype=torch.bool, device=self._streams.device)
        return self._active

    def _partial_sums(self, pool: int, gradients: Tensor, parts: PoolParts) -> Tensor:
        """Return memory for the sums of a pool's pieces, kept from step to step: it may have more lines than there are pieces."""
        pieces, kept = len(parts.piece_P1) - 1, self._partial.get(pool)
        if kept is None or len(kept) < pieces or kept.dtype != gradients.dtype:
            del kept
            self._partial.pop(pool, None)  # before more is taken
            kept = self._partial[pool] = gradients.new_empty((pieces + pieces // 8, gradients.shape[2]))
        return kept

    def free_memory(self) -> None:
        """Free what is kept for the next step."""
        self._partial = {}

    def _update_pool(
        self, staged: Staged, parts: PoolParts, gradients: list[Tensor], sent: list[Tensor], hot: list[Any],
        sound: Tensor | None, frozen: bool,
    ) -> None:  # fmt: skip
        kernels, (position_B, active_U, hyper_5) = self._streams.kernels, sent
        of_bags = [len(self._space.features), staged.bags.offsets, self._column_F, self._mean_F, position_B]

        def step() -> None:
            active_P = _of_pieces(parts, active_U) if frozen else None
            kernels.sum_pieces(parts.piece_P1, staged.bag_N, *of_bags, *gradients, active_P)
            active = active_U if sound is None else active_U & sound
            rows = parts.piece_U1, gradients[1], parts.source_U, active
            kernels.apply_rows(self._rule.code, hyper_5, *rows, *hot[:2], *parts.rows, *hot[2:])

        self._streams.launch(step)


def _of_pieces(parts: PoolParts, active_U: Tensor) -> Tensor:
    """Return for each piece of a row's gradients whether the row is updated: those of frozen rows are not summed."""
    pieces_U = parts.piece_U1[: len(active_U) + 1].diff().long()
    return active_U.repeat_interleave(pieces_U, output_size=len(parts.piece_P1) - 1)

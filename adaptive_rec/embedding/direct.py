"""The store of a CPU run: both tiers are in reach of the kernels, so nothing is staged and nothing travels."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.store import EmbeddingStore, RowUpdate
from adaptive_rec.kernels import cpu


class DirectStore(EmbeddingStore):
    """Every lookup reads the tier its row lives in; every update writes it there."""

    def gather(self, work: ClassifiedBatch, samples_S: NDArray[np.int64], popular: bool) -> list[Tensor]:
        pooled = []
        for pool, spec in enumerate(self.space.pools):
            out_STD = torch.empty((len(samples_S), len(spec.features), spec.dim), dtype=self.dtype)
            cpu.gather_pooled(
                samples_S,
                spec.features,
                len(self.space.features),
                work.batch.offsets,
                work.inverse_N,
                work.source_U,
                self.space.mean_F,
                self.device.weights[pool].numpy(),
                self.host.weights[pool],
                out_STD.numpy(),
            )
            pooled.append(out_STD.requires_grad_(torch.is_grad_enabled()))
        return pooled

    def apply(self, work: ClassifiedBatch, update: RowUpdate) -> None:
        for pool in range(len(self.space.pools)):
            self._apply_pool(work, update, pool)

    def _apply_pool(self, work: ClassifiedBatch, update: RowUpdate, pool: int) -> None:
        span = work.pool_range(pool)
        source_U = work.source_U[span]
        grad_UD = np.empty((len(source_U), self.space.pools[pool].dim), dtype=self.host.weights[pool].dtype)
        touched_U = np.empty(len(source_U), dtype=np.bool_)
        cpu.sum_segments(
            span.start,
            work.segments_U1,
            work.segment_bag_N,
            len(self.space.features),
            work.batch.offsets,
            self.space.column_of_feature,
            self.space.mean_F,
            update.position_B,
            update.gradients[pool].numpy(),
            grad_UD,
            touched_U,
        )
        active_U = touched_U if update.frozen_U is None else touched_U & ~update.frozen_U[span]
        with self.observed(pool, source_U, active_U, update.measure):
            updated = cpu.apply_rows(
                self.rule.code,
                update.lr,
                self.rule.eps,
                self.rule.beta1,
                self.rule.beta2,
                update.step,
                source_U,
                grad_UD,
                active_U,
                self.device.weights[pool].numpy(),
                self.device.state[pool].numpy(),
                self.host.weights[pool],
                self.host.state[pool],
            )
        self.count_updates(updated, touched_U, source_U)

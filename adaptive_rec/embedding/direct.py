"""The store of a CPU run: both tiers are in reach of the kernels, so nothing is staged and nothing travels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.store import EmbeddingStore, RowUpdate
from adaptive_rec.kernels import cpu
from adaptive_rec.micro_batch import MicroBatch


class DirectStore(EmbeddingStore):
    """Every lookup reads the tier its row lives in; every update writes it there."""

    def gather(
        self, work: ClassifiedBatch, samples_S: NDArray[np.int64], scale_S: NDArray[np.float64], micro: MicroBatch
    ) -> None:
        every = len(samples_S) == work.batch.size
        micro.dense_SX.numpy()[:] = work.batch.dense_BX if every else work.batch.dense_BX[samples_S]
        micro.labels_S.numpy()[:] = work.batch.labels_B if every else work.batch.labels_B[samples_S]
        micro.scale_S.numpy()[:] = scale_S
        for pool, spec in enumerate(self.space.pools):
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
                micro.pooled[pool].detach().numpy(),
            )

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
        with self._observed(pool, source_U, active_U, update.measure):
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

    @contextmanager
    def _observed(
        self, pool: int, source_U: NDArray[np.int64], active_U: NDArray[np.bool_], measure: bool
    ) -> Iterator[None]:
        """Show the monitor how far the hot rows updated inside this block moved."""
        if not (measure and self.monitored):
            yield
            return
        slots = torch.from_numpy(source_U[active_U & (source_U >= 0)])
        before = self.device.weights[pool].index_select(0, slots)
        yield
        self.device.monitors[pool].observe(slots, before, self.device.weights[pool].index_select(0, slots))

    def _bring_home(self, pool: int, slots: NDArray[np.int64], host_rows: NDArray[np.int64]) -> None:
        self.host.weights[pool][host_rows], self.host.state[pool][host_rows] = self._read_slots(pool, slots)
        if self.monitored:
            self.device.monitors[pool].forget(torch.from_numpy(slots))

    def _send_up(self, pool: int, host_rows: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        self.device.weights[pool].numpy()[slots] = self.host.weights[pool][host_rows]
        self.device.state[pool].numpy()[slots] = self.host.state[pool][host_rows]

    def _read_slots(self, pool: int, slots: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
        return self.device.weights[pool].numpy()[slots], self.device.state[pool].numpy()[slots]

"""Who takes turns at the embedding part of a step: ours and rivals'."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.batch import Batch
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.tree import Config
from adaptive_rec.embedding.records import RowUpdate
from adaptive_rec.runtime.assemble import assemble
from benchmarks.common.rivals import Tables
from benchmarks.common.shapes import Preloaded
from benchmarks.common.turns import RoundAndRound, Turn
from benchmarks.cpu.contestants import OfRival, rows_of_store


class OurRows(RoundAndRound):
    """Distinct rows found, classified, gathered and updated, on given gradients of the pooled vectors; all in the clock."""

    row_wise, about = True, "ClassifiedBatch, gather, apply"

    def __init__(self, config: Config, source: Preloaded, gradient: Tensor) -> None:
        super().__init__(source.batches)
        self.runtime = assemble(config, source=source)
        self._gradient, self._lr = gradient, config.optimizer.embedding_lr
        self._micro = self.runtime.dense.inputs(config.run.batch_size)  # memory that a run keeps too

    def step(self, turn: Turn, batch: Batch) -> None:
        store = self.runtime.store
        samples_S, scale_S = np.arange(batch.size), np.full(batch.size, 1 / batch.size)
        with turn.stage("distinct rows"):
            work = ClassifiedBatch(batch, store.space, store.threads)
            store.batches.take(work)
        with turn.stage("rows read"):
            store.batches.gather(work, samples_S, scale_S, self._micro)
        with turn.stage("rows updated"):
            store.batches.apply(work, RowUpdate([self._gradient], samples_S, None, self._lr, self.steps + 1, measure=False))

    def rows(self, table: int, ids: NDArray[np.int64]) -> NDArray[Any]:
        return rows_of_store(self.runtime.store, table, ids)

    def close(self) -> None:
        self.runtime.store.close()


class RivalRows(OfRival):
    """A rival's read and its backward pass with the update in it, on the same gradients."""

    def __init__(self, tables: Tables, source: Preloaded, gradient: Tensor) -> None:
        super().__init__(tables, source)
        self._gradient = gradient

    def step(self, turn: Turn, batch: Any) -> None:
        with turn.stage("rows read"):
            pooled = self.tables.read(batch[-1])
        with turn.stage("rows updated"):
            self.tables.update(pooled, self._gradient.view(pooled.shape))

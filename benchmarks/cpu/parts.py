"""Who takes turns at the embedding part of a step: ours and rivals'."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.tree import Config
from adaptive_rec.embedding.records import RowUpdate
from adaptive_rec.runtime.assemble import assemble
from benchmarks.common.shapes import Preloaded
from benchmarks.common.turns import Turn
from benchmarks.cpu.contestants import rows_of_store
from benchmarks.cpu.rivals import Tables


class OurRows:
    """Distinct rows found, classified, gathered and updated, on given gradients of the pooled vectors; all in the clock."""

    row_wise = True

    def __init__(self, config: Config, source: Preloaded, gradient: Tensor) -> None:
        self.steps, self._batches, self._gradient = 0, source.batches, gradient
        self.runtime = assemble(config, source=source)
        self._lr = config.optimizer.embedding_lr
        self._micro = self.runtime.dense.inputs(config.run.batch_size)  # memory that a run keeps too

    def turn(self, steps: int) -> Turn:
        store, turn = self.runtime.store, Turn()
        for _ in range(steps):
            batch = self._batches[self.steps % len(self._batches)]
            samples_S, scale_S = np.arange(batch.size), np.full(batch.size, 1 / batch.size)
            with turn.stage("distinct rows"):
                work = ClassifiedBatch(batch, store.space, store.threads)
                store.batches.take(work)
            with turn.stage("rows read"):
                store.batches.gather(work, samples_S, scale_S, self._micro)
            with turn.stage("rows updated"):
                update = RowUpdate([self._gradient], samples_S, None, self._lr, self.steps + 1, measure=False)
                store.batches.apply(work, update)
            self.steps += 1
        return turn

    def mean_loss(self) -> float:
        return 0.0

    def rows(self, table: int, ids: NDArray[np.int64]) -> NDArray[Any]:
        return rows_of_store(self.runtime.store, table, ids)

    def facts(self) -> dict[str, Any]:
        return {"about": "ClassifiedBatch, gather, apply"}

    def close(self) -> None:
        self.runtime.store.close()


class RivalRows:
    """A rival's read and its backward pass with the update in it, on the same gradients."""

    def __init__(self, tables: Tables, source: Preloaded, gradient: Tensor) -> None:
        self.steps, self._tables, self._gradient, self.row_wise = 0, tables, gradient, tables.row_wise
        self._prepared = [tables.prepare(batch) for batch in source.batches]

    def turn(self, steps: int) -> Turn:
        turn = Turn()
        for _ in range(steps):
            prepared = self._prepared[self.steps % len(self._prepared)]
            with turn.stage("rows read"):
                pooled = self._tables.read(prepared)
            with turn.stage("rows updated"):
                self._tables.update(pooled, self._gradient.view(pooled.shape))
            self.steps += 1
        return turn

    def mean_loss(self) -> float:
        return 0.0

    def rows(self, table: int, ids: NDArray[np.int64]) -> NDArray[Any]:
        return self._tables.rows(table, ids)

    def facts(self) -> dict[str, Any]:
        return {"about": self._tables.about}

    def close(self) -> None: ...

"""Who takes turns at whole steps: the dense part alone, runs of ours, rivals' tables with the same dense part.

A contestant's turn is some steps on the batches that come next; all go through the same batches in the same order.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.batch import Batch
from adaptive_rec.config.tree import Config
from adaptive_rec.dense.eager import DensePart
from adaptive_rec.embedding.records import MicroBatch
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.runtime.assemble import assemble
from benchmarks.common.contestants import Driven
from benchmarks.common.rivals import Tables
from benchmarks.common.shapes import Preloaded
from benchmarks.common.turns import CLOCK, RoundAndRound, Turn

STAGES = {
    "distinct rows": ("classify",),
    "rows read": ("gather",),
    "dense": ("execute",),
    "rows updated": ("update",),
    "waiting": ("wait",),
    "planning": ("plan",),
    "tracking": ("observe", "reclassify"),
}
"""Stages of a run by what they are called here; `rows updated` without the dense optimizer's step, which stands alone."""


def dense_part(config: Config, source: Preloaded) -> DensePart:
    """The dense part that a run on these features has, made as a run's is."""
    slim = Preloaded(source, source.batches)
    slim.tables = tuple(replace(table, rows=1) for table in source.tables)
    runtime = assemble(config, source=slim)
    assert runtime.store.space.rows == len(source.tables), "tables of a row each, or gigabytes go to what is never read"
    return runtime.dense


class Floor(RoundAndRound):
    """The dense part alone, on pooled vectors that are written before each step, outside the clock, as the store writes them."""

    def __init__(self, config: Config, source: Preloaded) -> None:
        super().__init__(source.batches)
        self.popular_ratio = 0.0
        """Share of the samples that run as a micro-batch of their own; none: whole batches."""
        self._dense = dense_part(config, source)
        size, dice = config.run.batch_size, torch.Generator().manual_seed(1)
        self._pooled = [torch.rand((size, *shape), generator=dice) / 10 - 0.05 for shape in self._dense.pool_shapes]

    def step(self, turn: Turn, batch: Batch) -> None:
        popular = round(self.popular_ratio * batch.size)
        with turn.stage("dense"):
            self._dense.begin_step()
        for part in (slice(0, popular), slice(popular, batch.size)):
            if part.start < part.stop:
                self._micro_batch(turn, batch, part)
        with turn.stage("dense"):
            self._dense.gradients()
        with turn.stage("dense step"):
            self._dense.step(1.0)

    def _micro_batch(self, turn: Turn, batch: Batch, part: slice) -> None:
        with turn.stage("dense"):
            micro = self._dense.inputs(part.stop - part.start)
        fill(micro, batch, part)
        for to, pooled in zip(micro.pooled, self._pooled, strict=True):
            to.copy_(pooled[part])
        with turn.stage("dense"):
            self._dense.run(micro)

    def facts(self) -> dict[str, Any]:
        return {"micro-batches": 1 + bool(self.popular_ratio), "popular samples": self.popular_ratio}


def fill(micro: MicroBatch, batch: Batch, part: slice) -> None:
    micro.dense_SX.copy_(torch.from_numpy(batch.dense_BX[part]))
    micro.labels_S.copy_(torch.from_numpy(batch.labels_B[part]))
    micro.scale_S.fill_(1 / batch.size)


class OurRun(Driven):
    """A run, tracking and telemetry on. Its clock stops when the batches that it makes ready ahead are ready, so that none of
    that work falls into somebody else's turn."""

    def __init__(self, config: Config, source: Preloaded, budget_bytes: int | None) -> None:
        super().__init__(config, source, None, budget_bytes)
        self.end_turns_exactly()
        self.popular_ratio = 0.0
        """Share of a turn's samples whose every row was hot, after warming."""
        self._dense_step_seconds = 0.0
        dense_step = self.runtime.dense.step

        def timed(factor: float) -> None:
            began = time.perf_counter()
            dense_step(factor)
            self._dense_step_seconds += time.perf_counter() - began

        self.runtime.dense.step = timed  # type: ignore[method-assign]

    def turn(self, steps: int) -> Turn:
        before, dense_before, counted = dict(self.runtime.times.seconds), self._dense_step_seconds, self._counts()
        began = CLOCK()
        done = self.drive(steps)
        self.finish()
        seconds = CLOCK() - began
        assert done == steps, f"a turn must be {steps} steps, it was {done}"
        spent = {name: value - before.get(name, 0.0) for name, value in self.runtime.times.seconds.items()}
        dense_step = self._dense_step_seconds - dense_before
        stages = {name: sum(spent.get(part, 0.0) for part in parts) for name, parts in STAGES.items()}
        stages |= {"dense step": dense_step, "rows updated": stages["rows updated"] - dense_step}
        stages["the rest"] = seconds - sum(stages.values())
        now = self._counts()
        if CLOCK.by_processor:
            stages = {}  # a run times them by the time that passes
        return Turn(seconds, stages, {name: now[name] - counted[name] for name in now})

    def warm(self, steps: int, turn_steps: int) -> None:
        """Some more steps, in whole turns."""
        for _ in range(-(-steps // turn_steps)):
            last = self.turn(turn_steps)
        self.popular_ratio = last.gained["samples_popular"] / last.gained["samples_seen"]

    def _counts(self) -> dict[str, float]:
        counts, totals = self.runtime.state.counts(), dict(self.runtime.times.seconds)
        return {**counts, "reclassify_seconds": totals.get("reclassify", 0.0)}

    def mean_loss(self) -> float:
        totals = self.runtime.reports.totals()
        return totals["loss_sum"] / totals["samples_trained"]

    def rows(self, table: int, ids: NDArray[np.int64]) -> NDArray[Any]:
        return rows_of_store(self.runtime.store, table, ids)

    def facts(self) -> dict[str, Any]:
        store, counts = self.runtime.store, self.runtime.state.counts()
        return {
            "policy": self.runtime.knobs.policy,
            "rows": store.space.rows,
            "hot rows": store.hot.tier.hot_rows,
            "popular samples": counts["samples_popular"] / max(1, counts["samples_seen"]),
            "placements": store.index.placement.version,
        }


def first_rows(store: EmbeddingStore, table: int) -> NDArray[Any]:
    """All rows of a table as a run begins with them. A view: gigabytes that are copied have to be found first."""
    pool, low, high = store.space.table_range(table)
    return store.cold.types.weights[pool][low:high]


def rows_of_store(store: EmbeddingStore, table: int, ids: NDArray[np.int64]) -> NDArray[Any]:
    if store.hot.tier.hot_rows:
        return store.contents.export(table)[0][ids]
    return first_rows(store, table)[ids]


class OfRival(RoundAndRound):
    """A rival's tables, whose batches are in its form before the clock runs: dense features, labels, weights, lookups."""

    def __init__(self, tables: Tables, source: Preloaded) -> None:
        super().__init__([(*_inputs(batch), tables.prepare(batch)) for batch in source.batches])
        self.tables, self.row_wise, self.about, self.rows = tables, tables.row_wise, tables.about, tables.rows


def _inputs(batch: Batch) -> tuple[Tensor, ...]:
    return torch.from_numpy(batch.dense_BX), torch.from_numpy(batch.labels_B), torch.full((batch.size,), 1 / batch.size)


class RivalRun(OfRival):
    """A rival's tables and the dense part that ours has. The clock runs from a batch in the rival's form to updated rows."""

    def __init__(self, tables: Tables, config: Config, source: Preloaded) -> None:
        super().__init__(tables, source)
        self._dense, self._samples = dense_part(config, source), 0
        self._shape = (-1, *self._dense.pool_shapes[0])

    def step(self, turn: Turn, batch: Any) -> None:
        dense_SX, labels_S, scale_S, prepared = batch
        with turn.stage("rows read"):
            pooled = self.tables.read(prepared)
        with turn.stage("dense"):
            self._dense.begin_step()
            vectors = [pooled.detach().view(self._shape)]
            self._dense.run(MicroBatch(dense_SX, vectors, labels_S, scale_S, len(labels_S)))
            (gradient,) = self._dense.gradients()
        with turn.stage("rows updated"):
            self.tables.update(pooled, gradient.view(pooled.shape))
        with turn.stage("dense step"):
            self._dense.step(1.0)
        self._samples += len(labels_S)

    def mean_loss(self) -> float:
        return float(self._dense.loss_sum) / self._samples

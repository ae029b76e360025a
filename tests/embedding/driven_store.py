"""A store driven by operations that a seed draws, against tables in plain arrays.

Every operation throws dice of its own, so that a sequence can be repeated with some of its operations left out.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from adaptive_rec.batch import Batch, FeatureSpec, TableSpec
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.tree import Config
from adaptive_rec.embedding.device import split_budget
from adaptive_rec.embedding.records import MicroBatch, RowUpdate
from adaptive_rec.embedding.snapshot import RowSnapshot
from adaptive_rec.kernels.keeping import PENDING
from adaptive_rec.placement import Migration
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.loop import Runtime
from tests.conftest import MemorySource
from tests.doubles.late_streams import LateStreams
from tests.embedding.plain_rows import PlainRows, rows_of

TABLES = (TableSpec("A", 700, 4), TableSpec("B", 120, 3), TableSpec("C", 60, 4))
FEATURES = (FeatureSpec("a", 0), FeatureSpec("b", 1, "mean"), FeatureSpec("b again", 1), FeatureSpec("c", 2, "mean"))
NOTHING = Batch(np.zeros((1, 1), np.float32), np.zeros(4, np.int64), np.arange(5), np.zeros(1, np.float32))
SETTINGS = [
    "run.device=cpu", "run.threads=1", "run.split=never", "run.batch_size=8", "knobs.policy=hybrid", "model.embedding_dim=4",
    "model.bottom_mlp=[4]", "model.top_mlp=[4]", "data.dense_features=1", "optimizer.dense=SGD",
]  # fmt: skip
LR = 1 / 32


class DrivenStore:
    """That of a real run, which itself does not run: batches, gradients and moves come from dice."""

    def __init__(self, config: Config, device: str, seed: int) -> None:
        """`device` is direct, late, in_place (late, but cold rows stay in the host tier) or any: another one in each life."""
        self._config, self._device, self._seed = config, device, seed
        self.dice, self.random = random.Random(seed), np.random.default_rng(seed)
        self.lives = 0
        self.begin_life()
        self.plain = PlainRows(self.store)

    def begin_life(self) -> None:
        """A fresh run."""
        self.lives += 1
        self.device = self.dice.choice(("direct", "late", "in_place")) if self._device == "any" else self._device
        streams = None if self.device == "direct" else LateStreams(self._seed + 1000 * self.lives)
        run = {"cold_rows": "in_place"} if self.device == "in_place" else {}
        config = self._config.model_copy(update={"run": self._config.run.model_copy(update=run)})
        self.runtime: Runtime = assemble(config, MemorySource([NOTHING], TABLES, FEATURES), streams)
        self.store = self.runtime.store
        self.changed_R = np.zeros(self.store.space.rows, np.bool_)
        """Rows that the next checkpoint has to save."""
        self._ahead: list[ClassifiedBatch] = []
        self._gathered: list[tuple[list[Any], list[Any]]] = []

    def end_life(self) -> None:
        self.runtime.store.close()
        self.runtime.observer.close()

    # Training --------------------------------------------------------------------------------------------------------

    def stage(self) -> None:
        if len(self._ahead) < 3:
            work = ClassifiedBatch(self._batch(), self.store.space)
            self.store.path.classify(work)
            self.store.batches.stage(work)
            self._ahead.append(work)

    def _take(self) -> ClassifiedBatch:
        if not self._ahead:
            self.stage()
        work = self._ahead.pop(0)
        self.store.batches.take(work)
        return work

    def skip(self) -> None:
        self.store.batches.release(self._take())
        self.runtime.state.set_step(self.runtime.step_number + 1)

    def step(self) -> None:
        store, plain, work = self.store, self.plain, self._take()
        trained_S = np.flatnonzero(self.random.random(work.batch.size) < 0.8)
        if self.dice.random() < 0.3 or not len(trained_S):
            trained_S = np.arange(work.batch.size)
        split = int(self.random.integers(1, len(trained_S) + 1))
        position_B = np.full(work.batch.size, -1)
        position_B[trained_S] = np.arange(len(trained_S))
        for samples in (trained_S[:split], trained_S[split:]):
            if len(samples):
                self._gather(work, samples)
        shapes = [(len(trained_S), len(pool.features), pool.dim) for pool in store.space.pools]
        gradients = [torch.from_numpy(self.random.integers(-8, 9, shape) / 16).to(store.dtype) for shape in shapes]
        frozen_R = self.random.random(store.space.rows) < self.dice.choice((0.0, 0.2))
        step = self.runtime.step_number + 1
        measure = self.dice.random() < 0.5
        update = RowUpdate(gradients, position_B, frozen_R[work.distinct_U], LR, step, measure)
        store.batches.apply(work, update)
        self.changed_R[plain.update(work.batch, update, frozen_R)] = True
        self.runtime.state.set_step(step)

    def _gather(self, work: ClassifiedBatch, samples: Any) -> None:
        store, lines = self.store, len(samples)
        shapes = [(lines, 1), (lines,), (lines,), *((lines, len(p.features), p.dim) for p in store.space.pools)]
        dense, labels, scale, *pooled = (torch.full(shape, torch.nan, dtype=store.dtype) for shape in shapes)
        store.batches.gather(work, samples, np.full(lines, 0.5), MicroBatch(dense, pooled, labels, scale, lines))
        found: list[Any] = []
        store.hot.launch(lambda: found.extend(part.detach().numpy().copy() for part in pooled))
        self._gathered.append((found, self.plain.pooled(work.batch, samples)))
        if self.device == "direct":
            self._check_gathered()

    def _batch(self) -> Batch:
        """Few rows are in many batches. A mean is one of 1, 2 or 4 rows, so that its division is exact."""
        samples = int(self.random.integers(1, 9))
        bags = samples * len(FEATURES)
        lengths = self.random.choice([0, 1, 2, 4], bags) if self.dice.random() < 0.8 else np.ones(bags, np.int64)
        rows_N = np.repeat(np.tile(self.store.space.rows_F, samples), lengths)
        ids = (self.random.random(len(rows_N)) ** 3 * rows_N).astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return Batch(np.zeros((samples, 1), np.float32), ids, offsets, np.zeros(samples, np.float32))

    # Tiers -----------------------------------------------------------------------------------------------------------

    def migrate(self) -> None:
        store = self.store
        hot = np.flatnonzero(store.index.placement.slot_of_row >= 0)
        demote = hot[self.random.random(len(hot)) < self.dice.choice((0.1, 0.5, 1.0))]
        promote = []
        for pool, spec in enumerate(store.space.pools):
            staying = np.setdiff1d(store.hot.tier.row_of_slot[pool], demote)
            free = store.hot.tier.capacities[pool] - np.count_nonzero(staying >= 0)
            cold = np.setdiff1d(np.arange(spec.first_row, spec.end_row), hot)
            wanted = cold[np.argsort(self.random.random(len(cold)) * (1 + (cold - spec.first_row)))]
            promote.append(wanted[: self.random.integers(0, free + 1)])
        moving = Migration(np.concatenate(promote), demote)
        store.migrate(moving)
        self._check_moved(moving)

    def resize(self) -> None:
        store = self.store
        rows = self.dice.choice((0, 0, 5, 40, 120, 300))
        ranked = self.random.permutation(store.space.rows)[: self.random.integers(0, store.space.rows + 1)]
        monitored = self.dice.random() < 0.5
        sizes = store.hot.row_bytes(monitored)
        store.resize(split_budget(store.space, sizes, rows * max(sizes)), ranked, monitored)

    def settle(self) -> None:
        self.store.settle()

    def free_memory(self) -> None:
        if not self._ahead:
            self.stage()
        self.store.path.free_memory()
        self.step()

    # Checks ----------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        self.plain.assert_equals(rows_of(self.store))
        self._collect_flags()
        self._check_gathered()

    def _collect_flags(self) -> None:
        """Wait for the flags of changed rows, as a snapshot does: hot ones come from the device, others with their rows."""
        self.store.settle()
        self.store.path.flag_changed()
        self.store.hot.flag_changed()

    def _check_moved(self, moved: Migration) -> None:
        """A row that moves is saved before, as readers would not know where it is. Copies at home of a staged store stay."""
        snapshot = self.store.cold.snapshot
        if not isinstance(snapshot, RowSnapshot):
            return
        rows = np.concatenate([moved.demote, moved.promote]) if self.device == "direct" else moved.demote
        waiting = rows[snapshot.mark_R[rows] == PENDING]
        assert snapshot._ended or not len(waiting), f"rows moved that were still to be saved: {waiting[:9]}"

    def _check_gathered(self) -> None:
        done, self._gathered = self._gathered, []
        for found, expected in done:
            for mine, plain in zip(found, expected, strict=True):
                tolerance = 1e-10 if mine.dtype == np.float64 else 1e-4
                np.testing.assert_allclose(mine, plain, rtol=tolerance, atol=tolerance)

    def check_marks(self) -> None:
        store = self.store
        for pool, row_of_slot in enumerate(store.hot.tier.row_of_slot):
            slots = np.flatnonzero(row_of_slot >= 0)
            assert (store.index.slot_of_row[row_of_slot[slots]] == slots).all(), f"slots of pool {pool}"
            free = store.hot.tier.free[pool].lowest(len(row_of_slot) - len(slots))
            assert np.array_equal(free, np.flatnonzero(row_of_slot < 0)), f"free slots of pool {pool}"
            assert np.array_equal(store.hot.tier.hot_rows_of(pool), row_of_slot[slots]), f"hot rows of pool {pool}"
        flagged_R = store.index.changed_R.copy()  # other threads set flags meanwhile, and a mask must stay as it is
        assert self.changed_R[flagged_R].all(), "rows that the next checkpoint need not save"
        if self.device == "direct":  # a device's flags come later, see `check`
            self.check_flags(store.index.changed_R, self.changed_R)

    def check_flags(self, found_R: Any, expected_R: Any) -> None:
        assert np.array_equal(found_R, expected_R), "rows that the next checkpoint has to save"

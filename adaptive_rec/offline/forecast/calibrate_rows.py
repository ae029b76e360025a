"""Measures the costs of rows of one dim on this machine, with the store of a CPU run; and how calls are timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, TableSpec
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.tree import Config
from adaptive_rec.data.source import Source
from adaptive_rec.embedding.build import build
from adaptive_rec.embedding.device import row_bytes
from adaptive_rec.embedding.records import MicroBatch, RowUpdate
from adaptive_rec.memory.rows import row_rule, row_type
from adaptive_rec.offline.forecast.hardware import RowCosts
from adaptive_rec.placement import Migration, RowSpace

ROUNDS = 5
"""Number of times that all batches are processed."""
NOTHING = np.empty(0, dtype=np.int64)


class Clock:
    """The clock of all timings. A benchmark that shares its cores may count the processor's time instead."""

    now: Callable[[], float] = staticmethod(time.perf_counter)


def once(call: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    started = Clock.now()
    call()
    return Clock.now() - started


def quickest(call: Callable[[int], object], times: int) -> float:
    """Return the seconds of the quickest of several calls, after one that is not timed, as it may compile kernels.

    Other work on the machine only ever lengthens a call, so the quickest is nearest to the true cost.
    """
    call(0)
    return min(once(lambda: call(n)) for n in range(times))  # noqa: B023 - called at once


class RowCalibration:
    """Processes batches over tables of one dim, first with all rows cold, then with the most popular ones hot.

    The cost of a hot row is what remains after that of the cold rows is subtracted. So both add up to the time of a run under the
    configured budget, effects of caches included.
    """

    def __init__(self, config: Config, source: Source, dim: int, batches: list[Batch]) -> None:
        self._dim = dim
        tables = tuple(TableSpec(table.name, table.rows, dim) for table in source.tables)
        self._space = RowSpace.of(tables, source.features)
        rule, dtype = row_rule(config), row_type(config)
        sizes = row_bytes(self._space, rule, dtype.itemsize, monitored=True)
        budget = max(config.knobs.hot_budget_bytes, 256 * max(sizes))
        self._store = build(self._space, rule, config.run.seed, dtype, budget, monitored=True)
        threads = self._store.threads
        self._works = [ClassifiedBatch(batch, self._space, threads) for batch in batches]
        samples = max(batch.size for batch in batches)
        shapes = [(samples, len(pool.features), pool.dim) for pool in self._space.pools]
        columns = batches[0].dense_BX.shape[1]
        self._micro = MicroBatch(
            torch.zeros(samples, columns, dtype=dtype), [torch.zeros(shape, dtype=dtype) for shape in shapes],
            torch.zeros(samples, dtype=dtype), torch.zeros(samples, dtype=dtype), samples,
        )  # fmt: skip
        self._gradients = [torch.full(shape, 1e-6, dtype=dtype) for shape in shapes]

    # Calls that are timed --------------------------------------------------------------------------------------------

    def _gather(self, work: ClassifiedBatch) -> None:
        size = work.batch.size
        self._store.batches.gather(work, np.arange(size), np.full(size, 1 / size), self._micro.first(size))

    def _apply(self, work: ClassifiedBatch, measure: bool = False) -> None:
        size = work.batch.size
        gradients = [part[:size] for part in self._gradients]
        self._store.batches.apply(work, RowUpdate(gradients, np.arange(size), None, 1e-3, 1, measure))

    def _seconds(self, works: list[ClassifiedBatch], measure: bool = False) -> tuple[float, float]:
        """Return the mean seconds of gathering and of updating a batch, in turns as in a run; the quickest round counts."""
        for work in works:
            self._store.path.classify(work)
        self._gather(works[0])
        self._apply(works[0], measure)
        calls = [(partial(self._gather, work), partial(self._apply, work, measure)) for work in works]
        taken = [(once(gather), once(apply)) for _ in range(ROUNDS) for gather, apply in calls]
        each = np.array(taken).reshape(ROUNDS, len(works), 2)
        gather_seconds, apply_seconds = each.min(axis=0).mean(axis=0)
        return float(gather_seconds), float(apply_seconds)

    # Results -------------------------------------------------------------------------------------------------------

    def measure(self) -> RowCosts:
        """Return all costs, in nanoseconds."""
        works = self._works
        lookups = sum(work.batch.lookups for work in works) / len(works)
        rows = sum(len(work.distinct_U) for work in works) / len(works)
        cold_gather, cold_apply = self._seconds(works)
        _, one_row_apply = self._seconds([self._one_row_each(works[0])])
        sum_ = min(one_row_apply / max(1, works[0].batch.lookups), cold_apply / lookups)
        update_cold = (cold_apply - sum_ * lookups) / rows
        hot = self._most_popular()
        migrate = quickest(lambda _: self._there_and_back(hot), 3) / max(1, 2 * len(hot))
        self._store.migrate(Migration(promote=hot, demote=NOTHING))
        mixed_gather, mixed_apply = self._seconds(works)
        _, probe_apply = self._seconds(works, measure=True)
        hot_rows = sum(int(np.count_nonzero(work.hot_U)) for work in works) / len(works)
        hot_lookups = sum(int(work.hot_lookups_F.sum()) for work in works) / len(works)
        gather_cold = cold_gather / lookups
        gather_hot = (mixed_gather - (lookups - hot_lookups) * gather_cold) / max(1.0, hot_lookups)
        update_hot = (mixed_apply - sum_ * lookups - (rows - hot_rows) * update_cold) / max(1.0, hot_rows)
        costs = {
            "gather_hot_ns": gather_hot, "gather_cold_ns": gather_cold, "sum_ns": sum_, "update_hot_ns": update_hot,
            "update_cold_ns": update_cold, "migrate_ns": migrate,
            "probe_ns": (probe_apply - mixed_apply) / max(1.0, hot_rows),
        }  # fmt: skip
        return RowCosts(dim=self._dim, **{name: max(0.0, 1e9 * seconds) for name, seconds in costs.items()})

    def _one_row_each(self, work: ClassifiedBatch) -> ClassifiedBatch:
        """Return the batch with every lookup redirected to its table's first row."""
        return ClassifiedBatch(
            replace(work.batch, ids_N=np.zeros_like(work.batch.ids_N)), self._space, self._store.threads
        )

    def _most_popular(self) -> NDArray[np.int64]:
        """Return the rows with the most lookups in all batches, as many as there are slots."""
        rows = np.concatenate([work.distinct_U for work in self._works])
        counts = np.concatenate([np.diff(work.segments_U1) for work in self._works])
        distinct, place = np.unique(rows, return_inverse=True)
        order = np.argsort(-np.bincount(place, weights=counts), kind="stable")
        return np.sort(distinct[order[: self._store.hot.tier.capacities[0]]])

    def _there_and_back(self, rows: NDArray[np.int64]) -> None:
        self._store.migrate(Migration(promote=rows, demote=NOTHING))
        self._store.migrate(Migration(promote=NOTHING, demote=rows))

"""The path of a CPU run: the kernels read and write both tiers in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_rec.batch import all_samples
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.cold.home import ColdHome
from adaptive_rec.embedding.device import TierRows
from adaptive_rec.embedding.host import Arrays
from adaptive_rec.embedding.hot import HotRows
from adaptive_rec.embedding.index import RowIndex
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.path.row_path import RowPath
from adaptive_rec.embedding.records import BagReads, MicroBatch, RowUpdate
from adaptive_rec.embedding.row_types import FP16_LIMIT, as_array, has_infinity
from adaptive_rec.errors import TrainingError
from adaptive_rec.kernels import pooling, row_update
from adaptive_rec.kernels.jit import usable_threads
from adaptive_rec.kernels.staging import touched_rows

if TYPE_CHECKING:
    from adaptive_rec.embedding.missed_steps import MissedSteps


class CpuPath(RowPath):
    """Lookups and updates go to the tier of each row, cold ones to the arrays of their home."""

    def __init__(
        self, index: RowIndex, rules: Sequence[RowRule], hot: HotRows, cold: ColdHome, seed: int
    ) -> None:
        super().__init__(index, rules, hot, cold)
        self._seed = seed
        self.threads = usable_threads(torch.get_num_threads())
        """The dense part's threads, which wait while rows are gathered and updated."""

    def gather(
        self, work: ClassifiedBatch, samples_S: NDArray[np.int64], scale_S: NDArray[np.float64], micro: MicroBatch
    ) -> None:
        self.fill(work, samples_S, scale_S, micro, lambda pool: self.weights_of(work, pool))

    def weights_of(self, work: ClassifiedBatch, pool: int, twin: TierRows | None = None) -> Arrays:
        """Return the rows of a pool that a batch's sources index, the hot ones, or those of a twin, and the cold ones."""
        return as_array((twin or self._hot.tier).weights[pool]), self.cold_arrays(work, pool)[0]

    def cold_arrays(self, work: ClassifiedBatch, pool: int) -> Arrays:
        """Return the cold rows of a pool that a batch's sources index, and their optimizer state."""
        return self._cold.arrays(pool)

    def fill(
        self, work: ClassifiedBatch, samples_S: NDArray[np.int64], scale_S: NDArray[np.float64], micro: MicroBatch,
        weights_of: Callable[[int], Arrays], bags: BagReads | None = None,
    ) -> None:  # fmt: skip
        """Fill a micro-batch. `weights_of` returns the two arrays that a pool's sources (`source_N`) index. `bags`: what each bag
        reads, where that is not the batch's rows."""
        space, bags = work.space, bags or BagReads.of(work)
        every = np.array_equal(samples_S, np.arange(work.batch.size))
        micro.dense_SX.numpy()[:] = work.batch.dense_BX if every else work.batch.dense_BX[samples_S]
        micro.labels_S.numpy()[:] = work.batch.labels_B if every else work.batch.labels_B[samples_S]
        micro.scale_S.numpy()[:] = scale_S
        for pool, spec in enumerate(space.pools):
            pooling.gather_pooled(
                samples_S,
                spec.features,
                len(space.features),
                bags.offsets,
                bags.one_hot,
                bags.source_N,
                bags.mean_F,
                *weights_of(pool),
                micro.pooled[pool].detach().numpy(),
                threads=self.threads,
            )

    def apply(self, work: ClassifiedBatch, update: RowUpdate) -> None:
        places = self.gradient_places(work, update)
        for pool in range(len(self._rules)):
            span = work.pool_range(pool)
            source_U = work.source_U[span]
            if self._cold.is_being_saved:  # checked here to save the subtraction
                self._cold.keep(pool, self._index.host_rows(pool, work.distinct_U[span]), source_U)
            frozen_U = np.zeros(len(source_U), np.bool_) if update.frozen_U is None else update.frozen_U[span]
            with self._observed(work, update, pool, frozen_U):
                tier = self._hot.tier.arrays(pool)
                touched, updated, hot_updated, overflowed = self._update(work, update, pool, places, frozen_U, tier)
            self._index.traffic.add_updates(touched, updated, hot_updated)
            if overflowed:
                raise TrainingError(self._overflow(work, pool, update.step), faq="not-finite")

    def _update(
        self, work: ClassifiedBatch, update: RowUpdate, pool: int, places: row_update.GradientPlaces,
        left_U: NDArray[np.bool_], hot: Arrays,
    ) -> tuple[int, int, int, bool]:  # fmt: skip
        """Update the rows of a pool but those in `left_U`, the hot ones in the arrays `hot`. Returns what `update_rows` does."""
        rule, span = self._rules[pool], work.pool_range(pool)
        return row_update.update_rows(
            rule.code, rule.at(update.step, update.lr, self._seed),
            row_update.RowSegments(span.start, work.segments_U1, work.segment_bag_N), places, update.gradients[pool].numpy(),
            row_update.PoolRows(left_U, work.distinct_U[span], work.source_U[span], self._index.changed_R),
            row_update.TierArrays(*hot, *self.cold_arrays(work, pool)),
            threads=self.threads,
        )  # fmt: skip

    def gather_beside(
        self, work: ClassifiedBatch, scale_B: NDArray[np.float64], micro: MicroBatch, twin: TierRows
    ) -> None:
        self.fill(work, all_samples(work.batch.size), scale_B, micro, lambda pool: self.weights_of(work, pool, twin))

    def update_beside(self, work: ClassifiedBatch, update: RowUpdate, twin: TierRows) -> bool:
        places, fits = self.gradient_places(work, update), True
        for pool in range(len(self._rules)):
            span = work.pool_range(pool)
            cold_U = work.source_U[span] < 0
            left_U = cold_U if update.frozen_U is None else cold_U | update.frozen_U[span]
            *_, overflowed = self._update(work, update, pool, places, left_U, twin.arrays(pool))
            fits &= not overflowed
        return fits

    def gradient_places(
        self, work: ClassifiedBatch, update: RowUpdate, bags: BagReads | None = None
    ) -> row_update.GradientPlaces:
        """Return where the gradient of each bag of a batch stands; `bags` as in `fill`."""
        space, bags, everyone = work.space, bags or BagReads.of(work), np.arange(work.batch.size)
        in_place = len(space.pools) == 1 and not bags.mean_F.any() and np.array_equal(update.position_B, everyone)
        return row_update.GradientPlaces(
            len(space.features), bags.offsets, space.column_of_feature, bags.mean_F, update.position_B, in_place
        )

    def catch_up(self, pool: int, row_N: NDArray[np.int64], missed: MissedSteps, next_step: int = 0) -> None:
        """Have rows, by their numbers within the pool, make the steps that they missed. With `next_step` they are about to be
        updated by the step of that number."""
        tiers = row_update.TierArrays(*self._hot.tier.arrays(pool), *self._cold.arrays(pool))
        missed.make(row_N, self._index.slots_of_pool(pool), next_step, tiers)

    def _overflow(self, work: ClassifiedBatch, pool: int, step: int) -> str:
        """Return the error text for rows of a batch that have become too large for half precision."""
        span, space = work.pool_range(pool), self._index.space
        hot_HD, cold_RD = self.weights_of(work, pool)
        rows = [
            row
            for row, source in zip(work.distinct_U[span].tolist(), work.source_U[span].tolist(), strict=True)
            if (has_infinity(hot_HD, source) if source >= 0 else has_infinity(cold_RD, ~source))
        ]
        table = next(t for t, first in enumerate(space.table_first_row) if 0 <= rows[0] - first < space.tables[t].rows)
        name, id_ = space.tables[table].name, rows[0] - space.table_first_row[table]
        return (
            f"rows of half precision must stay within {FP16_LIMIT}, id {id_} of table {name} ({len(rows)} in all) does "
            f"not after step {step}; lower their learning rate (optimizer.embedding_lr) or take bf16 (run.row_precision=bf16)"
        )

    @contextmanager
    def _observed(
        self, work: ClassifiedBatch, update: RowUpdate, pool: int, frozen_U: NDArray[np.bool_]
    ) -> Iterator[None]:
        """Let the monitor observe how far the hot rows updated inside this block move."""
        if not (update.measure and self._hot.monitored):
            yield
            return
        span = work.pool_range(pool)
        touched_U = np.empty(len(frozen_U), dtype=np.bool_)
        features = len(self._index.space.features)
        touched_rows(work.segments(pool), work.segment_bag_N, features, update.position_B, touched_U)
        source_U = work.source_U[span]
        slots = torch.from_numpy(source_U[touched_U & ~frozen_U & (source_U >= 0)])
        before = self._hot.tier.weights[pool].index_select(0, slots)
        yield
        self._hot.tier.monitors[pool].observe(slots, before, self._hot.tier.weights[pool].index_select(0, slots))

"""What a step of a user's loop looked up: counts of lookups, samples and popular samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.kernels import lookups as kernels
from adaptive_rec.modules.loop.bags import NO_CALL, BagBatch, Bags
from adaptive_rec.modules.loop.step_parts import StepUpdate
from adaptive_rec.reclassify.observer import Observer
from adaptive_rec.state.run_state import RunState

Looked = tuple[ClassifiedBatch, list[tuple[int, Bags]]]
"""A classified batch, and those of its bags that count, each with the number of its first bag."""


class LookupCounts:
    """Hands the lookups of each step to the observer and adds them to the run's tally."""

    def __init__(self, state: RunState, observer: Observer) -> None:
        self._state, self._observer = state, observer
        first_row_T = state.store.space.table_first_row
        self._table_order = np.argsort(first_row_T, kind="stable")
        self._first_row_T = first_row_T[self._table_order]

    def count(self, updates: Sequence[StepUpdate], seen: list[Bags], probe: bool, samples: int) -> None:
        """Count a step of so many samples, the lookups of its updates, each classified batch once, and `seen`: lookups that have
        no update of their own."""
        looked = [(update.work, update.bags) for update in updates if update.counts]
        for work in {id(work): work for work, _ in looked}.values():
            self._observe(work, probe)
        self._count_samples([*looked, self._classify(seen)] if seen else looked, samples)

    def _classify(self, seen: list[Bags]) -> Looked:
        """Classify and count lookups whose gradients were updated as sums by row."""
        store = self._state.store
        batch = BagBatch.of(store.space, [(NO_CALL, bags) for bags in seen])
        work = ClassifiedBatch(batch, store.space, store.threads)
        store.path.classify(work)
        self._observe(work, probe=False)
        store.batches.release(work)
        return work, [(first, bags) for _, bags, first in batch.parts]

    def _observe(self, work: ClassifiedBatch, probe: bool) -> None:
        state, tally = self._state, self._state.tally
        if state.policy.counts_lookups(state.knobs):
            self._observer.count_lookups(state.step, work, state.knobs)
        if probe and state.policy.tracks_movement:
            self._observer.keep_popular_samples(work)
        lookups_T, hot_T = np.zeros_like(tally.lookups_T), np.zeros_like(tally.lookups_T)
        kernels.count_by_table(work.distinct_U, work.segments_U1, work.source_U, self._first_row_T, lookups_T, hot_T)
        tally.add_lookups(self._table_order, lookups_T, hot_T)

    def _count_samples(self, looked: list[Looked], samples: int) -> None:
        hot_B: NDArray[np.bool_] | None = None
        for work, some in looked:
            for first, bags in some:
                count = len(bags)
                if bags.samples == samples and samples and count % samples == 0:
                    hot_L = work.popular_B[first : first + count]
                    if count != samples:
                        hot_L = np.logical_and.reduce(hot_L.reshape(samples, -1), axis=1)
                    if hot_B is None:
                        hot_B = hot_L.copy()
                    else:
                        hot_B &= hot_L
        self._state.tally.add_samples(samples, 0 if hot_B is None else int(np.count_nonzero(hot_B)))

"""Observes batches: which rows are popular, and which hot rows move.

The observer is fed once a step. When a window ends it hands out one record for the policy (`window_views.py`). Lookups are
counted in the background; reading the tracker waits for that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.embedding.device import all_rows_bytes, split_budget
from adaptive_rec.embedding.path.row_path import Lookups
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import CheckpointError
from adaptive_rec.live.telemetry import StageTimes
from adaptive_rec.placement import Migration, RowSpace
from adaptive_rec.policy import Policy
from adaptive_rec.reclassify.popular_samples import PopularSamples
from adaptive_rec.reclassify.stale_rows import StaleRows
from adaptive_rec.reclassify.window_views import WindowRecord, access_view, judge_hot_rows, movement_view
from adaptive_rec.saved import ANY, Saved
from adaptive_rec.system.background import LOWEST, BackgroundThread
from adaptive_rec.system.crew import Crew
from adaptive_rec.tracking.count_min import CountMinSketch, of_older_version, saved_sketch, saved_width, width_for
from adaptive_rec.tracking.horizon import MemoryTrials
from adaptive_rec.tracking.popularity import PopularityTracker, samples, saved_candidates, sort_distinct

SKETCH_LIMIT_BYTES = 64 << 20


def tracked_slots(policy: Policy, knobs: Knobs, space: RowSpace, row_bytes: list[int], slots: int) -> int:
    """Return for how many hot rows popularity is tracked: for the `slots` of the device tier. Under a policy that does not go by
    popularity, where raw ids leave by it, for those of one that does, within the same budget: so the same ids leave."""
    if policy.tracks_popularity or not policy.counts_lookups(knobs):
        return slots
    return sum(split_budget(space, row_bytes, min(knobs.hot_budget_bytes, all_rows_bytes(space, row_bytes))))


class Observer:
    """Tracks the popularity of rows (a sketch and its candidates) and keeps popular samples of probe steps."""

    def __init__(
        self, store: EmbeddingStore, seed: int, times: StageTimes, hot_rows: int | None = None, beside: bool = True
    ) -> None:
        """`hot_rows`: for how many popularity is tracked (see `tracked_slots`); None: as many as the device tier has slots.
        `beside`: whether a thread counts beside the steps. Else the training thread does: where its steps need every core,
        passing a batch on costs a third of counting it, and a thread that gives way to all others has to be waited for."""
        self.store = store
        self._beside = beside
        self._crew = Crew(store.path.counting_threads, LOWEST)
        """Counts for the counting thread."""
        rows = self._placed_rows(sum(store.hot.tier.capacities) if hot_rows is None else hot_rows)
        self._tracker = PopularityTracker(self._sketch(rows, seed), capacity_rows=rows)
        self._seed = seed
        self.trials: MemoryTrials | None = None
        """Finds out which memory suits the data, for policies that adapt it."""
        self._times = times
        self._counting = BackgroundThread("tracker")
        self.stale = StaleRows(store)
        self._samples = PopularSamples()
        self._probes = 0
        """Probe steps since measuring began."""

    def _sketch(self, rows: int, seed: int) -> CountMinSketch:
        return CountMinSketch(width_for(rows, self.store.space.rows, SKETCH_LIMIT_BYTES), seed, self._crew)

    def _placed_rows(self, hot_rows: int) -> int:
        """Return how many rows are placed by popularity: hot ones, and cold ones in host memory where others lie on a disk."""
        memory = self.store.cold.memory
        return hot_rows + (sum(memory.capacities) if memory is not None else 0)

    @property
    def tracker(self) -> PopularityTracker:
        """The popularity of rows, with all batches counted."""
        self.settle()
        return self._tracker

    def settle(self) -> None:
        """Wait until all batches are counted. Raises any error that counting raised."""
        self._counting.settle()

    def close(self) -> None:
        """Stop the counting thread and drop its errors."""
        self._counting.close()
        self._crew.close()

    def resize(self, hot_rows: int) -> None:
        """Set how many rows may be hot. A sketch that is too narrow for them is replaced by a wider one, which starts with the
        estimates of the placed rows and the candidates."""
        counter, placed_rows = self.tracker.counter, self._placed_rows(hot_rows)
        if isinstance(counter, CountMinSketch):
            wider = self._sketch(placed_rows, counter.seed)
            if wider.counters.size > counter.counters.size:
                wider.take_over(counter, self._known_rows())
                self.tracker.replace_counter(wider)
        self.tracker.resize(placed_rows)
        if self.trials is not None:
            self.trials.resize(hot_rows)
        self._probes = 0  # the monitors are new

    def _known_rows(self) -> NDArray[np.int64]:
        """Return the placed rows and the candidates."""
        memory = self.store.cold.memory
        placed = np.concatenate([*self.store.hot.tier.row_of_slot, *(memory.row_of_slot if memory else ())])
        return np.union1d(placed[placed >= 0], self.tracker.candidates())

    def try_memories(self, wanted: bool) -> None:
        """Start to find out which memory suits the data, or stop."""
        self.settle()
        self.trials = MemoryTrials(sum(self.store.hot.tier.capacities), self._seed) if wanted else None

    # Each step -------------------------------------------------------------------------------------------------------

    def count_lookups(self, step: int, work: Lookups, knobs: Knobs) -> None:
        """Feed the sampled share of the steps to the sketch, in order. Raises any error of an earlier step."""
        if samples(step, knobs.sample_ratio):
            self._do_later(partial(self._count, step, work))

    def _do_later(self, work: Callable[[], None]) -> None:
        """Have the counting thread do some work, after what it has to do already; or do it now. Memories on trial count each
        lookup several times, which is for that thread anywhere."""
        if self._beside or self.trials is not None:
            self._counting.do(partial(self._do, work))
        else:
            self.settle()
            work()

    def _do(self, work: Callable[[], None]) -> None:
        with self._times.in_background("observe"):
            work()

    def _count(self, step: int, work: Lookups) -> None:
        self._tracker.begin_step(step)
        self._tracker.observe(work.distinct_U, work.segments_U1, work.source_U)
        if self.trials is not None:
            self.trials.observe(work.distinct_U, work.segments_U1)

    def keep_popular_samples(self, work: ClassifiedBatch) -> None:
        """Keep the lookups of some popular samples of a probe step."""
        self._probes += 1
        self._samples.keep(work)

    # When a window ends ----------------------------------------------------------------------------------------------

    def record(
        self, step: int, knobs: Knobs, popularity: bool = True, skipped_ratio: float | None = None, lists_stale: bool = False
    ) -> WindowRecord:
        """Return what was observed in the window: the popularity of rows, the movement of hot rows, or both.

        With a `skipped_ratio` (see `MovementView`) the movement is handed out, and measuring starts again. `lists_stale`: with
        the stale lookups of the samples kept.
        """
        movement = None
        if skipped_ratio is not None:
            judged = judge_hot_rows(self.store, knobs.stale_metric, self._probes, self.tracker)
            movement = movement_view(self.store, knobs, self._samples, judged, skipped_ratio, lists_stale)
        if movement is not None:
            self.begin_measuring()
        own_H = slice(0) if movement is None else self.store.peers.own_slots
        if not popularity:
            return WindowRecord([], movement, own_H)
        candidates = self.tracker.candidates()
        pools = range(len(self.store.space.pools))
        access = [access_view(self.store, pool, step, knobs, candidates, self._tracker) for pool in pools]
        return WindowRecord(access, movement, own_H)

    def begin_measuring(self) -> None:
        """Forget all movement, and the samples kept with it."""
        for monitor in self.store.hot.tier.monitors:
            self.store.hot.launch(monitor.begin_window)
        self._probes = 0
        self._samples.clear()

    def end_tick(self) -> MemoryTrials | None:
        """Score the memories on trial by all batches so far. Returns them, or None where none are tried."""
        if self.trials is not None:
            self.settle()
            self.trials.end_tick(self.store.group)
        return self.trials

    def show_estimates(self, rows: NDArray[np.int64]) -> None:
        """Set the popularity that is shown with the slots of some hot rows (-1: no row)."""
        for pool, spec in enumerate(self.store.space.pools):
            hot = spec.select(rows)
            slots = self.store.index.placement.slot_of_row[hot]
            self.store.hot.tier.estimate[pool][slots] = self.tracker.estimate(hot, self.store.threads)

    def end_window(self, decay: float, migration: Migration) -> None:
        """Let the counts decay after rows moved, beside the next steps, and forget the samples kept: their slots may hold other
        rows now."""
        self._do_later(partial(self._tracker.end_window, decay, migration))
        for estimate in self.store.hot.tier.estimate:
            estimate *= decay
        self._samples.clear()

    def decay_counts(self, decay: float) -> None:
        """Let the counts decay at the end of a window in which no row moved."""
        self._do_later(partial(self._tracker.end_window, decay))

    def forget(self, rows: NDArray[np.int64]) -> None:
        """Let rows that were cleared be no candidates any more."""
        self.tracker.forget(rows)
        self.stale.count()

    # Kept in a checkpoint --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        rows, lengths = self._samples.arrays()
        return {
            "tracker": self.tracker.state(),
            "trials": self.trials and self.trials.state(),
            **self.stale.state(),
            "sample_rows": rows,
            "sample_lengths": lengths,
            "probes": self._probes,
        }

    def set_state(self, found: Saved) -> None:
        """Restore what was observed. The slots of the store must be restored before."""
        self._take_sketch(found.part("tracker").part("counter"))
        self._saved_candidates(found)
        self._tracker.set_state(found.part("tracker"))
        self._take_over(found.part("tracker").part("counter"), self._known_rows)
        if self.store.cold.memory is not None:  # it may be another one than that of the saved run
            self._tracker.resize(self._placed_rows(sum(self.store.hot.tier.capacities)))
        trials = found.maybe("trials")
        self.try_memories(trials is not None)
        if trials is not None and self.trials is not None:
            self.trials.set_state(trials)
        self.stale.set_state(found)
        self._restore_samples(found)
        self._probes = found.integer("probes")

    def _restore_samples(self, found: Saved) -> None:
        lengths = found.array("sample_lengths", np.int64, ANY)
        if found.has("sample_slots"):  # of 0.1.0
            row_of_slot = np.concatenate(self.store.hot.tier.row_of_slot)
            slots = found.array("sample_slots", np.int64, int(lengths.sum()))
            if len(slots) and not (0 <= slots.min() and slots.max() < len(row_of_slot)):
                raise CheckpointError(
                    f"slots of kept samples must be below {len(row_of_slot)}, got {slots.min()} to {slots.max()}"
                )
            rows = row_of_slot[slots]
            if (rows < 0).any():  # rows have moved since
                rows, lengths = rows[:0], lengths[:0]
        else:
            rows, end = found.array("sample_rows", np.int64, int(lengths.sum())), self.store.peers.batch_space.rows
            if len(rows) and not (0 <= rows.min() and rows.max() < end):
                raise CheckpointError(f"rows of kept samples must lie in [0, {end}), got {rows.min()} to {rows.max()}")
        self._samples.restore(rows, lengths)

    def _take_sketch(self, found: Saved) -> None:
        """Make the sketch as wide as the saved one, which may have grown."""
        counter = self._tracker.counter
        if not isinstance(counter, CountMinSketch):
            return
        width, shape = saved_width(found), found.shape("counters")
        if 4 * math.prod(shape) > SKETCH_LIMIT_BYTES:
            raise CheckpointError(f"a sketch must have at most {SKETCH_LIMIT_BYTES // 4} cells, got {shape}")
        if width != counter.width:
            self._tracker.replace_counter(CountMinSketch(width, counter.seed, self._crew))

    def _take_over(self, found: Saved, rows: Callable[[], NDArray[np.int64]]) -> None:
        """Count what a saved sketch remembers of some rows, if it is of an older version. They are not asked for otherwise, as
        that would sort the candidates."""
        counter = self._tracker.counter
        if isinstance(counter, CountMinSketch) and of_older_version(found):
            counter.take_over(saved_sketch(found, counter.seed), rows())

    def remember(self, found: Saved, rows: NDArray[np.int64]) -> None:
        """Restore counts and candidates, and add `rows`, for another placement. The sketch must be as wide as the saved one."""
        counter, saved = self._tracker.counter, found.part("tracker").part("counter")
        if isinstance(counter, CountMinSketch) and saved_width(saved) == counter.width:
            counter.set_state(saved)
            self._tracker.take_steps(found.part("tracker"))
            known = sort_distinct(np.concatenate([self._saved_candidates(found), rows]))
            self._take_over(saved, lambda: known)
            self._tracker.remember(known)

    def remember_counts(self, rows: NDArray[np.int64], counts: NDArray[np.float64]) -> None:
        """Add the counts of some rows that a run had before it was resumed, and make these rows candidates."""
        self._tracker.counter.add(rows, np.ceil(counts).astype(np.int64))
        self._tracker.remember(rows)

    def _saved_candidates(self, found: Saved) -> NDArray[np.int64]:
        return saved_candidates(found.part("tracker"), self.store.space.rows)


"""One policy at one budget: a placement that follows the stream as in a run, and the counts of what happened."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.config.tree import Config
from adaptive_rec.embedding.records import Traffic
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.live.telemetry import StageTimes
from adaptive_rec.memory.rows import everything_bytes, row_rule, row_type
from adaptive_rec.offline.forecast.placement_store import placement_store
from adaptive_rec.placement import RowSpace
from adaptive_rec.policy.find import load_policy
from adaptive_rec.reclassify.observer import Observer
from adaptive_rec.reclassify.window import Reclassifier
from adaptive_rec.tracking.popularity import samples


@dataclass
class StepCounts:
    """Counts over some steps. A row counts once for each step that touches it."""

    steps: int = 0
    samples: int = 0
    popular_samples: int = 0
    lookups: int = 0
    hot_lookups: int = 0
    rows: int = 0
    """Distinct rows of the batches."""
    hot_rows: int = 0
    """Hot ones among them."""
    cold_row_bytes: int = 0
    """Bytes of the cold ones with optimizer state, which travel once each way where the step runs on a device."""
    counted_rows: int = 0
    """Distinct rows of the batches whose lookups were counted."""
    reclassifications: int = 0
    ranked_rows: int = 0
    """Hot rows and candidates that reclassifications ranked."""
    listed_rows: int = 0
    """Rows that phases of the stream listed as hot."""
    ticks: int = 0
    """Number of times that the trial memories were scored."""
    read_lookups: int = 0
    """Lookups read in the background: more than were trained where a policy reads the stream more than once."""
    decided_lookups: int = 0
    """Lookups that a policy which arranges the stream reads between steps, while training waits."""
    evaluated_samples: int = 0
    migrated_rows: int = 0
    promoted_bytes: int = 0
    demoted_bytes: int = 0

    def __add__(self, other: StepCounts) -> StepCounts:
        return StepCounts(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(StepCounts)))

    def add(self, **counts: int) -> None:
        mine = vars(self)
        for name, number in counts.items():
            mine[name] += number

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


class ForegroundObserver(Observer):
    """An observer that counts at once, as a replay has no step to count in the background of."""

    def _do_later(self, work: Callable[[], None]) -> None:
        work()


@dataclass
class Lane:
    """A policy at a budget. `stretches` hold the counts of `stretch_steps` steps each; the last one may be shorter."""

    name: str
    budget_bytes: int
    knobs: Knobs
    space: RowSpace
    store: EmbeddingStore
    observer: Observer
    reclassifier: Reclassifier
    stretch_steps: int
    arranges: bool = False
    step_number: int = 0
    seconds: float = 0.0
    """Time spent on this lane alone, without the work shared with other lanes."""
    stretches: list[StepCounts] = field(default_factory=list)
    _taken: Traffic = field(default_factory=Traffic)
    """The store's traffic that is counted already."""

    def __post_init__(self) -> None:
        rule, itemsize = self.store.rule, self.store.dtype.itemsize
        self._row_bytes_P = [rule.bytes_per_row(pool.dim, itemsize) for pool in self.space.pools]

    @staticmethod
    def of(config: Config, space: RowSpace, name: str, budget_bytes: int) -> Lane:
        """Return a lane with rows placed as before a run's first step. Raises ConfigError for an unknown policy."""
        policy = load_policy(name)
        knobs = config.knobs.changed({"policy": name, "hot_budget_bytes": budget_bytes})
        wanted = policy.budget_bytes(knobs, everything_bytes(config, space, name))
        store = placement_store(space, row_rule(config), row_type(config), wanted, policy.records_movement(knobs))
        observer = ForegroundObserver(store, config.run.seed, StageTimes())
        reclassifier = Reclassifier(policy, store, observer)
        stretch = stretch_steps(knobs.reclassify_every)
        lane = Lane(name, budget_bytes, knobs, space, store, observer, reclassifier, stretch, policy.arranges_stream)
        lane.stretches.append(StepCounts())
        reclassifier.begin(0, knobs)
        lane._take_migrations()
        return lane

    @property
    def first_window(self) -> StepCounts:
        """The counts of the first `reclassify_every` steps."""
        return sum(self.stretches[: self.knobs.reclassify_every // self.stretch_steps], StepCounts())

    @property
    def later(self) -> StepCounts:
        """The counts of the steps after the first window, in which no row was hot yet; of all steps where there are no others."""
        after = sum(self.stretches[self.knobs.reclassify_every // self.stretch_steps :], StepCounts())
        return after if after.steps else self.total

    @property
    def total(self) -> StepCounts:
        return sum(self.stretches, StepCounts())

    def step(self, work: ClassifiedBatch) -> None:
        """Follow one batch: the order of `TrainingSteps.make` and `runtime.boundary`, as far as placements depend on it."""
        started = time.perf_counter()
        policy = self.reclassifier.policy
        if self.step_number % self.stretch_steps == 0 and self.step_number:
            self.stretches.append(StepCounts())
        work.classify(self.store.index.placement)  # lanes share batches, and their placements may have the same version
        counted = policy.tracks_popularity and samples(self.step_number, self.knobs.sample_ratio)
        if counted:
            self.observer.count_lookups(self.step_number, work, self.knobs)
        self._count_batch(work, counted)
        self.step_number += 1
        if self.reclassifier.end_tick(self.step_number, self.knobs):
            self.reclassifier.adapt_memory(self.knobs)
            self.count(ticks=int(policy.adapts_memory))
        if self.reclassifier.window_ends(self.step_number, self.knobs):
            self._end_window()
        self.seconds += time.perf_counter() - started

    def place(self, rows: NDArray[np.int64], others_stay: bool) -> None:
        """Make hot the rows that a phase of the stream lists."""
        self.reclassifier.place_listed(rows, others_stay)
        self.count(listed_rows=len(rows))
        self._take_migrations()

    def count(self, **counts: int) -> None:
        """Add counts to the current stretch."""
        self.stretches[-1].add(**counts)

    def end(self, seconds: float) -> None:
        """Record the time of a lane that read the stream on its own."""
        self.seconds = seconds

    def _end_window(self) -> None:
        if self.reclassifier.policy.tracks_popularity:
            ranked = self.store.hot.tier.hot_rows + len(self.observer.tracker.candidates())
            self.count(reclassifications=1, ranked_rows=ranked)
        self.reclassifier.end_window(self.step_number, self.knobs, self._totals())
        self._take_migrations()

    def _count_batch(self, work: ClassifiedBatch, counted: bool) -> None:
        hot_U, cold_bytes = work.hot_U, 0
        for pool, row_bytes in enumerate(self._row_bytes_P):
            cold_bytes += int(np.count_nonzero(~hot_U[work.pool_range(pool)])) * row_bytes
        self.count(
            steps=1,
            samples=work.batch.size,
            popular_samples=int(np.count_nonzero(work.popular_B)),
            lookups=work.batch.lookups,
            read_lookups=0 if self.arranges else work.batch.lookups,
            hot_lookups=int(work.hot_lookups_F.sum()),
            rows=len(hot_U),
            hot_rows=int(np.count_nonzero(hot_U)),
            cold_row_bytes=cold_bytes,
            counted_rows=len(hot_U) if counted else 0,
        )

    def _take_migrations(self) -> None:
        """Count the rows and bytes that the store moved since the last call."""
        traffic, before = self.store.index.traffic, self._taken
        self._taken = replace(traffic)
        self.count(
            migrated_rows=traffic.migrated_rows - before.migrated_rows,
            promoted_bytes=traffic.host_to_device_bytes - before.host_to_device_bytes,
            demoted_bytes=traffic.device_to_host_bytes - before.device_to_host_bytes,
        )

    def _totals(self) -> dict[str, float]:
        """Return the counters that staleness is judged by, as in a run that skipped nothing."""
        total = self.total
        seen = {
            "samples_seen": total.samples,
            "samples_trained": total.samples,
            "samples_popular": total.popular_samples,
        }
        return {**seen, "row_updates_skipped": 0, "hot_row_updates": total.hot_rows}


def stretch_steps(window_steps: int) -> int:
    """Return a fifth of a window, or the next larger part that divides it: stretches end where windows do."""
    return window_steps // next(parts for parts in (5, 4, 3, 2, 1) if window_steps % parts == 0)


"""One policy at one budget: a placement that follows the stream as it would in a run, and what it caught."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, fields

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.config.tree import Config
from adaptive_rec.embedding.device import all_rows_bytes, row_bytes
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.live.telemetry import StageTimes
from adaptive_rec.offline.simulate.store import PlacementStore
from adaptive_rec.placement import RowSpace
from adaptive_rec.policy.find import load_policy
from adaptive_rec.reclassify.observer import Observer
from adaptive_rec.reclassify.window import Reclassifier
from adaptive_rec.tracking.popularity import samples


@dataclass
class StepCounts:
    """What happened over some steps; a row is counted once for each step that touches it."""

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
    """Bytes of the cold ones, with optimizer state: what has to travel, once each way, where the step runs on a device."""
    counted_rows: int = 0
    """Distinct rows of the batches whose lookups were counted."""
    reclassifications: int = 0
    ranked_rows: int = 0
    """Hot rows and candidates that were ranked at them."""
    listed_rows: int = 0
    """Rows that phases of the stream listed, to be hot."""
    ticks: int = 0
    """Times that memories were scored."""
    read_lookups: int = 0
    """Lookups read beside the step: more than were trained where a policy reads the stream more than once."""
    decided_lookups: int = 0
    """Lookups read by a policy that arranges the stream, between steps, which wait for it."""
    evaluated_samples: int = 0
    migrated_rows: int = 0
    promoted_bytes: int = 0
    demoted_bytes: int = 0

    def __add__(self, other: StepCounts) -> StepCounts:
        return StepCounts(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(StepCounts)))

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


class InLine(Observer):
    """Counts where it is told to: a replay has no step that counting could be beside of."""

    def count_lookups(self, step: int, work: ClassifiedBatch, knobs: Knobs) -> None:
        if samples(step, knobs.sample_ratio):
            self._count(work)


@dataclass
class Lane:
    """A policy at a budget. `stretches` tell of the stream piece by piece: `stretch_steps` each, the last one may be shorter."""

    name: str
    budget_bytes: int
    knobs: Knobs
    space: RowSpace
    store: PlacementStore
    observer: Observer
    reclassifier: Reclassifier
    stretch_steps: int
    arranges: bool = False
    step_number: int = 0
    seconds: float = 0.0
    """What following the stream took, what is shared with other lanes left out."""
    stretches: list[StepCounts] = field(default_factory=list)

    @staticmethod
    def of(config: Config, space: RowSpace, name: str, budget_bytes: int) -> Lane:
        """Rows placed as before a run's first step. Raises ConfigError where there is no such policy."""
        policy = load_policy(name)
        knobs = config.knobs.changed({"policy": name, "hot_budget_bytes": budget_bytes})
        dtype, rule = row_type(config), row_rule(config)
        sizes = row_bytes(space, rule, dtype.itemsize, policy.tracks_movement)
        wanted = policy.budget_bytes(knobs, all_rows_bytes(space, sizes))
        store = PlacementStore(space, rule, dtype, wanted, policy.tracks_movement)
        observer = InLine(store, config.run.seed, StageTimes())
        reclassifier = Reclassifier(policy, store, observer)
        stretch = stretch_steps(knobs.reclassify_every)
        lane = Lane(name, budget_bytes, knobs, space, store, observer, reclassifier, stretch, policy.arranges_stream)
        lane.stretches.append(StepCounts())
        reclassifier.begin(0, knobs)
        lane._take_migrations()
        return lane

    @property
    def now(self) -> StepCounts:
        """The present stretch."""
        return self.stretches[-1]

    @property
    def first_window(self) -> StepCounts:
        """The first `reclassify_every` steps."""
        return sum(self.stretches[: self.knobs.reclassify_every // self.stretch_steps], StepCounts())

    @property
    def total(self) -> StepCounts:
        return sum(self.stretches, StepCounts())

    def step(self, work: ClassifiedBatch) -> None:
        """Follow one batch: the order of `runtime.step` and `runtime.boundary`, as far as placements depend on it."""
        started = time.perf_counter()
        policy = self.reclassifier.policy
        if self.step_number % self.stretch_steps == 0 and self.step_number:
            self.stretches.append(StepCounts())
        work.forget_placement()  # another lane's placement may have the same version
        self.store.take(work)
        counted = policy.tracks_popularity and samples(self.step_number, self.knobs.sample_ratio)
        if counted:
            self.observer.count_lookups(self.step_number, work, self.knobs)
        self._count(work, counted)
        self.step_number += 1
        if self.reclassifier.end_tick(self.step_number, self.knobs):
            self.reclassifier.adapt_memory(self.knobs)
            self.now.ticks += policy.adapts_memory
        if self.reclassifier.window_ends(self.step_number, self.knobs):
            self._end_window()
        self.seconds += time.perf_counter() - started

    def add_decided(self, lookups: int) -> None:
        """Count lookups that were read to decide on a phase."""
        self.now.decided_lookups += lookups

    def add_read(self, lookups: int) -> None:
        """Count lookups that were read to train a phase."""
        self.now.read_lookups += lookups

    def add_evaluated(self, samples: int) -> None:
        """Count held-out samples that were scored after a phase."""
        self.now.evaluated_samples += samples

    def set_seconds(self, seconds: float) -> None:
        """Set the time that following the stream took."""
        self.seconds = seconds

    def place(self, rows: NDArray[np.int64], others_stay: bool) -> None:
        """Make the rows hot that a phase of the stream lists."""
        self.reclassifier.place_listed(rows, others_stay)
        self.now.listed_rows += len(rows)
        self._take_migrations()

    def _end_window(self) -> None:
        now = self.now
        if self.reclassifier.policy.tracks_popularity:
            now.reclassifications += 1
            now.ranked_rows += self.store.device.hot_rows + len(self.observer.tracker.candidates())
        self.reclassifier.end_window(self.step_number, self.knobs, self._totals())
        self._take_migrations()

    def _count(self, work: ClassifiedBatch, counted: bool) -> None:
        now, hot_U = self.now, work.hot_U
        now.steps += 1
        now.samples += work.batch.size
        now.popular_samples += int(np.count_nonzero(work.popular_B))
        now.lookups += work.batch.lookups
        now.read_lookups += 0 if self.arranges else work.batch.lookups
        now.hot_lookups += int(work.hot_lookups_F.sum())
        now.rows += len(hot_U)
        now.hot_rows += int(np.count_nonzero(hot_U))
        for pool, spec in enumerate(self.space.pools):
            cold = ~hot_U[work.pool_range(pool)]
            now.cold_row_bytes += int(np.count_nonzero(cold)) * self.store.rule.bytes_per_row(
                spec.dim, self.store.dtype.itemsize
            )
        now.counted_rows += len(hot_U) if counted else 0

    def _take_migrations(self) -> None:
        """Count what the store moved since the last time."""
        now, traffic = self.now, self.store.take_traffic()
        now.migrated_rows += traffic.migrated_rows
        now.promoted_bytes += traffic.host_to_device_bytes
        now.demoted_bytes += traffic.device_to_host_bytes

    def _totals(self) -> dict[str, float]:
        """The counters that staleness is judged by, of a run in which nothing was skipped."""
        total = self.total
        seen = {
            "samples_seen": total.samples,
            "samples_trained": total.samples,
            "samples_popular": total.popular_samples,
        }
        return {**seen, "row_updates_skipped": 0, "hot_row_updates": total.hot_rows}


def stretch_steps(window_steps: int) -> int:
    """A fifth of a window where that comes out even, else more of it: stretches end where windows do."""
    return window_steps // next(parts for parts in (5, 4, 3, 2, 1) if window_steps % parts == 0)


def row_type(config: Config) -> torch.dtype:
    """What rows are computed with."""
    return torch.float64 if config.run.precision == "float64" else torch.float32


def row_rule(config: Config) -> RowRule:
    return RowRule.of(config.optimizer, config.run.row_precision)

"""A step of training: the verbs, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, all_samples
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.dense.eager import DensePart
from adaptive_rec.dense.finite import StepCheck
from adaptive_rec.embedding.optimizer import LearningRates, learning_rates
from adaptive_rec.embedding.records import Fetched, RowUpdate
from adaptive_rec.errors import first_line, is_out_of_memory
from adaptive_rec.policy import BatchView, SkippingPolicy, StepPlan
from adaptive_rec.policy.skipping import plan_step, weigh
from adaptive_rec.reclassify.observer import Observer
from adaptive_rec.runtime.short_memory import UPDATED
from adaptive_rec.runtime.skipping_guard import SkippingGuard
from adaptive_rec.runtime.splitting import Splitting
from adaptive_rec.state.run_state import RunState
from adaptive_rec.tracking.popularity import samples as is_sampled

LossObserver = Callable[[ClassifiedBatch, StepPlan, NDArray[np.int64]], Callable[[Fetched], None] | None]
"""Given a batch, its plan and the samples (S,) of a micro-batch, returns what takes their losses (S or more, the first ones are
theirs) once the step has succeeded; None where it needs none."""

NO_FLAGS: NDArray[np.bool_] = np.empty(0, dtype=np.bool_)
NO_RANDOM = np.random.default_rng(0)
"""What a step that skips nothing gets in place of its stale rows and its random numbers, which take time to make."""


@lru_cache(maxsize=64)
def _same_scales(count: int, whole: float) -> NDArray[np.float64]:
    return np.full(count, 1 / whole)


def scales_of(samples_S: NDArray[np.int64], weight_B: NDArray[np.float64] | None, whole: float) -> NDArray[np.float64]:
    """Return the factor of each sample's loss: its weight over that of the whole batch. Where all weigh 1, it is the same array
    each time, which nobody may change."""
    return _same_scales(len(samples_S), whole) if weight_B is None else weight_B[samples_S] / whole


def trained_weight(batch: Batch, plan: StepPlan) -> float | None:
    """Return the sum of the weights of the samples that a plan trains, by which the losses of a weighted run are averaged; None
    where samples have no weights."""
    if batch.weights_B is None or plan.weight_B is None:
        return None
    return float(sum(plan.weight_B[samples_S].sum() for samples_S in plan.micro_batches))


class TrainingSteps:
    """Trains mini-batches, one after the other."""

    def __init__(
        self,
        state: RunState,
        dense: DensePart,
        observer: Observer,
        splitting: Splitting,
        finite: StepCheck,
        loss_observers: Sequence[LossObserver],
        guard: SkippingGuard | None = None,
    ) -> None:
        """`loss_observers` are given the losses that samples have before they are trained on. `guard`: says when policies that
        it guards may skip; without one they never do."""
        self._state, self._store, self._times = state, state.store, state.times
        self._batches = state.store.batches
        self._dense, self._observer = dense, observer
        self._splitting, self._finite, self._loss_observers = splitting, finite, loss_observers
        self._guard = guard
        self._held: list[tuple[Callable[[Fetched], None], Fetched]] = []
        """Losses of this step and who takes them, held back until it has succeeded: it may be repeated."""

    def make(self, work: ClassifiedBatch, probe: bool) -> None:
        """Train one loaded and classified mini-batch: plan, gather and execute, update, observe. `probe`: whether it is a
        probe step, which skips nothing and measures movement."""
        self._store.contents.finish_draws()
        if self._store.cold.on_disk:
            with self._times("disk"):
                self._batches.await_rows(work)
        with self._times("classify"):
            self._batches.take(work)
        with self._times("plan"):
            plan = self.plan(work, probe)
        if self._guard is not None:
            self._guard.count_skipped(work, plan)
        position_B = self.execute(work, plan)
        if (guard := self._guard) is not None and guard.trial is not None:
            self._train_twins(guard, work, plan, probe)
        weight = trained_weight(work.batch, plan)
        with self._times("update"):
            if left_out := not self.update(work, plan, position_B, probe):
                position_B, weight = np.full(work.batch.size, -1, dtype=np.int64), weight and 0.0
        with self._times("observe"), UPDATED:
            self.observe(work, probe and bool((position_B >= 0).any()))
        self._state.tally.add(work, position_B, weight)
        self._state.step_done(work.batch.position)
        if guard is not None:
            guard.step_done(left_out)

    def _train_twins(self, guard: SkippingGuard, work: ClassifiedBatch, plan: StepPlan, probe: bool) -> None:
        """Have the twins of a trial make the step, too. A trial for which memory is short ends: the run goes on without it."""
        try:
            with self._times("trial"):
                guard.train_twins(work, plan, None if probe else self._plan(work, True), self.learning_rates())
        except (MemoryError, RuntimeError) as error:
            if not (isinstance(error, MemoryError) or is_out_of_memory(error)):
                raise
            guard.give_up(first_line(error))

    def plan(self, work: ClassifiedBatch, probe: bool) -> StepPlan:
        """Plan a step of the run."""
        policy = self._state.policy
        lets_skip = self._guard is not None and self._guard.lets_skip(probe)
        return self._plan(work, isinstance(policy, SkippingPolicy) and not probe and (lets_skip or not policy.guards_quality))

    def _plan(self, work: ClassifiedBatch, skips: bool) -> StepPlan:
        """Plan a step as the policy does, or, unless it `skips`, in full."""
        split = self._state.policy.tracks_popularity and self._splitting.at(self._state.step)
        stale_U = self._observer.stale.of(work) if skips else NO_FLAGS
        random = self._state.random("plan") if skips else NO_RANDOM
        view = BatchView(self._state.step, split, self._state.knobs, work, stale_U, random)
        return weigh(plan_step(self._state.policy, view, not skips), work.batch.weights_B)

    def execute(self, work: ClassifiedBatch, plan: StepPlan) -> NDArray[np.int64]:
        """Run forward and backward of every micro-batch; all read the same parameters. Returns each sample's line in the
        gradients, -1 for a skipped sample."""
        weight = work.batch.weight_of_all_ranks
        self._dense.begin_step(None if work.batch.weights_B is None else weight)
        self._held.clear()
        everyone = all_samples(work.batch.size)
        whole = len(plan.micro_batches) == 1 and plan.micro_batches[0] is everyone
        position_B = everyone if whole else np.full(work.batch.size, -1, dtype=np.int64)
        trained = 0
        if self._guard is not None and self._guard.trial is not None:
            self._guard.trial.begin_step(work.batch.size)
        for samples in plan.micro_batches:
            with self._times("gather"):
                micro = self._dense.inputs(len(samples))
                self._batches.gather(work, samples, scales_of(samples, plan.weight_B, weight), micro)
            with self._times("execute"):
                self._dense.run(micro)
            if self._guard is not None and self._guard.trial is not None:
                self._guard.trial.take_losses(samples, self._dense.losses_S)
            takers = [take for observer in self._loss_observers if (take := observer(work, plan, samples)) is not None]
            if takers:
                losses_S = self._store.hot.fetch_later(self._dense.losses_S)
                self._held += [(take, losses_S) for take in takers]
            if not whole:
                position_B[samples] = np.arange(trained, trained + len(samples))
            trained += len(samples)
        return position_B

    def update(self, work: ClassifiedBatch, plan: StepPlan, position_B: NDArray[np.int64], probe: bool) -> bool:
        """Update each distinct row once and make one dense step, or leave the batch out where its gradients are not finite.
        Returns False where it was left out."""
        if not plan.micro_batches and self._store.group.is_alone:
            self._batches.release(work)
            return True
        if not self._finite.passes(work, position_B, self._state.step + 1):
            self._batches.release(work)
            self._held.clear()
            return False
        knobs, number, rates = self._state.knobs, self._state.step + 1, self.learning_rates()
        gradients = self._dense.gradients()
        self._dense.share()
        if knobs.clip_norm:
            self._dense.clip(knobs.clip_norm, gradients)
        skips = work.batch.weights_B is not None or not (probe or self._state.policy.exact)  # weights may be 0
        lr = rates.embedding
        self._batches.apply(work, RowUpdate(gradients, position_B, plan.frozen_U, lr, number, measure=probe, skips=skips))
        with UPDATED:
            self._dense.step(rates.factor)
        return True

    def observe(self, work: ClassifiedBatch, probe: bool) -> None:
        state = self._state
        if state.policy.counts_lookups(state.knobs) and is_sampled(state.step, state.knobs.sample_ratio):
            self._observer.count_lookups(state.step, self._batches.counted(work), state.knobs)
        if probe and state.policy.tracks_movement:
            self._observer.keep_popular_samples(work)
        for take, losses_S in self._held:
            take(losses_S)
        self._held.clear()

    def learning_rates(self) -> LearningRates:
        """Return those of the next step."""
        return learning_rates(self._state.config.optimizer, self._state.knobs, self._state.step)

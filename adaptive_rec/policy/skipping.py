"""Policies that skip work: samples that need not be trained, and updates of stale rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import all_samples
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.policy.protocol import Policy
from adaptive_rec.tracking.hashes import hash_rows

if TYPE_CHECKING:  # it loads Numba, which naming a policy does not need
    from adaptive_rec.classify import ClassifiedBatch


@dataclass(frozen=True)
class BatchView:
    """One mini-batch as a policy sees it before its step."""

    step: int
    split: bool
    """Whether popular samples run as a micro-batch of their own."""
    knobs: Knobs
    work: ClassifiedBatch
    stale_U: NDArray[np.bool_]
    """Distinct rows that are hot and stale."""
    random: np.random.Generator
    """Seeded by the run's seed and the step, alike on all ranks; for what is drawn by sample or row see `draw_B` and `draw_U`."""

    @property
    def samples(self) -> int:
        return self.work.batch.size

    @property
    def popular_B(self) -> NDArray[np.bool_]:
        return self.work.popular_B

    @property
    def hot_U(self) -> NDArray[np.bool_]:
        return self.work.hot_U

    def draw_B(self) -> NDArray[np.float64]:
        """Draw a number in [0, 1) for each sample of the whole batch, and return those of this part of it."""
        batch = self.work.batch
        drawn = self.random.random(batch.samples_of_all_ranks)
        return drawn[batch.first_sample : batch.first_sample + batch.size]

    def draw_U(self) -> NDArray[np.float64]:
        """Draw a number in [0, 1) for each distinct row, the same on every rank that reads it."""
        salt = self.random.integers(0, 2**64, dtype=np.uint64)
        return (hash_rows(self.work.distinct_U, salt) >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True)
class StepPlan:
    """How one mini-batch runs. The loss is a mean over the samples *before* skipping, by their weights."""

    micro_batches: tuple[NDArray[np.int64], ...]
    """Sample numbers of each micro-batch; a sample in none of them is skipped."""
    weight_B: NDArray[np.float64] | None = None
    """Loss weight of each sample; None weighs all of them 1."""
    frozen_U: NDArray[np.bool_] | None = None
    """Distinct rows whose update is skipped."""


@dataclass(frozen=True)
class MovementView:
    """The movement of the hot rows at the end of a window. Slots of all pools stand in one line (H)."""

    knobs: Knobs
    stale_H: NDArray[np.bool_]
    """Present class of each slot."""
    movement_H: NDArray[np.float64]
    """Movement by the rule `stale_metric` over the window's probe steps. Infinite where it is unknown: fewer than
    `min_probe_touches` of them, or less than `min_touch_ratio`, touched the row."""
    touches_H: NDArray[np.int64]
    """Probe steps that touched the row; 0 where its movement is unknown."""
    sample_movement_L: NDArray[np.float64]
    """Movement of every lookup of some popular samples of the window's probe steps, sample after sample."""
    sample_offsets: NDArray[np.int64]
    skipped_ratio: float
    """Share that the window really skipped: of popular samples, or of hot row updates under `freeze`."""
    sample_stale_L: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    """Whether each of the lookups in `sample_movement_L` was of a stale row; empty unless the policy reads it
    (`SkippingPolicy.reads_stale_lookups`)."""


@dataclass(frozen=True)
class Staleness:
    """The stale class of every slot for the next window, and the threshold that made it."""

    stale_H: NDArray[np.bool_]
    threshold: float


class SkippingPolicy(Policy):
    """Base of policies that plan steps and may skip: judges which hot rows are stale, and plans each mini-batch."""

    exact: ClassVar[bool] = False
    tracks_movement: ClassVar[bool] = True
    """Whether the movement of hot rows is measured, and `find_stale` is called at the end of each window."""
    guards_quality: ClassVar[bool] = False
    """Whether `plan` is called only where paired trials have shown what that costs; all other steps are trained in full."""

    def reads_stale_lookups(self, knobs: Knobs) -> bool:
        """Return whether `find_stale` reads `MovementView.sample_stale_L`, which costs several processes another message."""
        return False

    def find_stale(self, view: MovementView) -> Staleness:
        """Return which hot rows are stale until the next window ends."""
        return Staleness(np.zeros_like(view.stale_H), 0.0)

    def plan(self, view: BatchView) -> StepPlan:
        """Return how a mini-batch runs. Not called on probe steps, which train and update everything. In a trial it is called for
        a twin of the run."""
        return StepPlan(whole_or_split(view))


def plan_step(policy: Policy, view: BatchView, whole: bool = False) -> StepPlan:
    """Plan a mini-batch: as a policy that skips says, or in full where it is to be `whole` and under other policies."""
    if isinstance(policy, SkippingPolicy) and not whole:
        return policy.plan(view)
    if view.samples and not view.split:
        return StepPlan((all_samples(view.samples),))
    return StepPlan(whole_or_split(view))


def weigh(plan: StepPlan, weights_B: NDArray[np.float32] | None) -> StepPlan:
    """Return a plan in which samples count by their own weights too. A sample of weight 0 is not trained, and its rows are not
    touched, as if it were not there."""
    if weights_B is None:
        return plan
    micro_batches, counts_B = plan.micro_batches, weights_B > 0
    if not counts_B.all():
        counted = (samples_S[counts_B[samples_S]] for samples_S in micro_batches)
        micro_batches = tuple(samples_S for samples_S in counted if len(samples_S))
    weight_B = weights_B.astype(np.float64)
    return replace(plan, micro_batches=micro_batches, weight_B=weight_B if plan.weight_B is None else weight_B * plan.weight_B)


def whole_or_split(view: BatchView, keep_B: NDArray[np.bool_] | None = None) -> tuple[NDArray[np.int64], ...]:
    """Return micro-batches of the kept samples: one, or popular samples first and then the others."""
    keep_B = np.ones(view.samples, dtype=bool) if keep_B is None else keep_B
    parts = (keep_B & view.popular_B, keep_B & ~view.popular_B) if view.split else (keep_B,)
    chosen = (np.flatnonzero(part) for part in parts)
    return tuple(samples for samples in chosen if len(samples))


def kept_samples(plan: StepPlan, size: int) -> NDArray[np.bool_]:
    """Return which samples of a batch a plan trains."""
    kept_B = np.zeros(size, dtype=np.bool_)
    for samples_S in plan.micro_batches:
        kept_B[samples_S] = True
    return kept_B

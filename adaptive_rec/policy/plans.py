"""Step plans that leave out popular samples, for the policies that do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.policy.skipping import BatchView, StepPlan, kept_samples, whole_or_split

if TYPE_CHECKING:  # it loads Numba, which naming a policy does not need
    from adaptive_rec.classify import ClassifiedBatch


def skip_samples(view: BatchView, skippable_B: NDArray[np.bool_]) -> StepPlan:
    """Drop the skippable samples, or keep some of them at a weight that leaves the expected gradient as it was."""
    if view.knobs.action == "drop":
        return StepPlan(whole_or_split(view, ~skippable_B))
    return thin(view, skippable_B, view.knobs.keep_probability)


def thin(view: BatchView, skippable_B: NDArray[np.bool_], chance: float) -> StepPlan:
    """Train the skippable samples with some chance, at weight 1/chance."""
    keep_B = ~skippable_B | (view.draw_B() < chance)
    return StepPlan(whole_or_split(view, keep_B), weight_B=np.where(skippable_B, 1 / chance, 1.0))


def share_to_mark(knobs: Knobs) -> float:
    """Return the share to mark so that `target_skip_ratio` is skipped, given that probe steps skip nothing."""
    return min(1.0, knobs.target_skip_ratio / max(1e-9, share_skipped(knobs, 1.0)))


def share_skipped(knobs: Knobs, marked: float) -> float:
    """Return the share that is skipped where a share is marked."""
    kept = knobs.keep_probability if knobs.action == "subsample" else 0.0
    return (1 - knobs.probe_ratio) * (1 - kept) * marked


def count_skipped(work: ClassifiedBatch, plan: StepPlan, knobs: Knobs) -> tuple[int, int]:
    """Return what a plan skips of a batch, and of how many: samples, or updates of rows under `freeze`. Samples of weight 0 do
    not count."""
    if knobs.action == "freeze":
        return int(0 if plan.frozen_U is None else plan.frozen_U.sum()), len(work.distinct_U)
    weights_B, size = work.batch.weights_B, work.batch.size
    whole = size if weights_B is None else int(np.count_nonzero(weights_B))
    return whole - int(kept_samples(plan, size).sum()), whole


def plan_at_random(work: ClassifiedBatch, plan: StepPlan, whole: StepPlan, random: np.random.Generator) -> StepPlan:
    """Return a plan that skips as much of the same kind as another one, drawn at random. `whole` trains everything."""
    if plan.frozen_U is not None:
        hot = np.flatnonzero(work.hot_U)
        frozen_U = np.zeros(len(work.hot_U), dtype=np.bool_)
        frozen_U[random.permutation(hot)[: int(plan.frozen_U.sum())]] = True
        return replace(whole, frozen_U=frozen_U)
    size = work.batch.size
    trained_B = kept_samples(whole, size)
    left_B, weight_B = trained_B & ~kept_samples(plan, size), np.ones(size) if plan.weight_B is None else plan.weight_B
    popular = np.flatnonzero(trained_B & work.popular_B)
    drawn = random.permutation(popular)
    whole_B = np.ones(size) if whole.weight_B is None else whole.weight_B
    touched = np.flatnonzero(left_B | (weight_B != whole_B))  # samples that were skipped, or kept at a higher weight
    touched = touched[: len(drawn)]
    other, factor = drawn[: len(touched)], weight_B[touched] / whole_B[touched]
    weights = whole_B.copy()
    weights[other] *= factor
    keep_B = trained_B.copy()
    keep_B[other] = ~left_B[touched]
    kept = tuple(samples_S[keep_B[samples_S]] for samples_S in whole.micro_batches)
    return replace(whole, micro_batches=kept, weight_B=weights)

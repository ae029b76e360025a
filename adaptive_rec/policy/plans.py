"""Step plans that leave out popular samples, for the policies that do."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.policy.skipping import BatchView, StepPlan, whole_or_split


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

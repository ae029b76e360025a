"""Slipstream: Hotline that skips the work of stale rows, which are hot rows that no longer move.

Paper: Ebrahimzadeh Maboud et al., "Efficient Training of Recommender Models through Popularity-Based Skipping of Stale
Embeddings" (arXiv 2404.04270). As there: a row's movement is that of its largest component, a threshold is searched so that a
wanted share is skipped, and a sample is skipped when at least alpha of its lookups are stale. Better here: hot rows are found
online; a row that was hardly touched is unknown, not stale; staleness is judged in every window, on probe steps that skip
nothing, so a row whose target moves becomes fresh again. The paper's text freezes rows (`freeze`), its released code drops
samples (`drop`); `subsample` keeps some of these samples at a higher weight, so the expected gradient stays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.policies.hotline import Hotline
from adaptive_rec.policy import BatchView, MovementView, SkippingPolicy, Staleness, StepPlan, whole_or_split
from adaptive_rec.policy.plans import share_to_mark, skip_samples
from adaptive_rec.saved import Saved
from adaptive_rec.tracking.stale import (
    critical_movement,
    stale_lookups_needed,
    threshold_for_samples,
    threshold_for_updates,
)


class Slipstream(Hotline, SkippingPolicy):
    name = "slipstream"

    def __init__(self) -> None:
        self._correction = 0.0

    def state(self) -> dict[str, Any]:
        return {"correction": self._correction}

    def set_state(self, found: Saved) -> None:
        self._correction = found.number("correction")

    def find_stale(self, view: MovementView) -> Staleness:
        threshold = view.knobs.stale_threshold
        if threshold == "search":
            threshold = self._search(view) if view.knobs.target_skip_ratio else 0.0
        return Staleness(view.movement_H < threshold, float(threshold))

    def _search(self, view: MovementView) -> float:
        """Return the threshold that would have marked the wanted share of the rows or samples whose movement is known.

        The share that past windows really skipped corrects it, up to twice the target and no further: rows that still move are
        not called stale to make up for rows whose movement is unknown.
        """
        target = view.knobs.target_skip_ratio
        if view.stale_H.any():
            self._correction = float(np.clip(self._correction + target - self.skipped_share(view), -target, target))
        elif self._correction < 0:
            self._correction /= 2  # the share was so small that nothing was skipped
        share = min(1.0, share_to_mark(view.knobs) + self._correction)
        if view.knobs.action == "freeze":
            return threshold_for_updates(view.movement_H, view.touches_H, share)
        critical_S = critical_movement(view.sample_movement_L, view.sample_offsets, view.knobs.alpha)
        return threshold_for_samples(critical_S, share)

    def skipped_share(self, view: MovementView) -> float:
        """Return the share that the present stale rows have led to skip, as `target_skip_ratio` counts it."""
        return view.skipped_ratio

    def plan(self, view: BatchView) -> StepPlan:
        if view.knobs.action == "freeze":
            return StepPlan(whole_or_split(view), frozen_U=view.stale_U)
        return skip_samples(view, self.skippable(view))

    def skippable(self, view: BatchView) -> NDArray[np.bool_]:
        """Return the popular samples that have at least alpha stale lookups."""
        stale_B = view.work.count_flagged(view.stale_U)
        lookups_B = view.work.lookups_B
        return view.popular_B & (lookups_B > 0) & (stale_B >= stale_lookups_needed(lookups_B, view.knobs.alpha))


POLICY = Slipstream

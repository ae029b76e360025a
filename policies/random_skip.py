"""The control: what Slipstream skips by staleness, skipped at random. A staleness rule is worth having where it beats this."""

from __future__ import annotations

from adaptive_rec.policies.hotline import Hotline
from adaptive_rec.policies.slipstream import share_to_mark, skip_samples
from adaptive_rec.policy import BatchView, StepPlan, whole_or_split


class RandomSkip(Hotline):
    name = "random_skip"
    exact = False
    tracks_movement = (
        True  # unused, but takes the same share of the budget: both control and rule have the same hot rows
    )

    def plan(self, view: BatchView) -> StepPlan:
        share = share_to_mark(view.knobs)
        if view.knobs.action == "freeze":
            return StepPlan(whole_or_split(view), frozen_U=view.hot_U & (view.random.random(len(view.hot_U)) < share))
        return skip_samples(view, view.popular_B & (view.random.random(view.samples) < share))


POLICY = RandomSkip

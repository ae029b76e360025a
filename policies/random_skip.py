"""Random skip: the control for staleness. It skips as much as Slipstream, but at random; a staleness rule must beat it."""

from __future__ import annotations

from adaptive_rec.policies.hotline import Hotline
from adaptive_rec.policy import BatchView, SkippingPolicy, StepPlan, whole_or_split
from adaptive_rec.policy.plans import share_to_mark, skip_samples


class RandomSkip(Hotline, SkippingPolicy):
    """Measures movement and does not use it, so that control and rule pay for it alike and have the same hot rows."""

    name = "random_skip"

    def plan(self, view: BatchView) -> StepPlan:
        share = share_to_mark(view.knobs)
        if view.knobs.action == "freeze":
            return StepPlan(whole_or_split(view), frozen_U=view.hot_U & (view.draw_U() < share))
        return skip_samples(view, view.popular_B & (view.draw_B() < share))


POLICY = RandomSkip

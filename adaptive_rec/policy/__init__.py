"""Plans steps and placements: what a policy sees, what it answers, and how it is found by name."""

from adaptive_rec.policy.arranging import ArrangingPolicy, Outcome, Phase, StreamView
from adaptive_rec.policy.protocol import HOLD, AccessView, Policy, Wish, fills_budget
from adaptive_rec.policy.skipping import (
    BatchView,
    MovementView,
    QualityView,
    SkippingPolicy,
    Staleness,
    StepPlan,
    Verdict,
    whole_or_split,
)

__all__ = [
    "AccessView",
    "ArrangingPolicy",
    "BatchView",
    "HOLD",
    "MovementView",
    "Outcome",
    "Phase",
    "Policy",
    "QualityView",
    "SkippingPolicy",
    "Staleness",
    "StepPlan",
    "StreamView",
    "Verdict",
    "Wish",
    "fills_budget",
    "whole_or_split",
]

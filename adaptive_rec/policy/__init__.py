"""Plans steps and placements: what a policy sees, what it answers, and how it is found by name."""

from adaptive_rec.policy.arranging import ArrangingPolicy, Outcome, Phase, StreamView
from adaptive_rec.policy.protocol import HOLD, AccessView, Policy, Wish, fills_budget
from adaptive_rec.policy.skipping import (
    BatchView,
    MovementView,
    SkippingPolicy,
    Staleness,
    StepPlan,
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
    "SkippingPolicy",
    "Staleness",
    "StepPlan",
    "StreamView",
    "Wish",
    "fills_budget",
    "whole_or_split",
]

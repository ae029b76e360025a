"""Plans steps and placements: what a policy sees and answers, and how a policy is found by its name."""

from adaptive_rec.policy.protocol import (
    HOLD,
    AccessView,
    BatchView,
    MovementView,
    Outcome,
    Phase,
    Policy,
    QualityView,
    Staleness,
    StepPlan,
    StreamView,
    Verdict,
    Wish,
    fills_budget,
    whole_or_split,
)

__all__ = [
    "AccessView",
    "BatchView",
    "HOLD",
    "MovementView",
    "Outcome",
    "Phase",
    "Policy",
    "QualityView",
    "Staleness",
    "StepPlan",
    "StreamView",
    "Verdict",
    "Wish",
    "fills_budget",
    "whole_or_split",
]

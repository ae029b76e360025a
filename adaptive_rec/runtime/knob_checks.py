"""Whether a run may change to other knobs while it trains."""

from __future__ import annotations

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.errors import ConflictError
from adaptive_rec.policy import Policy
from adaptive_rec.policy.find import load_policy, why_not_live
from adaptive_rec.units import exact_size


def check_policy(knobs: Knobs, present: Policy) -> None:
    """Raise ConfigError or ConflictError where a run under `present` may not change to the policy that these knobs name."""
    if reason := why_not_live(load_policy(knobs.policy), present):
        raise ConflictError(reason)


def check_memory(host_memory: int, budget_bytes: int) -> None:
    """Raise ConflictError where hot rows would take more of host memory than rows may."""
    if budget_bytes > host_memory:
        raise ConflictError(
            f"hot rows must fit in run.host_memory={exact_size(host_memory)}, these knobs give them {exact_size(budget_bytes)}"
        )

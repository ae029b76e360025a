"""Whether a run may change to other knobs while it trains."""

from __future__ import annotations

from adaptive_rec.config.knobs import KnobError, Knobs
from adaptive_rec.errors import ConflictError
from adaptive_rec.policy import Policy
from adaptive_rec.policy.find import load_policy, why_not_live
from adaptive_rec.runtime.capabilities import check_features, of_knobs
from adaptive_rec.units import exact_size, whole


def check_change(before: Knobs, after: Knobs, policy: Policy, raw: bool, host_memory: int, rows_bytes: int) -> None:
    """Raise ConfigError or ConflictError where training under `policy` may not change to other knobs. `raw`: ids are raw keys;
    `host_memory`: the bytes of host memory that hot rows may take, 0 where there is no limit; `rows_bytes`: what all rows would
    take as hot ones."""
    if after.policy != before.policy:
        check_policy(after, policy)
    new = load_policy(after.policy)
    check_features(of_knobs(after, new, raw))
    if host_memory:
        check_memory(host_memory, new.budget_bytes(after, rows_bytes))


def check_admit_after(before: Knobs, after: Knobs, policy: Policy, raw: bool) -> None:
    """Raise ConfigError where the knob that is for raw keys changes though ids are rows, or have their rows already."""
    if after.admit_after == before.admit_after or (raw and not policy.reorders_stream):
        return
    why = f"policy {policy.name} gives ids their rows before it trains" if raw else "the ids of this run are rows (data.ids)"
    rule = f"must be {before.admit_after}, as {why}, got {after.admit_after}"
    raise KnobError(f"knobs.admit_after {rule}", [("admit_after", rule)])


def check_policy(knobs: Knobs, present: Policy) -> None:
    """Raise ConfigError or ConflictError where a run under `present` may not change to the policy that these knobs name."""
    if reason := why_not_live(load_policy(knobs.policy), present):
        raise ConflictError(reason)


def check_memory(host_memory: int, budget_bytes: int) -> None:
    """Raise ConflictError where hot rows would take more of host memory than rows may."""
    if budget_bytes > host_memory:
        raise ConflictError(
            f"hot rows must fit in run.host_memory={exact_size(host_memory)}, these knobs give them "
            f"{whole(budget_bytes)} bytes"
        )

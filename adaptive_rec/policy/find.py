"""Which policies there are, how one is found by its name, and when a run may go over to it."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from adaptive_rec.config.plugins import find_plugin
from adaptive_rec.errors import ConfigError
from adaptive_rec.policy import Policy

BUILT_IN = (
    "adaptive", "cdlrm", "device_only", "fae", "fae_released", "hotline", "hybrid", "oracle", "random_skip", "slipstream",
    "slipstream_released", "xdl",
)  # fmt: skip


PLACES = {name: f"adaptive_rec.policies.{name}:POLICY" for name in BUILT_IN}


def load_policy(name: str) -> Policy:
    """Find a policy by built-in name, by entry point (group ``adaptive_rec.policies``), or as ``package.module:Class``."""
    found = find_plugin("knobs.policy", name, PLACES, "adaptive_rec.policies")
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise ConfigError(f"knobs.policy must name a subclass of adaptive_rec.policy.Policy, got {name!r}")
    try:
        return found()
    except Exception as error:  # likewise
        raise ConfigError(f"knobs.policy {name} cannot be made: {type(error).__name__}: {error}") from error


def why_not_live(policy: Policy, present: Policy) -> str:
    """Why a run under `present` cannot go over to a policy while it trains; empty where it can."""
    if present.reorders_stream:
        return f"the run's policy {present.name} reorders the stream, so it stays to the end"
    if policy.arranges_stream:
        return f"policy {policy.name} arranges the stream, so it is chosen before a run, not while it trains"
    if policy.request_per_table and not present.request_per_table:
        return f"policy {policy.name} keeps every table by itself, so it is chosen before a run, not while it trains"
    return ""


def policy_choices(present: str) -> list[dict[str, Any]]:
    """Policies by name, with whether a run may go over to them while it trains, and why not; the present one included."""
    plugins = [point.name for point in entry_points(group="adaptive_rec.policies")]
    found, now = [], load_policy(present)
    for name in dict.fromkeys((*BUILT_IN, *plugins, present)):
        try:
            reason = why_not_live(load_policy(name), now) if name != present else ""
        except ConfigError as error:
            reason = str(error)
        found.append({"name": name, "live": not reason, "reason": reason})
    return found

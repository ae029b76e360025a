"""Finds policies by name, and says which of them a run may change to while it trains."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any, NamedTuple

from adaptive_rec.config.trust import find_plugin
from adaptive_rec.errors import ConfigError
from adaptive_rec.policy import ArrangingPolicy, Policy, SkippingPolicy

BUILT_IN = (
    "adaptive", "cdlrm", "device_only", "fae", "fae_released", "hotline", "hybrid", "oracle", "random_skip", "slipstream",
    "slipstream_released", "xdl",
)  # fmt: skip

ARRANGING = ("cdlrm", "fae", "fae_released", "oracle", "slipstream_released")
"""Those of them that arrange the stream, and those below that need one pool for each table, named so that a list of policies
loads none."""
PER_TABLE = ("xdl",)

PLACES = {name: f"adaptive_rec.policies.{name}:POLICY" for name in BUILT_IN}

SKIPPING_METHODS = ("find_stale", "plan")


def load_policy(name: str) -> Policy:
    """Find a policy by built-in name, by entry point (group ``adaptive_rec.policies``), or as ``package.module:Class``."""
    found = find_plugin("knobs.policy", name, PLACES, "adaptive_rec.policies")
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise ConfigError(f"knobs.policy must name a subclass of adaptive_rec.policy.Policy, got {name!r}")
    if not isinstance(own := getattr(found, "name", None), str) or not own:
        raise ConfigError(
            f'knobs.policy must name a class with a `name`, such as name = "mine", {name} has '
            + ("none" if own is None else repr(own))
        )
    try:
        return _with_bases(found)()
    except Exception as error:  # whatever a user's class raises
        raise ConfigError(f"knobs.policy {name} cannot be made: {type(error).__name__}: {error}") from error


def _with_bases(found: type[Policy]) -> type[Policy]:
    """Add the base that a class lacks which subclasses `Policy` alone, as all did before there were several. Its flags stay."""
    skips = any(hasattr(found, method) for method in SKIPPING_METHODS)
    lacking: list[type[Policy]] = []
    if skips and not issubclass(found, SkippingPolicy):
        lacking.append(SkippingPolicy)
    if found.arranges_stream and not issubclass(found, ArrangingPolicy):
        lacking.append(ArrangingPolicy)
    if not lacking:
        return found
    own = {
        name: getattr(found, name) for name in ("__module__", "__doc__", "exact", "tracks_movement", "arranges_stream")
    }
    return type(found.__name__, (found, *lacking), own)


class Listed(NamedTuple):
    """What a list says of a built-in policy."""

    name: str
    arranges_stream: bool
    request_per_table: bool


def why_not_live(policy: Policy | Listed, present: Policy) -> str:
    """Return why a run under `present` cannot change to a policy while it trains; empty where it can."""
    if present.reorders_stream:
        return f"the run's policy {present.name} reorders the stream, so it stays to the end"
    if policy.arranges_stream:
        return f"policy {policy.name} arranges the stream, so it is chosen before a run, not while it trains"
    if policy.request_per_table and not present.request_per_table:
        return f"policy {policy.name} needs one pool for each table, so it can only be set when a run starts"
    return ""


def policy_choices(present: str) -> list[dict[str, Any]]:
    """Return the policies by name, the present one included: whether a run may change to each while it trains, and why not."""
    plugins = [point.name for point in entry_points(group="adaptive_rec.policies")]
    found, now = [], load_policy(present)
    built_in = {name: Listed(name, name in ARRANGING, name in PER_TABLE) for name in BUILT_IN}
    for name in dict.fromkeys((*BUILT_IN, *plugins, present)):
        try:
            reason = why_not_live(built_in.get(name) or load_policy(name), now) if name != present else ""
        except ConfigError as error:
            reason = str(error)
        found.append({"name": name, "live": not reason, "reason": reason})
    return found

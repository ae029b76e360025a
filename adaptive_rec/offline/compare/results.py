"""A comparison's results: every run, each policy over the seeds, and its paired differences from the baseline."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from adaptive_rec.offline.compare.measures import (
    TARGET_SLACK_AUC,
    TARGETS,
    judged_in,
    measures_in,
    read_figures,
    seconds_to,
)
from adaptive_rec.offline.compare.plan import Plan, digest_values
from adaptive_rec.offline.compare.processes import finished, read_outcome
from adaptive_rec.offline.compare.statistics import PairedDifference, difference, holm, interval
from adaptive_rec.policy.find import load_policy
from adaptive_rec.system.version import __version__

BEYOND_NOISE = 0.05
"""Adjusted p below which a difference counts as beyond noise."""
SCATTERED_RATIO = 1.25
"""Ratio of a policy's slowest run to its fastest from which on other work disturbed it: its times are not compared."""

Results = dict[str, Any]


def collect_results(plan: Plan, conditions: Mapping[str, Any], folder: Path) -> Results:
    """Return the results of the runs in `folder`. Runs that are not made yet are left out."""
    runs, failed, codes = [], [], set()
    mark = digest_values(conditions)
    for order, turn in enumerate(plan.turns(), start=1):
        place = folder / turn.name
        about = {"policy": turn.policy, "seed": turn.seed, "order": order, "directory": f"{folder.name}/{turn.name}"}
        outcome = finished(place, mark)
        if outcome:
            runs.append({**about, "started": outcome.started, **read_figures(place, outcome)})
            codes.add(outcome.code)
        elif (ended := read_outcome(place)) and ended.exit_code and ended.conditions == mark:
            failed.append(
                {**about, "why": ended.why, "seconds": ended.process_seconds, "last_lines": list(ended.last_lines)}
            )
    return {
        "version": __version__,
        "made": time.time(),
        "baseline": plan.baseline,
        "policies": list(plan.policies),
        "kinds": {turn.policy: "varied" if turn.variant else kind(turn.policy) for turn in plan.turns()},
        "variants": {variant.name: variant.text for variant in plan.variants},
        "seeds": list(plan.seeds),
        "conditions": dict(conditions),
        "states_of_the_code": len(codes),
        "planned_runs": len(plan.turns()),
        "target_slack_auc": TARGET_SLACK_AUC,
        **summed(runs, failed, plan.policies, plan.baseline),
        "runs": runs,
        "failed": failed,
    }


def _count_whole_seeds(runs: Sequence[dict[str, Any]], failed: Sequence[Mapping[str, Any]], policies: int) -> None:
    """Mark the runs that count: those of seeds that all policies have finished; all runs while there is no such seed.

    Otherwise means over different seeds would differ by the seeds.
    """
    through = [run["seed"] for run in (*runs, *failed)]
    whole = {run["seed"] for run in runs if through.count(run["seed"]) == policies}
    for run in runs:
        run["counted"] = run["seed"] in whole or not whole


def summed(
    runs: Sequence[dict[str, Any]], failed: Sequence[Mapping[str, Any]], policies: Sequence[str], baseline: str
) -> dict[str, Any]:
    """Return each policy's means and differences from the baseline. Adds its target to each run, and whether it counts."""
    _add_times_to_target(runs, baseline)
    _count_whole_seeds(runs, failed, len(policies))
    counted = [run for run in runs if run["counted"]]
    return {
        "over_seeds": {policy: over_seeds([run for run in counted if run["policy"] == policy]) for policy in policies},
        "differences": paired_differences(counted, policies, baseline),
    }


def kind(policy: str) -> str:
    """Return exact (plain steps on the same batches), reordered (plain steps, every sample, another order) or skips."""
    found = load_policy(policy)
    if not found.exact:
        return "skips"
    return "reordered" if found.reorders_stream else "exact"


def _add_times_to_target(runs: Sequence[dict[str, Any]], baseline: str) -> None:
    """Add to each run the time to the baseline's final AUC with the same seed, less the slack; none where each evaluation is of
    another window, whose AUCs say as much of the windows as of the model."""
    ends = {run["seed"]: run["auc"] for run in runs if run["policy"] == baseline and not run.get("windows")}
    for run in runs:
        end = ends.get(run["seed"])
        run["target_auc"] = None if end is None else end - TARGET_SLACK_AUC
        for measure in TARGETS:
            reached = None if end is None else seconds_to(run["target_auc"], run["evaluations"], measure.clock)
            run[measure.key] = reached


def over_seeds(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return each figure's mean with its interval, and how many of the runs with a target reached it."""
    found: dict[str, Any] = {"runs": len(runs)}
    for measure in measures_in(runs):
        values = [run[measure.key] for run in runs if run.get(measure.key) is not None]
        complete = len(values) == len(runs) or measure not in TARGETS
        found[measure.key] = asdict(interval(values)) if values and complete else None
    found["reached"] = sum(run["seconds_to_target"] is not None for run in runs)
    found["targets"] = sum(run["target_auc"] is not None for run in runs)
    stages = {name: None for run in runs for name in run["stages"]}
    found["stages"] = {name: sum(run["stages"].get(name, 0.0) for run in runs) / len(runs) for name in stages}
    return found


def paired_differences(runs: Sequence[Mapping[str, Any]], policies: Sequence[str], baseline: str) -> dict[str, Any]:
    """Return the differences of each policy's judged figures from the baseline's with the same seeds.

    `chance` is p, `adjusted` is p adjusted for the number of policies; `beyond_noise` is None where there are too few seeds, or
    times of the policy or the baseline scatter.
    """
    at = {(run["policy"], run["seed"]): run for run in runs}
    others = [policy for policy in policies if policy != baseline]
    found: dict[str, Any] = {policy: {} for policy in others}
    for measure in judged_in(runs):
        scatter = {policy for policy in policies if measure.clock and scatters(runs, policy, measure.clock)}
        paired: dict[str, PairedDifference] = {}
        for policy in others:
            values: list[tuple[Any, Any]] = [
                (run.get(measure.key), at[baseline, run["seed"]].get(measure.key))
                for run in runs
                if run["policy"] == policy and (baseline, run["seed"]) in at
            ]
            if values and all(one is not None and other is not None for one, other in values):
                ours, theirs = [one for one, _ in values], [other for _, other in values]
                paired[policy] = difference(ours, theirs, ratio=measure.as_share)
        for (policy, one), chance in zip(paired.items(), holm([each.chance for each in paired.values()]), strict=True):
            scattered = bool(scatter & {policy, baseline})
            verdict = None if chance is None or scattered else chance < BEYOND_NOISE
            more = {"adjusted": chance, "beyond_noise": verdict, "scattered": scattered}
            found[policy][measure.key] = {**asdict(one), **more}
    return found


def scatters(runs: Sequence[Mapping[str, Any]], policy: str, clock: str) -> bool:
    """Return whether a policy's runs took very different times by a clock."""
    return times_scatter([run[clock] for run in runs if run["policy"] == policy and run[clock] is not None])


def times_scatter(seconds: Sequence[float]) -> bool:
    """Return whether runs of the same policy took very different times."""
    return len(seconds) > 1 and max(seconds) >= SCATTERED_RATIO * min(seconds)

"""Runs that are made up, and the results that are put together of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest

from adaptive_rec.config.tree import load_config
from adaptive_rec.offline.compare import results
from adaptive_rec.offline.compare.measures import MEASURES
from adaptive_rec.offline.compare.plan import conditions

QUICK = ["run.steps=40", "run.threads=1", "run.device=cpu", "knobs.report_every=5"]


def curve(*points: tuple[float, float]) -> list[dict[str, float]]:
    return [
        {"step": n, "seconds": s, "samples_seen": 100 * n, "auc": a, "logloss": 0.5} for n, (s, a) in enumerate(points)
    ]


def made_up(policy: str, seed: int, seconds: float, auc: float) -> dict[str, Any]:
    figures: dict[str, Any] = {measure.key: None if measure.of_windows else 1.0 for measure in MEASURES}
    figures |= {"seconds": seconds, "processor_seconds": None, "auc": auc, "logloss": 1 - auc, "calibration_error": 0.01}
    place = {"policy": policy, "seed": seed, "order": seed, "directory": f"runs/{policy}-seed{seed}"}
    evaluations = curve((seconds / 2, auc - 0.1), (seconds, auc))
    more = {
        "steps": 10,
        "device": "cpu",
        "held_out_samples": 100,
        "stages": {"execute": seconds, "other": 0.0},
        "evaluations": evaluations,
    }
    return {**figures, **place, **more}


def collected(
    runs: list[dict[str, Any]],
    policies: list[str],
    seeds: int = 3,
    exact: Collection[str] = ("hybrid",),
    failed: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    return {
        "version": "1", "made": 0.0, "baseline": "hybrid", "policies": policies, "seeds": list(range(1, seeds + 1)),
        "kinds": {policy: "exact" if policy in exact else "skips" for policy in policies},
        "conditions": conditions(load_config("tiny", {}, QUICK)), "variants": {}, "states_of_the_code": 1,
        "planned_runs": len(runs), "target_slack_auc": 0.0005,
        **results.summed(runs, failed, policies, "hybrid"), "runs": runs, "failed": list(failed),
    }  # fmt: skip


@pytest.fixture
def four_policies() -> dict[str, Any]:
    """quick is faster, poor is faster and worse, like is hybrid with noise."""
    runs = []
    for seed, noise in ((1, -0.010), (2, 0.012), (3, -0.004)):
        runs.append(made_up("hybrid", seed, 100 + 200 * noise, 0.70 + noise))
        runs.append(made_up("quick", seed, 80 + 150 * noise, 0.70 + noise + 0.0001 * seed - 0.0002))
        runs.append(made_up("poor", seed, 60 + 90 * noise, 0.68 + noise + 0.001 * noise))
        runs.append(made_up("like", seed, 100 - 100 * noise, 0.70 + noise * 1.05))
    return collected(runs, ["hybrid", "quick", "poor", "like"])

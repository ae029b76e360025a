"""The result of a run, from its first step on, as ``summary.json`` keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_rec.data.weights import weights_of
from adaptive_rec.live.recorder import LoopTime
from adaptive_rec.live.telemetry import Evaluation, ratio, weight_of_losses
from adaptive_rec.memory.parts import peak_bytes
from adaptive_rec.run.parent import ParentRun
from adaptive_rec.runtime.events import stopped_early
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.system.regular_files import read_json


def summary_of(
    runtime: Runtime, resumed_at_step: int, took: LoopTime, evaluation: Evaluation | None, parent: ParentRun | None = None
) -> dict[str, Any]:
    """Summarize a run whose loop has ended and `took` this long. Of several processes each must call it. `parent`: where a
    branch comes from, whose seconds are not its own."""
    config, store, totals = runtime.config, runtime.store, runtime.reports.totals()
    device = store.hot.tier
    sizes = np.array([device.hot_rows, device.stale_rows, store.hot.bytes, store.path.staging_bytes, store.path.peak_bytes])
    newest = runtime.mailbox.newest
    stages: Mapping[str, float] = runtime.times.seconds
    samples, seconds, processor_seconds = totals["samples_seen"], *took
    if parent is not None:
        seconds, samples = seconds - parent.seconds, samples - parent.samples_seen
        processor_seconds -= parent.processor_seconds
        stages = {name: value - parent.seconds_by_stage.get(name, 0.0) for name, value in stages.items()}
    hot_rows, stale_rows, tier_bytes, staging_bytes, device_peak_bytes = store.group.total(sizes).tolist()
    return {
        "policy": runtime.knobs.policy,
        "action": runtime.knobs.action if not runtime.policy.exact else None,
        "seed": config.run.seed,
        "device": str(runtime.device),
        "precision": config.run.precision,
        "steps": runtime.step_number,
        "steps_total": runtime.steps_total,
        "resumed_at_step": resumed_at_step,
        "parent": parent.place if parent else None,
        "samples_seen": totals["samples_seen"],
        "samples_trained": totals["samples_trained"],
        "samples_skipped": totals["samples_seen"] - totals["samples_trained"],
        "malformed_rows": totals["malformed_rows"],
        "row_updates": totals["row_updates"],
        "row_updates_skipped": totals["row_updates_skipped"],
        "seconds": seconds,
        "processor_seconds": processor_seconds,
        "samples_per_second": ratio(samples, seconds),
        "train_logloss": ratio(totals["loss_sum"], weight_of_losses(totals)),
        **_weights(runtime, totals),
        "followed": runtime.followed is not None,
        **scores_of(evaluation),
        "eval_mode": config.eval.mode,
        "windows": runtime.state.windows.summary(),
        "best_eval": asdict(best) if (best := runtime.state.trend.best) else None,
        "best_metric": runtime.state.trend.metric.name,
        "stopped_early": stopped_early(runtime.state).text if runtime.state.stopped_early else None,
        "slice_trained": runtime.state.is_finished_model,
        "epochs": runtime.state.passes,
        "hot_lookup_ratio": ratio(totals["lookups_hot"], totals["lookups"]),
        "popular_sample_ratio": ratio(totals["samples_popular"], totals["samples_seen"]),
        "hot_rows": hot_rows,
        "memory_rows": None if store.cold.memory is None else store.cold.memory.rows,
        "stale_rows": stale_rows,
        "total_rows": store.peers.batch_space.rows,
        "host_to_device_bytes": totals["host_to_device_bytes"],
        "device_to_host_bytes": totals["device_to_host_bytes"],
        "migrated_rows": totals["migrated_rows"],
        "device_tier_bytes": tier_bytes,
        "device_staging_bytes": staging_bytes,
        "device_peak_bytes": device_peak_bytes,
        "disk": store.cold.total_counts() | store.cold.total_sizes(),
        "keys": runtime.state.input.raw_ids.counts() if runtime.state.input.raw_ids else {},
        "peak_rss_bytes": peak_bytes(),
        "processes": store.group.ranks,
        "sent_bytes": dict(store.group.meter.sent_bytes),
        "ranks": [asdict(rank) for rank in newest.ranks] if newest else [],
        "seconds_by_stage": {name: round(value, 4) for name, value in stages.items()},
    }


def scores_of(evaluation: Evaluation | None) -> dict[str, Any]:
    """Return the figures of a run's last score, and the step of the model that has it."""
    if evaluation is None:
        return {"eval": None, "eval_step": None}
    return {"eval": evaluation.quality.as_dict(), "eval_step": evaluation.step}


def _weights(runtime: Runtime, totals: Mapping[str, float]) -> dict[str, Any]:
    """Return what weighted the samples of a run, and how much those trained weigh; nothing where all count alike."""
    facts = weights_of(runtime.source)
    trained = {"weight_trained": totals["weight_trained"]} if "weight_trained" in totals else {}
    return {} if facts is None else {"weights": facts.figures(), **trained}


def read_summary(path: Path, step: int) -> dict[str, Any]:
    """Return the summary of a run that ended at this step, with all there is to be said of it. Empty where there is none, or one
    without the score that a signal or an error prevented."""
    try:
        summary = read_json(path)
    except (OSError, ValueError):
        return {}
    whole = isinstance(summary, dict) and summary.get("steps") == step
    whole = whole and (summary.get("eval") is not None or summary.get("followed") is True)
    return dict(summary) if whole else {}

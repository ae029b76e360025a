"""The results of a replay as plain values, for the table, the page and ``simulate.json``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from adaptive_rec.config.tree import Config
from adaptive_rec.data.open import open_source
from adaptive_rec.data.source import Source
from adaptive_rec.embedding.device import all_rows_bytes
from adaptive_rec.errors import UsageError
from adaptive_rec.live.telemetry import ratio
from adaptive_rec.memory.rows import hot_row_bytes, policy_row_bytes
from adaptive_rec.offline.advice import room_bytes
from adaptive_rec.offline.forecast.hardware import Hardware
from adaptive_rec.offline.forecast.lane import Lane, StepCounts
from adaptive_rec.offline.forecast.passes import FirstSamples, Progress
from adaptive_rec.offline.forecast.predict import (
    Workload,
    cold_rows,
    disk_seconds,
    multiplications,
    predict_step_seconds,
    stages,
)
from adaptive_rec.offline.forecast.ranking import RowRanking, suggested_bytes
from adaptive_rec.offline.forecast.ranks import Processes, predicted
from adaptive_rec.offline.forecast.replay import Replayed, replay
from adaptive_rec.offline.forecast.sources import TraceSource
from adaptive_rec.placement import RowSpace
from adaptive_rec.policy import Policy
from adaptive_rec.policy.find import load_policy
from adaptive_rec.system.version import __version__
from adaptive_rec.units import parse_size

SHARES = ("1%", "3%", "10%", "30%")
"""Default budgets, in addition to the suggested and the configured one."""
MOST_POINTS = 60
"""The most points of a policy's course over the stream."""
SAME_RATIO = 0.01
"""Relative difference in multiplications up to which two dense parts count as equal."""


def replay_policies(
    config: Config,
    trace: Path | None,
    policies: Sequence[str],
    budgets: Sequence[str],
    hardware: Hardware | None,
    processes: Processes | None,
    progress: Progress,
) -> dict[str, Any]:
    """Replay the data of a configuration, or a raw trace, under policies and budgets.

    Without budgets, SHARES of all rows are replayed, the suggested and the configured one. Raises DataError and ConfigError as
    training would, and UsageError for text that is no budget.
    """
    source: Source = TraceSource(trace, config.model.embedding_dim) if trace else open_source(config)
    space = RowSpace.of(source.tables, source.features)
    everything = all_rows_bytes(space, hot_row_bytes(config, space, monitored=False))
    suggested = suggested_budget(config, source, space, progress)
    wanted = parse_budgets(budgets or default_budgets(config, suggested), everything)
    started = time.perf_counter()
    made = replay(config, source, policies, wanted, progress)
    seconds = time.perf_counter() - started
    first = next(iter(made.lanes.values())).total
    forward = multiplications(config, source, space) if hardware else 0.0
    return {
        "version": __version__,
        "data": {
            "source": str(trace or config.data.source),
            "samples": first.samples,
            "steps": first.steps,
            "lookups": first.lookups,
            "batch_size": config.run.batch_size,
            "seed": config.run.seed,
            "rows": space.rows,
            "tables": len(space.tables),
            "row_bytes": made.row_bytes,
            "monitored_row_bytes": hot_row_bytes(config, space, monitored=True),
            "all_rows_bytes": everything,
        },
        "window_steps": made.window_steps,
        "budgets": wanted,
        "configured_bytes": int(config.knobs.hot_budget_bytes),
        "host_memory_bytes": int(config.run.host_memory),
        "suggested_bytes": suggested,
        "everything_fits": everything <= room_bytes(config),
        "ceiling": made.ceiling,
        "hardware": hardware_with_note(hardware, config, forward) if hardware else None,
        "processes": predicted(config, source, processes, hardware, progress) if processes else None,
        "results": [
            result(config, source, made, name, budget, hardware, forward) for name in policies for budget in wanted
        ],
        "seconds": round(seconds, 3),
        "shared_seconds": round(made.shared_seconds, 3),
        "passes": made.passes,
    }


def suggested_budget(config: Config, source: Source, space: RowSpace, progress: Progress) -> int:
    """Return the budget that `profile` suggests for the same data: that of all training samples, however many are replayed."""
    samples = FirstSamples(source, space, config.run.seed, source.train_samples, progress)
    return suggested_bytes(RowRanking.counted(samples, policy_row_bytes(config, space))[1])


def default_budgets(config: Config, suggested: int) -> list[str]:
    named = [str(size) for size in (suggested, int(config.knobs.hot_budget_bytes)) if size]
    return [*SHARES, *named]


def parse_budgets(texts: Sequence[str], everything_bytes: int) -> list[int]:
    """Return budgets in bytes, rising, each once. Shares are of `everything_bytes`. Raises UsageError for other text."""
    return sorted({_parse(text.strip(), everything_bytes) for text in texts})


def _parse(text: str, everything_bytes: int) -> int:
    try:
        if not text.endswith("%"):
            return parse_size(text)
        share = float(text.removesuffix("%")) / 100
        if 0 < share <= 1:
            return max(1, int(share * everything_bytes))
    except ValueError:
        pass
    raise UsageError(
        f"--budgets takes bytes (512KiB, 16MiB) or shares of all rows (10%), from above 0 to 100%, got {text!r}"
    )


def result(
    config: Config, source: Source, made: Replayed, name: str, budget: int, hardware: Hardware | None, forward: float
) -> dict[str, Any]:
    """Return the figures of one policy at one budget."""
    lane = made.lanes[name, budget]
    total, first = lane.total, lane.first_window
    later_hot, later = total.hot_lookups - first.hot_lookups, total.lookups - first.lookups
    steps = max(1, total.steps)
    cold = total.cold_row_bytes
    policy, hot = load_policy(name), ratio(total.hot_lookups, total.lookups)
    load = Workload.of(config, source, lane.store.space, policy, total, forward)
    staged = stages(lane.later, load.dim, forward, hardware.device) if hardware and hardware.device.up_gbs else None
    seconds = staged.step(load.prefetches) if staged else predict_step_seconds(load, hardware) if hardware else None
    return {
        "policy": name,
        "budget_bytes": budget,
        "exact": policy.exact,
        "monitored": policy.records_movement(config.knobs),
        "above_ceiling": above_ceiling(policy, hot, made.ceiling[made.budgets.index(budget)]),
        "follows_budget": follows_budget(config, policy, all_rows_bytes(lane.store.space, made.row_bytes)),
        "hot_rows": lane.store.hot.tier.hot_rows,
        "device_tier_bytes": lane.store.hot.bytes,
        "hot_lookup_ratio": hot,
        "first_window_hot_lookup_ratio": ratio(first.hot_lookups, first.lookups),
        "later_hot_lookup_ratio": ratio(later_hot, later) if later else None,
        "popular_sample_ratio": ratio(total.popular_samples, total.samples),
        "migrated_rows": total.migrated_rows,
        "host_to_device_bytes": cold + total.promoted_bytes,
        "device_to_host_bytes": cold + total.demoted_bytes,
        "link_bytes_per_step": (2 * cold + total.promoted_bytes + total.demoted_bytes) / steps,
        "cold_rows_per_step": cold_rows(total),
        "predicted_step_seconds": seconds,
        "predicted_disk_seconds": disk_seconds(load, hardware) if hardware else None,
        "predicted_stage_seconds": asdict(staged) if staged else None,
        "course": course(lane),
        "counts": total.as_dict(),
        "lookups_per_second": round(ratio(total.lookups, lane.seconds)),
    }


def above_ceiling(policy: Policy, hot_ratio: float, ceiling: float) -> str:
    """Return why a policy catches more than the ceiling, empty where it does not."""
    if hot_ratio <= ceiling:
        return ""
    return "it looks ahead and changes rows within windows" if policy.arranges_stream else "its rows change within windows"


def follows_budget(config: Config, policy: Policy, everything: int) -> bool:
    """Return whether the size of a policy's hot tier depends on the budget."""
    knobs = (config.knobs.changed({"hot_budget_bytes": budget}) for budget in (0, everything))
    return len({policy.budget_bytes(each, everything) for each in knobs}) > 1


def course(lane: Lane) -> list[list[float]]:
    """Return points [samples so far, share of hot lookups since the previous point], at most MOST_POINTS of them."""
    points, samples = [], 0
    some = [part for part in lane.stretches if part.steps]
    together = max(1, -(-len(some) // MOST_POINTS))
    for place in range(0, len(some), together):
        joined = sum(some[place : place + together], StepCounts())
        samples += joined.samples
        points.append([samples, round(ratio(joined.hot_lookups, joined.lookups), 6)])
    return points


def hardware_with_note(hardware: Hardware, config: Config, forward: float) -> dict[str, Any]:
    """Return the hardware profile with a note for readers of a prediction."""
    measured, note = hardware.dense.multiplications, ""
    if measured and abs(forward / measured - 1) > SAME_RATIO:
        times = f"scaled by its multiplications, times {forward / measured:.2f}"
        note = f"the dense part was measured for {hardware.dense.config} and is {times}"
    if config.run.host_memory and not hardware.disk.read_us:
        unknown = "its disk was not measured (adaptive-rec calibrate does), so steps wait for no rows"
        note = f"{note}; {unknown}" if note else unknown
    return {**hardware.described(), "note": note}

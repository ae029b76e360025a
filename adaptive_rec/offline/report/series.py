"""A run's reports as columns for plots: differences of the counters from each point to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from adaptive_rec.live.telemetry import ratio, weight_of_losses
from adaptive_rec.offline.report.record import RunRecord

Column = list[float | None]

DISK = "disk_rows_"
"""Start of the names of counters of rows on a disk."""


@dataclass
class ReportSeries:
    """Columns of equal length with a value for each point, None where there is none."""

    samples: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    starts: set[int] = field(default_factory=set)
    """Points at which a process starts, where lines break."""
    loss: Column = field(default_factory=list)
    loss_span: list[tuple[float, float] | None] = field(default_factory=list)
    hot_lookups: Column = field(default_factory=list)
    popular_samples: Column = field(default_factory=list)
    skipped_updates: Column = field(default_factory=list)
    skipped_samples: Column = field(default_factory=list)
    hot_rows: Column = field(default_factory=list)
    stale_rows: Column = field(default_factory=list)
    samples_per_second: Column = field(default_factory=list)
    up_bytes: Column = field(default_factory=list)
    """Bytes per step from host to device."""
    down_bytes: Column = field(default_factory=list)
    migrated_rows: Column = field(default_factory=list)
    """Rows per step that changed tier."""
    disk: dict[str, Column] = field(default_factory=dict)
    """Rows per step on a disk, by what was done with them; empty where all rows are in memory."""
    stages: dict[str, Column] = field(default_factory=dict)
    """Milliseconds per step of the training thread by stage, `other` included."""
    background: dict[str, Column] = field(default_factory=dict)
    """Milliseconds per step of other threads by stage."""
    tables: list[list[float | None]] = field(default_factory=list)
    """Shares of hot lookups of all tables, for each point."""

    def samples_at(self, step: int) -> float:
        """Return the samples seen up to a step, interpolated between the points."""
        steps, samples = [0, *self.steps], [0.0, *self.samples]
        for place in range(1, len(steps)):
            if step <= steps[place]:
                width = steps[place] - steps[place - 1]
                part = (step - steps[place - 1]) / width if width > 0 else 1.0
                return samples[place - 1] + part * (samples[place] - samples[place - 1])
        return samples[-1]


def series_of(record: RunRecord) -> ReportSeries:
    """Return the columns of a run, without points at which nothing was trained since the previous one."""
    made = ReportSeries()
    for stretch in record.stretches:
        base = made.samples_at(stretch.began_at_step)
        made.starts.add(len(made.samples))
        before: Mapping[str, Any] = {}
        for snapshot, span in zip(stretch.snapshots, stretch.losses, strict=True):
            steps = snapshot["totals"]["steps"] - before.get("totals", {}).get("steps", 0)
            if steps <= 0:
                continue
            _add_point(made, base, before, snapshot, span, steps)
            before = snapshot
    return made


def _add_point(
    made: ReportSeries,
    base: float,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    span: tuple[float, float] | None,
    steps: int,
) -> None:
    old = before.get("totals", {})
    gain = {key: value - old.get(key, 0) for key, value in now["totals"].items()}
    seen, trained = gain["samples_seen"], gain["samples_trained"]
    made.samples.append(base + now["totals"]["samples_seen"])
    made.steps.append(now["step"])
    weight = weight_of_losses(gain)
    made.loss.append(gain["loss_sum"] / weight if weight > 0 and "loss_sum" in gain else now["loss"])
    made.loss_span.append(span)
    made.hot_lookups.append(ratio(gain["lookups_hot"], gain["lookups"]))
    made.popular_samples.append(ratio(gain["samples_popular"], seen))
    updates = gain["row_updates"] + gain["row_updates_skipped"]
    made.skipped_updates.append(ratio(gain["row_updates_skipped"], updates))
    made.skipped_samples.append(ratio(seen - trained, seen))
    made.hot_rows.append(now["hot_rows"])
    made.stale_rows.append(now["stale_rows"])
    seconds = now["seconds"] - before.get("seconds", 0.0)
    made.samples_per_second.append(seen / seconds if seconds > 0 else None)
    made.up_bytes.append(gain["host_to_device_bytes"] / steps)
    made.down_bytes.append(gain["device_to_host_bytes"] / steps)
    made.migrated_rows.append(gain["migrated_rows"] / steps)
    per_step = {name.removeprefix(DISK): value / steps for name, value in gain.items() if name.startswith(DISK)}
    _extend(made.disk, per_step, len(made.samples) - 1)
    _add_stages(made, before, now, seconds, steps)
    _add_tables(made, before, now)


def _add_stages(
    made: ReportSeries, before: Mapping[str, Any], now: Mapping[str, Any], seconds: float, steps: int
) -> None:
    old = before.get("stage_seconds", {})
    spent = {name: value - old.get(name, 0.0) for name, value in now["stage_seconds"].items()}
    own = {name: value for name, value in spent.items() if not name.endswith(")")}
    own["other"] = max(0.0, seconds - sum(own.values()))
    points = len(made.samples) - 1
    for columns, values in ((made.stages, own), (made.background, {n: v for n, v in spent.items() if n.endswith(")")})):
        _extend(columns, {name: 1000 * value / steps for name, value in values.items()}, points)


def _extend(columns: dict[str, Column], values: Mapping[str, float], points: int) -> None:
    """Add a point to columns that have so many, with 0 where there is no value."""
    for name, value in values.items():
        columns.setdefault(name, [0.0] * points).append(value)
    for column in columns.values():
        column.extend([0.0] * (points + 1 - len(column)))


def _add_tables(made: ReportSeries, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    tables, old = now["tables"], before.get("tables", {})
    shares: list[float | None] = []
    for table, (lookups, hot) in enumerate(zip(tables["lookups"], tables["lookups_hot"], strict=True)):
        if old:
            lookups, hot = lookups - old["lookups"][table], hot - old["lookups_hot"][table]
        shares.append(hot / lookups if lookups else None)
    made.tables.append(shares)

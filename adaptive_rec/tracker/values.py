"""Figures that trackers get of a run's reports, by names in groups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from adaptive_rec.live.telemetry import Evaluation, Snapshot, ratio

NAMES = {
    "loss": "train/loss",
    "samples_per_second": "train/samples_per_second",
    "hot_lookup_ratio": "hot/lookup_ratio",
    "popular_sample_ratio": "hot/popular_sample_ratio",
    "hot_rows": "rows/hot",
    "stale_rows": "rows/stale",
    "stale_threshold": "rows/stale_threshold",
    "skipped_sample_ratio": "skipped/sample_ratio",
    "skipped_row_update_ratio": "skipped/row_update_ratio",
}
"""Names of a snapshot's fields."""

RATES = {"dense_lr": "train/dense_lr", "embedding_lr": "train/embedding_lr"}
"""Names of the learning rates, which are known where the loop is the runtime's own."""

TOTALS = {
    "samples_trained": "totals/samples_trained",
    "host_to_device_bytes": "totals/host_to_device_bytes",
    "device_to_host_bytes": "totals/device_to_host_bytes",
    "migrated_rows": "totals/migrated_rows",
    "disk_rows_read": "totals/disk_rows_read",
    "disk_rows_again": "totals/disk_rows_again",
    "disk_rows_written": "totals/disk_rows_written",
}
"""Names of the counters since the start of the run."""


class SnapshotFigures:
    """Figures of a run's snapshots."""

    def __init__(self, tables: Sequence[str]) -> None:
        self._tables = tables
        self._last: Mapping[str, Sequence[int]] = {}

    def of_snapshot(self, snapshot: Snapshot) -> dict[str, float]:
        """Return fields, counters, and each table's share of hot lookups since the snapshot before."""
        found: dict[str, float] = {shown: getattr(snapshot, name) for name, shown in NAMES.items()}
        found |= {shown: rate for name, shown in RATES.items() if not math.isnan(rate := getattr(snapshot, name))}
        found |= {shown: snapshot.totals[name] for name, shown in TOTALS.items() if name in snapshot.totals}
        now, last = snapshot.tables, self._last
        self._last = now
        for table, name in enumerate(self._tables):
            gain = {each: now[each][table] - (last[each][table] if last else 0) for each in ("lookups", "lookups_hot")}
            if gain["lookups"]:
                found[f"hot_lookup_ratio/{name}"] = ratio(gain["lookups_hot"], gain["lookups"])
        return found


def of_evaluation(evaluation: Evaluation) -> dict[str, float]:
    """Return the quality on held-out samples."""
    return {f"eval/{name}": value for name, value in asdict(evaluation.quality).items() if name != "samples"}

"""A run's reports as figures for trackers, in groups of names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from adaptive_rec.live.telemetry import Evaluation, Snapshot, ratio

if TYPE_CHECKING:
    from adaptive_rec.modules.stats import RuntimeStats

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
"""Fields of a snapshot."""

TOTALS = {
    "samples_trained": "totals/samples_trained",
    "host_to_device_bytes": "totals/host_to_device_bytes",
    "device_to_host_bytes": "totals/device_to_host_bytes",
    "migrated_rows": "totals/migrated_rows",
}
"""Counters since the run began."""


class Figures:
    """What trackers are told of a run."""

    def __init__(self, tables: Sequence[str]) -> None:
        self._tables = tables
        self._last: Mapping[str, Sequence[int]] = {}

    def of_snapshot(self, snapshot: Snapshot) -> dict[str, float]:
        """Its fields, the counters, and each table's share of hot lookups since the snapshot before."""
        found: dict[str, float] = {shown: getattr(snapshot, name) for name, shown in NAMES.items()}
        found |= {shown: snapshot.totals[name] for name, shown in TOTALS.items() if name in snapshot.totals}
        now, last = snapshot.tables, self._last
        self._last = now
        for table, name in enumerate(self._tables):
            gain = {each: now[each][table] - (last[each][table] if last else 0) for each in ("lookups", "lookups_hot")}
            if gain["lookups"]:
                found[f"hot_lookup_ratio/{name}"] = ratio(gain["lookups_hot"], gain["lookups"])
        return found


def of_evaluation(evaluation: Evaluation) -> dict[str, float]:
    """Quality on held-out samples."""
    return {f"eval/{name}": value for name, value in asdict(evaluation.quality).items() if name != "samples"}


class LoopFigures:
    """What trackers are told of a training loop of the user's own: its statistics, ratios over the steps since the last time."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, float]] = {}

    def of_stats(self, stats: RuntimeStats) -> dict[str, float]:
        found: dict[str, float] = {
            "hot/device_bytes": stats.device_bytes,
            "rows/hot": stats.hot_rows,
            "rows/stale": stats.stale_rows,
            "totals/migrated_rows": stats.migrated_rows,
            "totals/looked_up_ahead_ratio": stats.looked_up_ahead_ratio,
        }
        ratios = {"hot/lookup_ratio": self._gained("", stats.lookups, stats.hot_lookup_ratio)}
        for name, table in stats.tables.items():
            ratios[f"hot_lookup_ratio/{name}"] = self._gained(name, table.lookups, table.hot_lookup_ratio)
        return found | {name: value for name, value in ratios.items() if value is not None}

    def _gained(self, name: str, lookups: int, hot_ratio: float) -> float | None:
        """The share of hot lookups among the newest; None where there are none."""
        hot = lookups * hot_ratio
        (lookups_before, hot_before), self._last[name] = self._last.get(name, (0, 0.0)), (lookups, hot)
        return min(1.0, max(0.0, (hot - hot_before) / (lookups - lookups_before))) if lookups > lookups_before else None

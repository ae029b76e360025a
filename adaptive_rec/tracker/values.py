"""Figures that trackers get of a run's reports, by names in groups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from adaptive_rec.config.figures import tags_of
from adaptive_rec.config.metrics import BY_SAMPLE
from adaptive_rec.live.telemetry import Evaluation, Snapshot, ratio

FIELDS, TOTALS = tags_of("snapshot"), tags_of("totals", "disk")
"""Names of a snapshot's fields, and of the counters since the start of the run."""
NOT_ALWAYS = ("dense_lr", "embedding_lr", "stale_agreement")
"""Fields that are not a number where they are not known: rates in a user's loop, agreement before there were two judgements."""


class SnapshotFigures:
    """Figures of a run's snapshots."""

    def __init__(self, tables: Sequence[str]) -> None:
        self._tables = tables
        self._last: Mapping[str, Sequence[int]] = {}

    def of_snapshot(self, snapshot: Snapshot) -> dict[str, float]:
        """Return fields, counters, and each table's share of hot lookups since the snapshot before."""
        fields = {name: getattr(snapshot, name) for name in FIELDS}
        found: dict[str, float] = {
            tag: fields[name] for name, tag in FIELDS.items() if not (name in NOT_ALWAYS and math.isnan(fields[name]))
        }
        found |= {tag: snapshot.totals[name] for name, tag in TOTALS.items() if name in snapshot.totals}
        now, last = snapshot.tables, self._last
        self._last = now
        for table, name in enumerate(self._tables):
            gain = {each: now[each][table] - (last[each][table] if last else 0) for each in ("lookups", "lookups_hot")}
            if gain["lookups"]:
                found[f"hot_lookup_ratio/{name}"] = ratio(gain["lookups_hot"], gain["lookups"])
        return found


def of_evaluation(evaluation: Evaluation) -> dict[str, float]:
    """Return the quality on held-out samples."""
    quality = evaluation.quality
    ranked = {} if quality.ranking is None else quality.ranking.metrics
    return {f"eval/{name}": quality.value(name) for name in (*(metric.name for metric in BY_SAMPLE), *ranked)}

"""Statistics of a user's training loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import ByteSize

from adaptive_rec.live.telemetry import ratio
from adaptive_rec.state.run_state import RunState


@dataclass(frozen=True)
class TableStats:
    """Size of a table, its hot rows, and the share of its lookups that were hot."""

    rows: int
    dim: int
    hot_rows: int
    lookups: int
    hot_lookup_ratio: float


@dataclass(frozen=True)
class RuntimeStats:
    """Figures between two steps. Bytes are those of the device tier: weights, optimizer state and movement records."""

    steps: int
    policy: str
    lookups: int
    hot_lookup_ratio: float
    """Share of all lookups so far that were hot."""
    hot_rows: int
    stale_rows: int
    total_rows: int
    device_bytes: int
    budget_bytes: int
    migrated_rows: int
    row_updates: int
    row_updates_skipped: int
    looked_up_ahead_ratio: float
    """Share of the steps whose lookups were all done ahead by `prefetch`."""
    seconds_by_stage: Mapping[str, float]
    tables: Mapping[str, TableStats]
    disk: Mapping[str, int]
    """Counts of rows on a disk, and sizes of their files, named in `config/figures.py`; empty where all rows are in memory."""
    raw_ids: Mapping[str, int]
    """Ids that have a row of their own (keys), that have lost theirs (evicted), times that a full table refused one, lookups in
    training mode, and those of shared rows (lookups_shared); empty where ids are rows."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        sizes = f"{ByteSize(self.device_bytes).human_readable()} of {ByteSize(self.budget_bytes).human_readable()}"
        lines = [
            f"{self.steps:,} steps under {self.policy}: {self.hot_lookup_ratio:.1%} of {self.lookups:,} lookups hot",
            f"{self.hot_rows:,} of {self.total_rows:,} rows hot, {sizes} used, {self.migrated_rows:,} rows moved so far",
        ]
        if self.disk:
            read, found, written = (f"{self.disk[f'rows_{what}']:,}" for what in ("read", "found", "written"))
            size = f"{ByteSize(self.disk['size_bytes']).human_readable()} in {self.disk['segments']:,} files"
            lines.append(f"{read} rows read from the disk, {found} found in memory, {written} written; {size}")
        if self.raw_ids:
            keys, refused, shared = (self.raw_ids[name] for name in ("keys", "refused", "lookups_shared"))
            evicted = f", {self.raw_ids['evicted']:,} have lost theirs" if self.raw_ids["evicted"] else ""
            full = f", {refused:,} times refused by a full table" if refused else ""
            lookups = self.raw_ids["lookups"]
            own = f"{keys:,} raw ids have a row of their own{evicted}{full}"
            lines.append(f"{own}, {ratio(shared, lookups):.1%} of lookups share a row")
        largest = sorted(self.tables.items(), key=lambda entry: -entry[1].lookups)[:10]
        width = max((len(name) for name, _ in largest), default=0)
        for name, table in largest:
            share = f"{table.hot_rows:>11,} of {table.rows:>12,} rows hot, {table.hot_lookup_ratio:6.1%} of lookups"
            lines.append(f"  {name:<{width}} {share}")
        return "\n".join(lines)


def stats_of(state: RunState, looked_up_ahead_ratio: float) -> RuntimeStats:
    """Return the figures of a run as it stands."""
    store, space, tally = state.store, state.store.space, state.tally
    counts = zip(
        space.tables, store.index.hot_rows_T.tolist(), tally.lookups_T.tolist(), tally.hot_lookups_T.tolist(), strict=True
    )
    counters, traffic = tally.counters, store.index.traffic
    return RuntimeStats(
        steps=state.step,
        policy=state.knobs.policy,
        lookups=counters.lookups,
        hot_lookup_ratio=ratio(counters.lookups_hot, counters.lookups),
        hot_rows=store.hot.tier.hot_rows,
        stale_rows=store.hot.tier.stale_rows,
        total_rows=space.rows,
        device_bytes=store.hot.bytes,
        budget_bytes=state.budget_bytes,
        migrated_rows=traffic.migrated_rows,
        row_updates=traffic.row_updates,
        row_updates_skipped=traffic.row_updates_skipped,
        looked_up_ahead_ratio=looked_up_ahead_ratio,
        seconds_by_stage={name: round(seconds, 4) for name, seconds in state.times.seconds.items()},
        tables={
            table.name: TableStats(table.rows, table.dim, hot_rows, lookups, ratio(hot, lookups))
            for table, hot_rows, lookups, hot in counts
        },
        disk={**store.cold.counts(), **store.cold.sizes()},
        raw_ids={} if state.input.keys is None else state.input.keys.counts(),
    )


class LoopFigures:
    """Figures of a user's training loop for loggers; ratios are over the steps since the figures before."""

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
        found |= {f"disk/{name}": count for name, count in stats.disk.items()}
        found |= {f"raw_ids/{name}": count for name, count in stats.raw_ids.items()}
        ratios = {"hot/lookup_ratio": self._gained("", stats.lookups, stats.hot_lookup_ratio)}
        for name, table in stats.tables.items():
            ratios[f"hot_lookup_ratio/{name}"] = self._gained(name, table.lookups, table.hot_lookup_ratio)
        return found | {name: value for name, value in ratios.items() if value is not None}

    def _gained(self, name: str, lookups: int, hot_ratio: float) -> float | None:
        """Return the share of hot lookups among the new ones, or None where there are none."""
        hot = lookups * hot_ratio
        (lookups_before, hot_before), self._last[name] = self._last.get(name, (0, 0.0)), (lookups, hot)
        return min(1.0, max(0.0, (hot - hot_before) / (lookups - lookups_before))) if lookups > lookups_before else None

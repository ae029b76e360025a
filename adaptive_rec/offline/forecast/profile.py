"""The profile of a data set under a configuration: all figures as plain values."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.config.tree import Config
from adaptive_rec.data.open import open_source
from adaptive_rec.data.raw.raw_ids import RawIds
from adaptive_rec.data.source import Source
from adaptive_rec.errors import DataError
from adaptive_rec.live.telemetry import ratio
from adaptive_rec.memory.rows import everything_bytes, hot_row_bytes, policy_row_bytes
from adaptive_rec.offline.advice import RULE, room_bytes
from adaptive_rec.offline.forecast.passes import FirstSamples, Progress, admission, count_windows
from adaptive_rec.offline.forecast.ranking import RowRanking, Seen, curve_budgets, suggested_bytes, top_share
from adaptive_rec.placement import RowSpace
from adaptive_rec.system.version import __version__

TOP_RATIOS = (0.001, 0.01, 0.1)
STAYS_RATIO = 0.01
"""Share of a table's rows, the most frequent of the first window, whose lookups are followed through the other windows."""
CDF_POINTS = 24
_NEARLY_ALL = 1 - 1e-9
"""Largest share of a window that a batch is taken to have."""
EVEN_GAIN = 0.1
"""Largest difference of the shares of hot lookups and of bytes at any budget, below which access counts as even."""


def measure(
    config: Config,
    max_samples: int,
    windows: int,
    progress: Progress,
    source: Source | None = None,
    budgets: Sequence[int] = (),
) -> dict[str, Any]:
    """Measure the first samples (0: all) of the training range. Raises DataError where there are fewer than windows.

    `source` is used instead of opening the configured one; `budgets` become further points of the curve.
    """
    source = open_source(config) if source is None else source
    space = RowSpace.of(source.tables, source.features)
    total = min(source.train_samples, max_samples or source.train_samples)
    if total < windows:
        raise DataError(f"a profile of {windows} windows must have as many samples, got {total}; lower --windows")
    samples = FirstSamples(source, space, config.run.seed, total, progress)
    started = time.perf_counter()
    sizes = policy_row_bytes(config, space)
    seen, ranking = RowRanking.counted(samples, sizes)
    suggested, configured = suggested_bytes(ranking), config.knobs.hot_budget_bytes
    points = curve_budgets(ranking, suggested, configured, *budgets)
    drift, learned = Drift(ranking, suggested), Learned(ranking, points, config.run.batch_size * windows / total)
    level_R = ranking.levels(points)
    popular_L = np.zeros(len(points) + 1, dtype=np.int64)
    for window_R, samples_L in count_windows(samples, level_R, len(points), windows):
        drift.add(window_R)
        learned.add(window_R)
        popular_L += samples_L
    curve = curve_points(ranking, points, popular_L, total, learned)
    seconds = time.perf_counter() - started
    everything = everything_bytes(config, space)
    of_keys: list[dict[str, Any]] = []
    if isinstance(source, RawIds):
        keyed = FirstSamples(source.origin, space, config.run.seed, total, progress)
        of_keys = admission(keyed, [table.rows for table in source.origin.tables])
    at = {point["bytes"]: point for point in curve}
    return {
        "version": __version__,
        "data": {
            "source": config.data.source,
            "samples": total,
            "train_samples": source.train_samples,
            "lookups": ranking.lookups,
            "malformed_rows": source.malformed_rows,
            "batch_size": config.run.batch_size,
            "batch_rows": learned.batch_rows,
            "row_bytes": sizes,
            "plain_row_bytes": hot_row_bytes(config, space, monitored=False),
            "all_rows_bytes": everything,
            "policy": config.knobs.policy,
            "embedding_rule": config.optimizer.embedding,
        },
        "all": skew("all", len(space.features), space.rows, seen) | drift.stays(),
        "tables": [table | drift.stays(n) for n, table in enumerate(table_skews(space, seen))],
        "budgets": curve,
        "suggested": suggestion(at.get(suggested) or nothing(learned), curve, ranking, drift),
        "admission": of_keys,
        "everything_fits": everything <= room_bytes(config),
        "configured": at.get(configured) or nothing(learned),
        "drift": {"windows": drift.windows, "samples_per_window": total // windows, "budget_bytes": suggested},
        "seconds": round(seconds, 3),
        "lookups_per_second": round(2 * ranking.lookups / seconds),
    }


def nothing(learned: Learned) -> dict[str, Any]:
    """Return the point of a budget of 0."""
    shares = {"hot_lookup_ratio": 0.0, "popular_sample_ratio": 0.0, "learned_ratio": 0.0}
    return {"bytes": 0, "rows": 0, **shares, "cold_rows": learned.batch_rows}


def curve_points(
    ranking: RowRanking, budgets: list[int], popular_L: NDArray[np.int64], samples: int, learned: Learned
) -> list[dict[str, Any]]:
    """Return what each budget catches if all counts are known in advance, and if only those before each window are."""
    popular, ratios, cold_rows = np.cumsum(popular_L), learned.ratios(), learned.cold_rows()
    return [
        {
            "bytes": budget,
            "rows": sum(ranking.hot_rows(budget)),
            "hot_lookup_ratio": ratio(ranking.hot_lookups(budget), ranking.lookups),
            "popular_sample_ratio": ratio(int(popular[level]), samples),
            "learned_ratio": ratios[level],
            "cold_rows": cold_rows[level],
        }
        for level, budget in enumerate(budgets)
    ]


def suggestion(
    point: Mapping[str, Any], curve: Sequence[Mapping[str, Any]], ranking: RowRanking, drift: Drift
) -> dict[str, Any]:
    """Return the suggested budget with its reasons."""
    caught = [w["previous_ratio"] for w in drift.windows if w["previous_ratio"] is not None]
    gain = max((each["hot_lookup_ratio"] - ratio(each["bytes"], ranking.seen_bytes) for each in curve), default=0.0)
    even = "access is nearly even: no budget short of all rows catches much more than its share of the lookups"
    return {
        **point,
        "rule": RULE,
        "previous_ratio": ratio(sum(caught), len(caught)) if caught else None,
        "note": even if gain < EVEN_GAIN else "",
    }


# Skew ----------------------------------------------------------------------------------------------------------------


def skew(name: str, features: int, rows: int, part: Seen) -> dict[str, Any]:
    """Return how the lookups of a part of the row space are distributed over its rows."""
    counts_K = part.ranked().counts_K
    seen, lookups = len(counts_K), part.lookups
    summed = np.cumsum(counts_K)
    places = np.unique(np.geomspace(1, seen, CDF_POINTS).round().astype(np.int64)) if seen else np.empty(0, np.int64)
    return {
        "name": name,
        "features": features,
        "rows": rows,
        "seen_rows": seen,
        "once_rows": int(np.count_nonzero(counts_K == 1)),
        "lookups": lookups,
        "top_ratios": {str(share): top_share(counts_K, share) for share in TOP_RATIOS},
        "cdf": [[int(k), round(float(summed[k - 1] / lookups), 6)] for k in places],
    }


def table_skews(space: RowSpace, seen: Seen) -> list[dict[str, Any]]:
    made = []
    for index, table in enumerate(space.tables):
        first = int(space.table_first_row[index])
        readers = int(np.count_nonzero(space.table_of_feature == index))
        made.append(skew(table.name, readers, table.rows, seen.part(first, table.rows)) | {"dim": table.dim})
    return made


# Drift ---------------------------------------------------------------------------------------------------------------


@dataclass
class Learned:
    """The share of each window's lookups caught by the rows with the most lookups before it, which a run can know too, and the
    distinct rows of a batch that are not among these."""

    ranking: RowRanking
    budgets: list[int]
    batch_ratio: float
    """Samples of a batch as a share of a window's."""
    _before_R: NDArray[np.uint32] | None = None
    """Lookups of each row in the previous windows."""
    _caught: list[NDArray[np.float64]] = field(default_factory=list)
    """Shares caught at each budget, for each window but the first."""
    _cold: list[NDArray[np.float64]] = field(default_factory=list)
    """Expected distinct rows of a batch that are not caught at no budget, and at each one, for each window but the first."""

    def add(self, window_R: NDArray[np.uint32]) -> None:
        if self._before_R is None:
            self._before_R = window_R.copy()
            return
        before = RowRanking.of(self.ranking.space, self.ranking.row_bytes, Seen.of(self._before_R))
        seen = Seen.of(window_R)
        levels = before.levels(self.budgets)[seen.rows_K]
        lookups_L = np.bincount(levels, weights=seen.counts_K, minlength=len(self.budgets) + 1)
        self._caught.append(np.cumsum(lookups_L)[:-1] / max(seen.lookups, 1))
        occurs_K = -np.expm1(seen.counts_K * np.log1p(-min(self.batch_ratio, _NEARLY_ALL)))  # in a batch drawn from the window
        rows_L = np.bincount(levels, weights=occurs_K, minlength=len(self.budgets) + 1)
        self._cold.append(rows_L.sum() - np.concatenate([[0.0], np.cumsum(rows_L)[:-1]]))
        self._before_R += window_R

    def ratios(self) -> list[float]:
        """Return the mean share of each budget."""
        caught: list[float] = np.mean(self._caught, axis=0).tolist()
        return caught

    @property
    def batch_rows(self) -> float:
        """Expected distinct rows of a batch."""
        return float(np.mean(self._cold, axis=0)[0])

    def cold_rows(self) -> list[float]:
        """Return the mean expected number of each budget."""
        found: list[float] = np.mean(self._cold, axis=0)[1:].tolist()
        return found


@dataclass
class Drift:
    """The shares of each window's lookups that the hot rows of earlier windows catch."""

    ranking: RowRanking
    """Of all samples."""
    budget_bytes: int
    windows: list[dict[str, float | None]] = field(default_factory=list)
    """For each window the shares caught by its own hot rows, by those of the previous window and by those of the first one."""
    _first: NDArray[np.int64] | None = None
    _previous: NDArray[np.int64] | None = None
    _followed: dict[int | None, NDArray[np.int64]] = field(default_factory=dict)
    """The first window's most frequent rows of each table, and (None) of all tables together."""
    _stays: dict[int | None, list[float]] = field(default_factory=dict)

    def add(self, window_R: NDArray[np.uint32]) -> None:
        seen = Seen.of(window_R)
        space, lookups = self.ranking.space, seen.lookups
        own = RowRanking.of(space, self.ranking.row_bytes, seen).hot(self.budget_bytes)
        shares = [
            None if rows is None or not lookups else float(window_R[rows].sum(dtype=np.int64) / lookups)
            for rows in (own, self._previous, self._first)
        ]
        self.windows.append(dict(zip(("own_ratio", "previous_ratio", "first_ratio"), shares, strict=True)))
        self._previous = own
        self._first = own if self._first is None else self._first
        for table in (None, *range(len(space.tables))):
            first = 0 if table is None else int(space.table_first_row[table])
            rows = space.rows if table is None else space.tables[table].rows
            self._follow(table, seen.part(first, rows), window_R)

    def _follow(self, table: int | None, part: Seen, window_R: NDArray[np.uint32]) -> None:
        if table not in self._followed:
            ranked = part.ranked().rows_K
            self._followed[table] = ranked[: max(1, round(STAYS_RATIO * len(ranked)))]
        caught = int(window_R[self._followed[table]].sum(dtype=np.int64))
        self._stays.setdefault(table, []).append(ratio(caught, part.lookups))

    def stays(self, table: int | None = None) -> dict[str, float]:
        """Return the shares of lookups that the first window's top 1 % of rows catches in the first and in the last window."""
        caught = self._stays[table]
        return {"first_window_ratio": caught[0], "last_window_ratio": caught[-1]}

"""Rows ranked by their lookups, and the rows that a budget holds, pool by pool as the runtime places them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.device import split_budget
from adaptive_rec.offline.forecast.passes import FirstSamples, count_lookups
from adaptive_rec.placement import RowSpace

Counts = NDArray[np.int64]

DOUBLINGS = 16
"""Number of times that the largest budget of a curve is halved to get about the smallest."""
NEARLY_RATIO = 0.99
"""Share of the lookups that can be hot which a suggested budget holds."""
ROUND_BITS = 3
"""Leading binary digits of a suggested budget: 3.5 MiB rather than 3,461,112 bytes."""


@dataclass(frozen=True)
class Seen:
    """The rows of a part of the row space that are looked up, rising, and their counts."""

    rows_K: NDArray[np.int64]
    counts_K: Counts

    @staticmethod
    def of(counts_R: NDArray[np.int64] | NDArray[np.uint32]) -> Seen:
        rows_K = np.flatnonzero(counts_R != 0)
        return Seen(rows_K, counts_R[rows_K].astype(np.int64))

    def part(self, first_row: int, rows: int) -> Seen:
        low, high = np.searchsorted(self.rows_K, [first_row, first_row + rows])
        return Seen(self.rows_K[low:high], self.counts_K[low:high])

    @property
    def lookups(self) -> int:
        return int(self.counts_K.sum())

    def ranked(self) -> Seen:
        """Return the rows ordered by falling count; equal counts stay in the order of their rows."""
        order = np.argsort(-self.counts_K, kind="stable")
        return Seen(self.rows_K[order], self.counts_K[order])


@dataclass(frozen=True)
class RowRanking:
    """The rows that are looked up, pool by pool, ordered by falling count."""

    space: RowSpace
    row_bytes: list[int]
    """Device bytes of a hot row of each pool."""
    rows: list[NDArray[np.int64]]
    """Joint rows of each pool."""
    summed: list[Counts]
    """Lookups of each pool's first k rows, from k = 0."""

    @staticmethod
    def of(space: RowSpace, row_bytes: list[int], seen: Seen) -> RowRanking:
        parts = [seen.part(pool.first_row, pool.rows).ranked() for pool in space.pools]
        summed = [np.concatenate([[0], np.cumsum(part.counts_K)]) for part in parts]
        return RowRanking(space, row_bytes, [part.rows_K for part in parts], summed)

    @staticmethod
    def counted(samples: FirstSamples, row_bytes: list[int]) -> tuple[Seen, RowRanking]:
        """Count the lookups of samples; return the rows that occur, and their ranking."""
        seen = Seen.of(count_lookups(samples))
        return seen, RowRanking.of(samples.space, row_bytes, seen)

    @property
    def lookups(self) -> int:
        return sum(int(summed[-1]) for summed in self.summed)

    @property
    def seen_bytes(self) -> int:
        """Bytes of all rows that are looked up."""
        return sum(len(rows) * size for rows, size in zip(self.rows, self.row_bytes, strict=True))

    def hot_rows(self, budget_bytes: int) -> list[int]:
        """Return how many of each pool's ranked rows a budget holds."""
        slots = split_budget(self.space, self.row_bytes, budget_bytes)
        return [min(slots[p], len(rows)) for p, rows in enumerate(self.rows)]

    def hot(self, budget_bytes: int) -> NDArray[np.int64]:
        """Return the joint rows that a budget holds."""
        return np.concatenate([rows[:k] for rows, k in zip(self.rows, self.hot_rows(budget_bytes), strict=True)])

    def hot_lookups(self, budget_bytes: int) -> int:
        hot = self.hot_rows(budget_bytes)
        return sum(int(summed[k]) for summed, k in zip(self.summed, hot, strict=True))

    def levels(self, budgets: list[int]) -> NDArray[np.uint8]:
        """Return for each joint row the index of the smallest budget that holds it, or their number where none does."""
        level_R = np.full(self.space.rows, len(budgets), dtype=np.uint8)
        for level in range(len(budgets) - 1, -1, -1):
            for rows, hot in zip(self.rows, self.hot_rows(budgets[level]), strict=True):
                level_R[rows[:hot]] = level
        return level_R


def suggested_bytes(ranking: RowRanking) -> int:
    """Return the smallest budget, rounded up, that holds nearly all lookups which can be hot: a row's first lookup cannot.

    It depends on the counts alone, not on the order of the samples.
    """

    def caught(budget_bytes: int) -> int:
        hot = ranking.hot_rows(budget_bytes)
        return sum(int(summed[k]) - k for summed, k in zip(ranking.summed, hot, strict=True))

    everything = _whole_bytes(ranking)
    wanted = NEARLY_RATIO * caught(everything)
    return rounded_up(1 + largest(everything, lambda size: caught(size) < wanted)) if wanted else 0


def largest(most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number up to `most` that fits, if all smaller ones do too; 0 where 1 does not."""
    if fits(most):
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def rounded_up(size_bytes: int) -> int:
    """Return the next size with few binary digits."""
    unit = 1 << max(0, size_bytes.bit_length() - ROUND_BITS)
    return -(-size_bytes // unit) * unit


def curve_budgets(ranking: RowRanking, *named: int) -> list[int]:
    """Return rising budgets for a curve: powers of two and the middles between them, up to the size of all rows that are looked
    up, and those named."""
    everything = _whole_bytes(ranking)
    power = everything.bit_length() - 1
    powers = [1 << n for n in range(max(1, power - DOUBLINGS), power + 1)]
    points = {
        size for size in (*powers, *(3 * size // 2 for size in powers)) if max(ranking.row_bytes) <= size < everything
    }
    return sorted({*points, everything} | {size for size in named if size > 0})


def _whole_bytes(ranking: RowRanking) -> int:
    """Return the bytes of all rows that are looked up, doubled until each pool's share holds its rows."""
    size = max(ranking.seen_bytes, max(ranking.row_bytes))
    while ranking.hot_lookups(size) < ranking.lookups:
        size *= 2
    return size


def top_share(counts_K: NDArray[np.int64], ratio: float) -> float:
    """Return the share of the lookups that go to the given share of the rows (at least one row); counts are in falling order."""
    total = int(counts_K.sum())
    if not total:
        return 0.0
    return float(counts_K[: max(1, round(ratio * len(counts_K)))].sum() / total)

"""Rows in the order in which they would be hot, and what a budget makes of that: as the runtime places them, pool by pool."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.device import split_budget
from adaptive_rec.placement import RowSpace

Counts = NDArray[np.int64]

DOUBLINGS = 16
"""The smallest budget of a curve is about the largest, halved so often."""
ROUND_BITS = 3
"""Leading binary digits that a suggested budget keeps: it says 3.5 MiB rather than 3,461,112 bytes."""


@dataclass(frozen=True)
class Seen:
    """The rows that are looked up, rising, and how often: all that is told of a part of the row space is found in them."""

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
        """The same, the highest count first; equals in the order of their rows."""
        order = np.argsort(-self.counts_K, kind="stable")
        return Seen(self.rows_K[order], self.counts_K[order])


@dataclass(frozen=True)
class Ranking:
    """The rows that are looked up, pool by pool, the most frequent first; equals in the order of their rows."""

    space: RowSpace
    row_bytes: list[int]
    """Of each pool."""
    rows: list[NDArray[np.int64]]
    """Joint rows of each pool."""
    summed: list[Counts]
    """Lookups of each pool's first k rows, from k = 0."""

    @staticmethod
    def of(space: RowSpace, row_bytes: list[int], seen: Seen) -> Ranking:
        parts = [seen.part(pool.first_row, pool.rows).ranked() for pool in space.pools]
        summed = [np.concatenate([[0], np.cumsum(part.counts_K)]) for part in parts]
        return Ranking(space, row_bytes, [part.rows_K for part in parts], summed)

    @property
    def lookups(self) -> int:
        return sum(int(summed[-1]) for summed in self.summed)

    @property
    def seen_bytes(self) -> int:
        """What all rows that are looked up would take."""
        return sum(len(rows) * size for rows, size in zip(self.rows, self.row_bytes, strict=True))

    def hot_rows(self, budget_bytes: int) -> list[int]:
        """How many rows of each pool a budget holds, of those that are looked up."""
        slots = split_budget(self.space, self.row_bytes, budget_bytes)
        return [min(slots[p], len(rows)) for p, rows in enumerate(self.rows)]

    def hot_lookups(self, budget_bytes: int) -> int:
        hot = self.hot_rows(budget_bytes)
        return sum(int(summed[k]) for summed, k in zip(self.summed, hot, strict=True))

    def levels(self, budgets: list[int]) -> NDArray[np.uint8]:
        """For each row of the joint row space the first of the rising budgets that holds it; their number where none does."""
        level_R = np.full(self.space.rows, len(budgets), dtype=np.uint8)
        for level in range(len(budgets) - 1, -1, -1):
            for rows, hot in zip(self.rows, self.hot_rows(budgets[level]), strict=True):
                level_R[rows[:hot]] = level
        return level_R


def knee_bytes(ranking: Ranking) -> int:
    """The budget that holds each row whose lookups for a byte are more than the average of the rows that are looked up.

    That is where the share of hot lookups is furthest above the share of the bytes: the knee of the curve. Rounded up.
    """
    if not ranking.lookups:
        return 0
    average = ranking.lookups / ranking.seen_bytes
    needed = 0
    for size, summed in zip(ranking.row_bytes, ranking.summed, strict=True):
        needed += size * int(np.count_nonzero(np.diff(summed) > average * size))
    return rounded_up(needed)


def rounded_up(size_bytes: int) -> int:
    """A size with few binary digits."""
    unit = 1 << max(0, size_bytes.bit_length() - ROUND_BITS)
    return -(-size_bytes // unit) * unit


def curve_budgets(ranking: Ranking, *named: int) -> list[int]:
    """Budgets for a curve, rising: powers of two and the middles between them, up to what holds all rows that are looked up,
    and those named."""
    largest = _whole_bytes(ranking)
    power = largest.bit_length() - 1
    powers = [1 << n for n in range(max(1, power - DOUBLINGS), power + 1)]
    points = {
        size for size in (*powers, *(3 * size // 2 for size in powers)) if max(ranking.row_bytes) <= size < largest
    }
    return sorted({*points, largest} | {size for size in named if size > 0})


def _whole_bytes(ranking: Ranking) -> int:
    """The bytes of all rows that are looked up, doubled until each pool's part holds those of its own."""
    size = max(ranking.seen_bytes, max(ranking.row_bytes))
    while ranking.hot_lookups(size) < ranking.lookups:
        size *= 2
    return size


def top_share(counts_K: NDArray[np.int64], ratio: float) -> float:
    """Share of the lookups that go to so large a share (at least one) of the rows, whose counts are given in falling order."""
    total = int(counts_K.sum())
    if not total:
        return 0.0
    return float(counts_K[: max(1, round(ratio * len(counts_K)))].sum() / total)

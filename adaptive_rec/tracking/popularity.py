"""The tracker finds which rows are popular now: it counts sampled lookups and remembers the cold rows it met."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.errors import CheckpointError
from adaptive_rec.kernels.row_sets import distinct_rows, drop_rows, keep_cold, merge_rows
from adaptive_rec.placement import Migration
from adaptive_rec.saved import ANY, Saved

MIN_BUFFER_ROWS = 1 << 16
MANY_ROWS, SPARSE_ROWS = 1 << 12, 16
"""From so many rows on, of which one is found among fewer than this, marking them as bits is faster than sorting them."""


class Counter(Protocol):
    """Counts lookups: `CountMinSketch`, or `ExactCounter` in tests."""

    @property
    def bytes(self) -> int: ...

    def add(self, rows_U: NDArray[np.int64], counts_U: NDArray[np.int64], /) -> None: ...

    def observe(self, rows_U: NDArray[np.int64], segments_U1: NDArray[np.int64], /) -> None: ...

    def estimate(self, rows_U: NDArray[np.int64], /, threads: int = 1) -> NDArray[np.float64]: ...

    def decay(self, factor: float, /) -> None: ...

    def state(self) -> dict[str, Any]: ...

    def set_state(self, found: Saved, /) -> None: ...


def samples(step: int, ratio: float) -> bool:
    """Return whether this step's lookups are counted: an even schedule, the same in every run; all steps at ratio 1."""
    return math.floor((step + 1) * ratio) > math.floor(step * ratio)


def sort_distinct(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the distinct rows in ascending order. NumPy 2.4's np.unique takes fifteen times as long."""
    if len(rows) >= MANY_ROWS and (int(rows.max()) - int(rows.min())) // len(rows) < SPARSE_ROWS:
        return distinct_rows(rows)
    rows = np.sort(rows)
    first = np.ones(len(rows), dtype=np.bool_)
    first[1:] = rows[1:] != rows[:-1]
    return rows[first]


def mark_highest(scores: NDArray[np.floating[Any]], count: int) -> NDArray[np.bool_]:
    """Mark the `count` highest of more scores than that; of equal scores, the first ones."""
    if count <= 0:
        return np.zeros(len(scores), dtype=np.bool_)
    bar = np.partition(scores, len(scores) - count)[len(scores) - count]
    chosen: NDArray[np.bool_] = scores > bar
    chosen[np.flatnonzero(scores == bar)[: count - np.count_nonzero(chosen)]] = True
    return chosen


def best_rows(rows: NDArray[np.int64], scores: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return the `count` rows with the highest scores, of equals the lower ones. `rows` and the answer are sorted."""
    return rows if count >= len(rows) else rows[mark_highest(scores, count)]


def saved_candidates(found: Saved, end: int) -> NDArray[np.int64]:
    """Return the rows that a saved tracker had met, with repetitions. Raises CheckpointError where one is not below `end`."""
    rows = found.array("met", np.int64, ANY)
    if len(rows) and not (0 <= rows.min() and rows.max() < end):
        raise CheckpointError(f"candidates must lie in [0, {end}), got {rows.min()} to {rows.max()}")
    return rows


class PopularityTracker:
    """Knows the candidates, the cold rows met in sampled steps; it never passes over all rows.

    Hot rows are not remembered here, as the placement lists them. `capacity_rows` is how many rows may be hot; the candidates
    kept are a small multiple of it.
    """

    def __init__(self, counter: Counter, capacity_rows: int) -> None:
        self.counter = counter
        self._met = np.empty(0, dtype=np.int64)
        """Room for rows; the first `_rows_met` are filled."""
        self._rows_met = 0
        self._rows_sorted = 0
        """So many of them are distinct and sorted; those met since then follow."""
        self.cold_met = 0
        """Cold rows of the steps counted in this window, a row once for each step."""
        self.steps_counted = 0.0
        """Steps counted, which decay as the counts do."""
        self._last_step = -1
        self.resize(capacity_rows)

    @property
    def limit_rows(self) -> int:
        """The most candidates ever held, apart from one step's distinct rows."""
        return max(4 * self._capacity_rows, MIN_BUFFER_ROWS)

    @property
    def bytes(self) -> int:
        """Memory held now by the counter and the candidates."""
        return self.counter.bytes + self._met.nbytes

    def replace_counter(self, counter: Counter) -> None:
        """Count with another counter from now on."""
        self.counter = counter

    def resize(self, capacity_rows: int) -> None:
        """Set how many rows may be hot from now on."""
        self._capacity_rows = capacity_rows
        self._shrink()

    def begin_step(self, step: int) -> None:
        """Count a step, once however often its lookups are observed."""
        self.steps_counted += step != self._last_step
        self._last_step = step

    def observe(self, rows_U: NDArray[np.int64], segments_U1: NDArray[np.int64], source_U: NDArray[np.int64]) -> None:
        """Count a step's distinct rows and remember the cold ones.

        Row ``rows_U[u]`` has ``segments_U1[u + 1] - segments_U1[u]`` lookups and is cold where ``source_U[u]`` is negative.
        """
        self._make_room(len(rows_U))
        cold = keep_cold(rows_U, source_U, self._met[self._rows_met :])
        self.counter.observe(rows_U, segments_U1)
        self._rows_met += cold
        self.cold_met += cold
        self._shrink()

    def estimate(self, rows_U: NDArray[np.int64], threads: int = 1) -> NDArray[np.float64]:
        """Return about how many sampled lookups of each row are remembered. Only the training thread may ask for more threads."""
        return self.counter.estimate(rows_U, threads=threads)

    def candidates(self) -> NDArray[np.int64]:
        """Return the remembered rows, distinct and sorted. Some may have become hot since they were met.

        The array belongs to the tracker and is valid until it observes or a window ends.
        """
        if self._rows_sorted < self._rows_met:
            met = sort_distinct(self._met[self._rows_sorted : self._rows_met])
            self._rows_met = self._rows_sorted = merge_rows(self._met, self._rows_sorted, met)
        return self._met[: self._rows_met]

    def end_window(self, decay: float, migration: Migration | None = None) -> None:
        """Decay the counts; remove promoted rows from the candidates, and add demoted ones."""
        if migration is not None:
            self.forget(migration.promote)
            self._add(np.sort(migration.demote))
        self.counter.decay(decay)
        self.steps_counted *= decay
        self.cold_met = 0
        self._shrink()

    def forget(self, rows: NDArray[np.int64]) -> None:
        """Let rows be no candidates any more."""
        self.candidates()
        self._rows_met = self._rows_sorted = drop_rows(self._met, self._rows_met, np.sort(rows))

    def state(self) -> dict[str, Any]:
        """Return the state, with repetitions of the rows met: their number decides when the least popular are dropped."""
        return {
            "counter": self.counter.state(),
            "met": self._met[: self._rows_met],
            "rows_sorted": self._rows_sorted,
            "capacity_rows": self._capacity_rows,
            "cold_met": self.cold_met,
            "steps_counted": self.steps_counted,
        }

    def set_state(self, found: Saved) -> None:
        self.counter.set_state(found.part("counter"))
        self._capacity_rows = found.integer("capacity_rows")
        self.cold_met = found.integer("cold_met") if found.has("cold_met") else 0  # older versions
        self.take_steps(found)
        self._hold(found.array("met", np.int64, ANY))
        self._rows_sorted = self._saved_rows_sorted(found)

    def take_steps(self, found: Saved) -> None:
        """Restore how many steps were counted, where only counts are taken over from a saved tracker."""
        self.steps_counted = found.number("steps_counted") if found.has("steps_counted") else 0.0  # older versions

    def _saved_rows_sorted(self, found: Saved) -> int:
        if not found.has("rows_sorted"):  # older versions
            return self._rows_met if found.flag("distinct") else 0
        rows = found.integer("rows_sorted")
        if not 0 <= rows <= self._rows_met or (self._met[1:rows] <= self._met[: max(rows - 1, 0)]).any():
            raise CheckpointError(f"the first {rows} of {self._rows_met} candidates must be distinct and sorted")
        return rows

    def remember(self, rows: NDArray[np.int64]) -> None:
        """Make these rows candidates too."""
        self.candidates()
        self._add(sort_distinct(rows))
        self._shrink()

    def _shrink(self) -> None:
        """Where too many rows are held, drop repetitions; if over half the limit remains, keep the most popular half."""
        if self._rows_met <= self.limit_rows:
            return
        rows = self.candidates()
        if len(rows) > self.limit_rows // 2:
            self._hold(best_rows(rows, self.estimate(rows), self.limit_rows // 2))

    def _make_room(self, rows: int) -> None:
        """Make room for so many more rows. It doubles up to the most ever held, which few runs reach."""
        wanted = self._rows_met + rows
        if wanted > len(self._met):
            doubled = min(max(2 * len(self._met), MIN_BUFFER_ROWS), self.limit_rows + rows)
            met = np.empty(max(wanted, doubled), dtype=np.int64)
            met[: self._rows_met] = self._met[: self._rows_met]
            self._met = met

    def _hold(self, rows: NDArray[np.int64]) -> None:
        """Remember these rows, distinct and sorted, and no others."""
        self._rows_met = 0
        self._make_room(len(rows))
        self._met[: len(rows)] = rows
        self._rows_met = self._rows_sorted = len(rows)

    def _add(self, rows: NDArray[np.int64]) -> None:
        """Remember these rows too, distinct and sorted, where the rows met are. The array is overwritten."""
        self._make_room(len(rows))
        self._rows_met = self._rows_sorted = merge_rows(self._met, self._rows_met, rows)

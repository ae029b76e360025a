"""The rows of tables that no key has: those that were never given, and those that keys have left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.errors import CheckpointError
from adaptive_rec.saved import ANY, Saved

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Given:
    """How far the rows of each table are given."""

    end_T: Rows
    """The end of each table's rows that were ever given, or are shared; joint rows."""
    again_T: Rows
    """How many rows that keys have left were given again."""


class FreeRows:
    """Gives rows to keys: first those that no key ever had, in rising order, then those that keys have left, in the order in
    which they were left. All rows are joint rows."""

    def __init__(self, first_T: Rows, end_T: Rows) -> None:
        """`first_T`, `end_T`: the rows of each table that keys may have."""
        self._most_T = end_T
        self.given = self.settled = Given(first_T, np.zeros(len(first_T), dtype=np.int64))
        """What batches have taken; and what those have whose steps were made."""
        self._left = [np.empty(0, dtype=np.int64) for _ in first_T]
        """The rows of each table that keys have left, but for the first `_dropped_T`, which are settled to be given again."""
        self._batch = [np.empty(0, dtype=np.int64) for _ in first_T]
        """The first batch that may have each of them."""
        self._dropped_T = np.zeros(len(first_T), dtype=np.int64)

    def give(self, table_W: Rows, batch: int) -> tuple[Rows, Rows]:
        """Give rows to the keys of a batch, sorted by table, as long as their tables have some. Returns which got one, and it."""
        tables, first_C, count_C = np.unique(table_W, return_index=True, return_counts=True)
        end_T, again_T = self.given.end_T.copy(), self.given.again_T.copy()
        got, rows = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for table, first, count in zip(tables.tolist(), first_C.tolist(), count_C.tolist(), strict=True):
            end, again = int(end_T[table]), int(again_T[table] - self._dropped_T[table])
            fresh = np.arange(end, min(end + count, int(self._most_T[table])))
            usable = np.searchsorted(self._batch[table], batch, side="right")
            left = self._left[table][again : min(usable, again + count - len(fresh))]
            rows += [fresh, left]
            got.append(np.arange(first, first + len(fresh) + len(left)))
            end_T[table] += len(fresh)
            again_T[table] += len(left)
        self.given = Given(end_T, again_T)
        return np.concatenate(got), np.concatenate(rows)

    def settle(self, given: Given) -> None:
        self.settled = given

    def forget_ahead(self) -> None:
        self.given = self.settled

    def free_T(self) -> Rows:
        """Return how many rows of each table may be given yet, as far as settled, now or later."""
        left_T = np.array([len(left) for left in self._left])
        return self._most_T - self.settled.end_T + left_T + self._dropped_T - self.settled.again_T

    def leave(self, table: int, rows: Rows, batch: int) -> None:
        """Add rows that a key may have from a batch on that was not taken yet."""
        self._left[table] = np.concatenate([self.waiting(table), rows])
        self._batch[table] = np.concatenate([self._batches(table), np.full(len(rows), batch)])
        self._dropped_T[table] = self.settled.again_T[table]

    def waiting(self, table: int) -> Rows:
        """Return the rows of a table that were left and not given again, as far as settled."""
        return self._left[table][self.settled.again_T[table] - self._dropped_T[table] :]

    def _batches(self, table: int) -> Rows:
        return self._batch[table][self.settled.again_T[table] - self._dropped_T[table] :]

    # Kept in a checkpoint --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return what is settled."""
        tables = range(len(self._left))
        rows = {f"rows_{table}": self.waiting(table) for table in tables}
        batches = {f"batch_{table}": self._batches(table) for table in tables}
        return {"end_T": self.settled.end_T, **rows, **batches}

    def set_state(self, found: Saved) -> None:
        """Restore a state. Raises CheckpointError."""
        end_T = found.array("end_T", np.int64, len(self._left))
        for table, (first, end, most) in enumerate(zip(self.settled.end_T, end_T, self._most_T, strict=True)):
            if not first <= end <= most:
                room, listed = int(most - first), int(end - first)
                raise CheckpointError(f"table {table} must have at most {room} keys, the checkpoint has {listed}")
            rows = found.array(f"rows_{table}", np.int64, ANY)
            if len(rows) and not first <= rows.min() <= rows.max() < end:
                raise CheckpointError(
                    f"rows that keys have left must lie in [{first}, {end}), got {rows.min()} to {rows.max()}"
                )
            self._left[table], self._batch[table] = rows, found.array(f"batch_{table}", np.int64, len(rows))
        self.given = self.settled = Given(end_T, np.zeros(len(end_T), dtype=np.int64))

"""Reads rows of a table from the published placement: single rows, and pages in two orders.

All work is done on whole arrays: a page of 1000 rows out of tens of millions costs milliseconds. Functions return
copies. Suffixes: R rows of the answer, C rows of a chunk, H slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.kernels.sketch_numpy import sketch_estimate
from adaptive_rec.live.shared_state import PlacementArrays
from adaptive_rec.service.hello import Table

Class = Literal["hot", "stale", "cold", "memory", "disk", "unwritten"]
COLD: tuple[Class, ...] = ("cold", "memory", "disk", "unwritten")
"""Classes of cold rows. Where cold rows lie on a disk, each is there, was never written or, of a run on a device, is in host
memory."""
Rows = list[dict[str, Any]]
Ids = NDArray[np.int64]

NOWHERE = 0
"""The address of a row that was never written."""

CHUNK = 1 << 17
"""Rows or slots in one chunk, which fits into a core's cache."""


def rows_at(arrays: PlacementArrays, table: Table, ids_R: Ids) -> Rows:
    """Return class, slot, estimate and movement of rows, given by id within their table. Their values come later."""
    slot_R = arrays.slots_plus_one[table.first_row + ids_R].astype(np.int64) - 1
    hot_R = slot_R >= 0
    slots = slot_R[hot_R]
    stale_R = np.zeros(len(ids_R), dtype=bool)
    stale_R[hot_R] = arrays.stale[table.pool][slots]
    estimate_R = np.empty(len(ids_R))
    estimate_R[hot_R] = arrays.estimate[table.pool][slots]
    estimate_R[~hot_R] = _sketched(arrays, table.first_row + ids_R[~hot_R])
    movement_R = np.full(len(ids_R), np.inf)
    movement_R[hot_R] = arrays.movement[table.pool][slots]
    cold: Iterable[str] = repeat("cold", len(ids_R))
    if len(arrays.address):
        homes_R = np.where(arrays.address[table.first_row + ids_R] == NOWHERE, "unwritten", "disk")
        if len(arrays.memory_slot):
            homes_R = np.where(arrays.memory_slot[table.first_row + ids_R] >= 0, "memory", homes_R)
        cold = homes_R.tolist()
    return [
        {
            "id": row,
            "class": "stale" if stale else "hot" if slot >= 0 else home,
            "slot": slot if slot >= 0 else None,
            "estimate": estimate,
            "movement": movement if known else None,
            "value": None,
        }
        for row, home, slot, stale, estimate, movement, known in zip(
            ids_R.tolist(),
            cold,
            slot_R.tolist(),
            stale_R.tolist(),
            np.nan_to_num(estimate_R).tolist(),
            movement_R.tolist(),
            np.isfinite(movement_R).tolist(),
            strict=True,
        )
    ]


def _sketched(arrays: PlacementArrays, rows_R: Ids) -> NDArray[np.float64]:
    """Return the sketch's estimate of the lookups of rows of the joint row space."""
    estimate_R = np.zeros(len(rows_R))
    if len(rows_R) and arrays.sketch_unit:
        sketch_estimate(arrays.sketch_counters, rows_R, arrays.sketch_seeds, arrays.sketch_unit, estimate_R)
    return estimate_R


def next_by_id(arrays: PlacementArrays, table: Table, wanted: Class, after: int, limit: int) -> Ids:
    """Return up to `limit` ids of a class above `after`, rising. The search stops when it has found them."""
    if wanted == "stale":
        ids = arrays.row_of_slot[table.pool][arrays.stale[table.pool]] - table.first_row
        ids = ids[(ids > after) & (ids < table.rows)]
        return np.sort(ids if len(ids) <= limit else np.partition(ids, limit - 1)[:limit])
    found: list[Ids] = []
    missing = limit
    for start in range(after + 1, table.rows, CHUNK):
        some = slice(table.first_row + start, table.first_row + min(start + CHUNK, table.rows))
        found.append(start + np.flatnonzero(_are(arrays, wanted, some))[:missing])
        missing -= len(found[-1])
        if not missing:
            break
    return np.concatenate([np.empty(0, dtype=np.int64), *found])


def _are(arrays: PlacementArrays, wanted: Class, rows: slice) -> NDArray[np.bool_]:
    """Return which rows of the joint row space are hot, or of one of the classes of cold rows."""
    is_hot_C = arrays.slots_plus_one[rows] != 0
    if wanted == "hot":
        return is_hot_C
    if wanted == "cold":
        return ~is_hot_C
    in_memory_C = arrays.memory_slot[rows] >= 0 if len(arrays.memory_slot) else np.zeros(len(is_hot_C), np.bool_)
    if wanted == "memory":
        return ~is_hot_C & in_memory_C
    return ~is_hot_C & ~in_memory_C & ((arrays.address[rows] == NOWHERE) == (wanted == "unwritten"))


def count_cold(arrays: PlacementArrays, table: Table, wanted: Class) -> int:
    """Return how many cold rows of a table are of a class: one pass over its rows."""
    end = table.first_row + table.rows
    chunks = (slice(start, min(start + CHUNK, end)) for start in range(table.first_row, end, CHUNK))
    return sum(int(np.count_nonzero(_are(arrays, wanted, chunk))) for chunk in chunks)


def next_by_estimate(
    arrays: PlacementArrays, table: Table, wanted: Class, after: tuple[float, int] | None, limit: int
) -> tuple[Ids, NDArray[np.float32]]:
    """Return the next hot or stale ids after the place `after` and their estimates, by falling estimate, then rising id.

    One pass over the pool's slots, or over the table's rows if there are fewer. The least estimate of the best rows so far
    filters the next chunk.
    """
    row_H, estimate_H = arrays.row_of_slot[table.pool], arrays.estimate[table.pool]
    stale_H = arrays.stale[table.pool]
    most, beyond = after if after is not None else (np.inf, -1)
    best, best_estimate, least = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32), -np.inf
    for slots_C in _slots_by_chunks(arrays, table):
        estimate_C = estimate_H[slots_C]
        fit_C = (estimate_C >= least) & (estimate_C <= most)
        if wanted == "stale":
            fit_C &= stale_H[slots_C]
        places = np.flatnonzero(fit_C)
        ids, estimate = row_H[slots_C][places] - table.first_row, estimate_C[places]
        mine = (ids >= 0) & (ids < table.rows) & ((estimate < most) | (ids > beyond))
        best = np.concatenate([best, ids[mine]])
        best_estimate = np.concatenate([best_estimate, estimate[mine]])
        if len(best) > limit:
            kept = highest(best, best_estimate, limit)
            best, best_estimate = best[kept], best_estimate[kept]
            least = best_estimate.min()
    order = np.lexsort((best, -best_estimate))
    return best[order], best_estimate[order]


def _slots_by_chunks(arrays: PlacementArrays, table: Table) -> Iterator[slice | Ids]:
    """Yield all slots that may hold rows of a table, in chunks."""
    slots = len(arrays.row_of_slot[table.pool])
    if table.rows < slots:
        slots_plus_one = arrays.slots_plus_one[table.first_row : table.first_row + table.rows]
        for start in range(0, table.rows, CHUNK):
            chunk_C = slots_plus_one[start : start + CHUNK]
            yield chunk_C[chunk_C > 0].astype(np.int64) - 1
    else:
        yield from (slice(start, start + CHUNK) for start in range(0, slots, CHUNK))


def highest(ids: Ids, estimate: NDArray[np.float32], limit: int) -> NDArray[np.int64]:
    """Return the places of the `limit` highest estimates; equal estimates are ordered by rising id."""
    least = -np.partition(-estimate, limit - 1)[limit - 1]
    above, ties = np.flatnonzero(estimate > least), np.flatnonzero(estimate == least)
    missing = limit - len(above)
    if len(ties) > missing:
        ties = ties[np.argpartition(ids[ties], missing - 1)[:missing]]
    return np.concatenate([above, ties])


# Values ---------------------------------------------------------------------------------------------------------------


FIRST_ID = 2
"""Id of the first value in a file; 0 is a missing value, and 1 stands for all rare ones."""
LONGEST = 200
"""Characters of a value that are shown."""


class RowValues:
    """The files of values of a run's tables. They are mapped into memory, not read: of a file of any size only the pages of the
    listed rows are loaded. Without pyarrow, or without the file, a table has no values."""

    def __init__(self) -> None:
        self._mapped: dict[str, Any] = {}

    def add(self, table: Table, rows: list[dict[str, Any]]) -> None:
        """Set `value` of each row of a table that has values: a text; null stays for the ids of missing and of rare values."""
        if table.values not in self._mapped:
            self._mapped[table.values] = _mapped(table.values)
        column = self._mapped[table.values]
        if column is None:
            return
        for row in rows:
            place = row["id"] - FIRST_ID
            if 0 <= place < len(column):
                row["value"] = str(column[place].as_py())[:LONGEST]


def _mapped(path: str) -> Any:
    """Return the column of a file of values; None where it cannot be had: rows are then shown by their ids alone."""
    try:
        import pyarrow as pa

        with pa.memory_map(path) as file:
            return pa.ipc.open_file(file).read_all().column(0)
    except (ImportError, OSError, ValueError):  # Arrow's errors are ValueErrors
        return None

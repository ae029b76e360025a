"""Plain twin of `key_map.py`, with dicts in place of slots."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.kernels.key_map import LEAVING, NEW, Keys, KeyTables, scrambled

Rows = NDArray[np.int64]
KeyRows = dict[int, dict[tuple[int, int], int]]
"""For each flag (0: none) the joint row of each table and key."""


def no_rows() -> KeyRows:
    return {0: {}, NEW: {}, LEAVING: {}}


def find_ids(
    rows: KeyRows, tables: KeyTables, keys: Keys, hidden: int, id_N: Rows, unknown_N: Rows, table_N: Rows
) -> int:
    features, unknown = len(keys.table_F), 0
    seen = {name: row for flag, kept in rows.items() if not flag & hidden for name, row in kept.items()}
    for bag, (first, end) in enumerate(zip(keys.offsets[:-1].tolist(), keys.offsets[1:].tolist(), strict=True)):
        table = int(keys.table_F[bag % features])
        for n in range(first, end):
            row = seen.get((table, int(keys.key_N[n])))
            if row is not None:
                id_N[n] = row - tables.first_T1[table]
                continue
            id_N[n] = (int(scrambled(keys.key_N[n], tables.salt_T[table])) >> 32) % int(tables.shared_T[table])
            unknown_N[unknown], table_N[unknown] = n, table
            unknown += 1
    return unknown


def mark_rows(first_T1: Rows, table_F: Rows, offsets: Rows, id_N: Rows, mark: int, mark_R: NDArray[Any]) -> None:
    table_B = np.resize(table_F, len(offsets) - 1)
    mark_R[np.repeat(first_T1[table_B], np.diff(offsets)) + id_N] = mark


def add_keys(rows: KeyRows, key_C: NDArray[Any], table_C: NDArray[Any], row_C: NDArray[Any], flags: int) -> None:
    for key, table, row in zip(key_C.tolist(), table_C.tolist(), row_C.tolist(), strict=True):
        rows[flags][table, key] = row


def change_flags(rows: KeyRows, key_C: NDArray[Any], table_C: NDArray[Any], before: int, after: int) -> None:
    for key, table in zip(key_C.tolist(), table_C.tolist(), strict=True):
        row = rows[before].pop((table, key))
        if after in rows:
            rows[after][table, key] = row


def move_slots(rows: KeyRows, hidden: int) -> KeyRows:
    if not hidden:
        return rows
    kept = {name: row for flag, listed in rows.items() if not flag & hidden for name, row in listed.items()}
    return {**no_rows(), 0: kept}


def list_keys(rows: KeyRows, hidden: int, first: int, key_R: Rows, has_R: NDArray[np.bool_]) -> None:
    for flag, kept in rows.items():
        for (_, key), row in kept.items() if not flag & hidden else ():
            if first <= row < first + len(key_R):
                key_R[row - first], has_R[row - first] = key, True


def list_part(
    rows: KeyRows, tables: KeyTables, low: int, high: int, wanted_T: NDArray[np.bool_]
) -> set[tuple[int, int, int]]:
    return {
        (key, table, row)
        for (table, key), row in rows[0].items()
        if wanted_T[table] and low <= int(scrambled(key, tables.salt_T[table])) <= high
    }

"""Plain twin of `key_map.py`, with a dict in place of slots."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.kernels.key_map import Keys, KeyTables, scrambled

KeyRows = dict[tuple[int, int], int]
"""The joint row of each table and key."""


def find_ids(
    rows: KeyRows, tables: KeyTables, keys: Keys, limit_T: NDArray[np.int64], id_N: NDArray[np.int64],
    unknown_N: NDArray[np.int64], table_N: NDArray[np.int64],
) -> int:  # fmt: skip
    features, unknown = len(keys.table_F), 0
    for bag, (first, end) in enumerate(zip(keys.offsets[:-1].tolist(), keys.offsets[1:].tolist(), strict=True)):
        table = int(keys.table_F[bag % features])
        for n in range(first, end):
            row = rows.get((table, int(keys.key_N[n])))
            if row is not None and row < limit_T[table]:
                id_N[n] = row - tables.first_T1[table]
                continue
            id_N[n] = (int(scrambled(keys.key_N[n], tables.salt_T[table])) >> 32) % int(tables.shared_T[table])
            unknown_N[unknown], table_N[unknown] = n, table
            unknown += 1
    return unknown


def add_keys(rows: KeyRows, key_C: NDArray[Any], table_C: NDArray[Any], row_C: NDArray[Any]) -> None:
    for key, table, row in zip(key_C.tolist(), table_C.tolist(), row_C.tolist(), strict=True):
        rows[table, key] = row


def move_slots(rows: KeyRows, limit_T: NDArray[np.int64]) -> KeyRows:
    return {(table, key): row for (table, key), row in rows.items() if row < limit_T[table]}


def list_keys(rows: KeyRows, key_R: NDArray[np.int64], first: int) -> None:
    for (_, key), row in rows.items():
        if first <= row < first + len(key_R):
            key_R[row - first] = key

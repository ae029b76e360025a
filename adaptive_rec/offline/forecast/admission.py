"""What `admit_after` costs and gives on a stream of raw ids: rows that are needed, and lookups that read a row of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.live.telemetry import ratio
from adaptive_rec.offline.forecast.passes import FirstSamples
from adaptive_rec.placement import RowSpace

ADMIT_AFTER = (1, 2, 3, 4, 6, 8, 12, 16, 32)
"""Values of the knob that are compared."""

MERGED_FROM = 1 << 20
"""Least number of counted keys that are merged into those counted before."""


class KeyCounts:
    """The exact lookups of the keys of one table. Memory: 16 bytes for each distinct key, several times that while they are
    merged."""

    def __init__(self) -> None:
        self._key_K, self._lookups_K = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        self._parts: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._waiting = 0

    def add(self, key_N: NDArray[np.int64]) -> None:
        key_U, lookups_U = np.unique(key_N, return_counts=True)
        self._parts.append((key_U, lookups_U))
        self._waiting += len(key_U)
        if self._waiting > max(MERGED_FROM, len(self._key_K)):  # so that each key is merged a few times only
            self._merge()

    def lookups(self) -> NDArray[np.int64]:
        """Return the lookups of each key, in no particular order."""
        self._merge()
        return self._lookups_K

    def _merge(self) -> None:
        keys, lookups = zip((self._key_K, self._lookups_K), *self._parts, strict=True)
        key_C, lookups_C = np.concatenate(keys), np.concatenate(lookups)
        order = np.argsort(key_C, kind="stable")
        key_C, lookups_C = key_C[order], lookups_C[order]
        first_U = np.flatnonzero(np.diff(key_C, prepend=key_C[:1] - 1)) if len(key_C) else np.empty(0, dtype=np.int64)
        self._key_K = key_C[first_U]
        self._lookups_K = np.add.reduceat(lookups_C, first_U) if len(first_U) else lookups_C
        self._parts, self._waiting = [], 0


def admission(samples: FirstSamples, own_rows: list[int]) -> list[dict[str, Any]]:
    """Count the keys of a source of raw ids. Return for each value of `admit_after` how many keys would get a row of their own,
    and which part of the lookups would read it, were there room for all. `own_rows`: the rows that each table has for them."""
    counts = [KeyCounts() for _ in samples.space.tables]
    for part in samples.parts("counting raw ids"):
        table_N = table_of_lookups(samples.space, part.offsets)
        for table, counted in enumerate(counts):
            counted.add(part.ids_N[table_N == table])
    lookups = [each.lookups() for each in counts]
    total = sum(int(each.sum()) for each in lookups)
    found = []
    for after in ADMIT_AFTER:
        rows = [int(np.count_nonzero(each >= after)) for each in lookups]
        own = sum(int((each[each >= after] - (after - 1)).sum()) for each in lookups)
        found.append({
            "admit_after": after,
            "rows": sum(rows),
            "own_lookup_ratio": ratio(own, total),
            "full_tables": sum(needed > there for needed, there in zip(rows, own_rows, strict=True)),
            "tables": rows,
        })  # fmt: skip
    return found


def table_of_lookups(space: RowSpace, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the table of each lookup of a batch with these bounds of its bags."""
    samples = (len(offsets) - 1) // len(space.features)
    return np.repeat(np.tile(space.table_of_feature, samples), np.diff(offsets))

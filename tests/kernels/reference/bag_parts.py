"""Plain twin of `bag_parts.py`, in NumPy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]


def _parts(offsets: Numbers, inverse_N: Numbers, owner_U: Numbers, pooled_F: Flags) -> Iterator[tuple[int, int, Numbers]]:
    """Yield the bag, the owner and the distinct rows of each part."""
    for bag in range(len(offsets) - 1):
        rows = inverse_N[offsets[bag] : offsets[bag + 1]] if pooled_F[bag % len(pooled_F)] else inverse_N[:0]
        for owner in np.unique(owner_U[rows]).tolist():
            yield bag, owner, rows[owner_U[rows] == owner]


def count_parts(
    offsets: Numbers, inverse_N: Numbers, owner_U: Numbers, parts_FW: Numbers, lookups_FW: Numbers
) -> None:
    features = len(parts_FW)
    for bag, owner, rows in _parts(offsets, inverse_N, owner_U, np.ones(features, dtype=np.bool_)):
        parts_FW[bag % features, owner] += 1
        lookups_FW[bag % features, owner] += len(rows)


def list_parts(
    offsets: Numbers, inverse_N: Numbers, owner_U: Numbers, pooled_F: Flags, pool_F: Numbers, next_part_WP: Numbers,
    next_lookup_WP: Numbers, part_bag_Q: Numbers, part_length_Q: Numbers, looked_up_K: Numbers,
) -> None:  # fmt: skip
    for bag, owner, rows in _parts(offsets, inverse_N, owner_U, pooled_F):
        place = owner, pool_F[bag % len(pooled_F)]
        part_bag_Q[next_part_WP[place]], part_length_Q[next_part_WP[place]] = bag, len(rows)
        looked_up_K[next_lookup_WP[place] : next_lookup_WP[place] + len(rows)] = rows
        next_part_WP[place] += 1
        next_lookup_WP[place] += len(rows)


def list_sources(
    offsets: Numbers, inverse_N: Numbers, pooled_F: Flags, line_U: Numbers, part_bag_Q: Numbers, line_Q: Numbers,
    next_source: Numbers, source_N: Numbers,
) -> None:  # fmt: skip
    for bag, first in enumerate(next_source.tolist()):
        rows, lines = inverse_N[offsets[bag] : offsets[bag + 1]], line_Q[part_bag_Q == bag]
        found = lines if pooled_F[bag % len(pooled_F)] else line_U[rows]
        source_N[first : first + len(found)] = found
        next_source[bag] += len(found)

"""The plain twin of the numbering of keys: no Numba, no partitions, one dictionary. Slow, and meant to be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from adaptive_rec.kernels.number_keys import FIRST_ID, INFREQUENT_ID, MISSING_ID


def number_keys(keys: Iterable[int], min_count: int) -> tuple[list[int], int]:
    """The ids of all keys of a table, in their order, and how many rows the table has.

    0 is a missing value (key 0), 1 a key that occurs less than `min_count` times; others are numbered from 2 on in order of
    first occurrence.
    """
    all_keys = list(keys)
    counts = Counter(all_keys)
    numbers: dict[int, int] = {}
    ids = []
    for key in all_keys:
        if key == 0:
            ids.append(MISSING_ID)
        elif counts[key] < min_count:
            ids.append(INFREQUENT_ID)
        else:
            ids.append(numbers.setdefault(key, FIRST_ID + len(numbers)))
    return ids, FIRST_ID + len(numbers)

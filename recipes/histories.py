"""The history of each event of a log: the last events of the same owner before it, as bags of a history column."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.loaded_samples import offsets_of, spread

LENGTH = "history_steps"
"""The dense column of the length of a row's history."""


class Histories:
    """Events (C) in the order of a log; a history has at most `steps` of them, oldest first."""

    def __init__(self, owner_C: NDArray[np.integer], steps: int) -> None:
        count = len(owner_C)
        self._order_C = np.argsort(owner_C, kind="stable")
        sorted_C = owner_C[self._order_C]
        new_C = np.ones(count, dtype=np.bool_)
        new_C[1:] = sorted_C[1:] != sorted_C[:-1]
        first_C = np.maximum.accumulate(np.where(new_C, np.arange(count), 0))
        self._place_C = np.empty(count, dtype=np.int64)
        self._place_C[self._order_C] = np.arange(count)
        self.earlier_C = np.empty(count, dtype=np.int64)
        """The number of all events of the same owner before each one."""
        self.earlier_C[self._order_C] = np.arange(count) - first_C
        self.steps = steps

    def of(self, events_B: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the histories of some events, one after the other, and the histories' lengths."""
        lengths_B = np.minimum(self.earlier_C[events_B], self.steps)
        places_N = spread(self._place_C[events_B] - lengths_B, lengths_B, offsets_of(lengths_B))
        return self._order_C[places_N], lengths_B.astype(np.int32)


def padded(values_N: NDArray[np.float32], lengths_B: NDArray[np.int32], steps: int) -> NDArray[np.float32]:
    """Return values of histories as a matrix (B, steps): they fill its last columns, the others are 0."""
    values_BT = np.zeros((len(lengths_B), steps), dtype=np.float32)
    values_BT[np.arange(steps) >= steps - lengths_B[:, None]] = values_N
    return values_BT

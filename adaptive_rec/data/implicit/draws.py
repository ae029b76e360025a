"""Items drawn by a counter: each draw depends on the seed, the epoch and its place in it alone, so that a stream can be read
again from anywhere, in batches of any size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.config.data import ImplicitConfig
from adaptive_rec.kernels.sketch_numpy import mix

Integers = NDArray[np.int64]

GOLDEN, SALT, AGAIN = 0x9E3779B97F4A7C15, 0x6E656761746976, 0xD1B54A32D192ED03
"""Odd numbers by which seeds, places and tries become different."""
MOST_TRIES = 16
"""Draws of one negative; the last one is taken whatever it is."""
_WORD = 1 << 64


class Draws:
    """Draws of items with replacement, each of I items with its share."""

    def __init__(self, settings: ImplicitConfig, rows_I: Integers) -> None:
        """`rows_I`: training rows of each item."""
        self._items = len(rows_I)
        self._ends_I: NDArray[np.float64] | None = None
        if settings.sampling == "popularity":
            shares_I = rows_I.astype(np.float64) ** settings.power
            self._ends_I = np.cumsum(shares_I) / shares_I.sum()

    @staticmethod
    def evenly(items: int) -> Draws:
        """Return draws of so many items, all alike."""
        return Draws(ImplicitConfig(), np.ones(items, np.int64))

    @property
    def shares_I(self) -> NDArray[np.float64]:
        """How probable each item is."""
        if self._ends_I is None:
            return np.full(self._items, 1 / self._items)
        return np.diff(self._ends_I, prepend=0.0)

    def draw(self, seed: int, epoch: int, place_S: Integers, attempt: int = 0) -> Integers:
        """Return the number of an item for each place of an epoch."""
        begin = scrambled((scrambled(seed + SALT) + epoch * GOLDEN + attempt * AGAIN) % _WORD)
        bits_S = mix(np.uint64(begin) + place_S.astype(np.uint64) * np.uint64(GOLDEN))
        unit_S = (bits_S >> np.uint64(11)).astype(np.float64) * 2.0**-53
        if self._ends_I is None:
            return np.minimum((unit_S * self._items).astype(np.int64), self._items - 1)
        return np.minimum(np.searchsorted(self._ends_I, unit_S, side="right"), self._items - 1)

    def draw_until(
        self, seed: int, epoch: int, place_S: Integers, is_wrong: Callable[[Integers, Integers], NDArray[np.bool_]]
    ) -> Integers:
        """Return as `draw` does, with items drawn again that `is_wrong`: it takes some of the places, by their number among
        these, and their items."""
        number_S = self.draw(seed, epoch, place_S)
        left = np.arange(len(place_S))
        for attempt in range(1, MOST_TRIES):
            left = left[is_wrong(left, number_S[left])]
            if not len(left):
                break
            number_S[left] = self.draw(seed, epoch, place_S[left], attempt)
        return number_S


def scrambled(number: int) -> int:
    """Return 64 bits that differ in about half of them for numbers that differ."""
    return int(mix(np.array([number % _WORD], dtype=np.uint64))[0])

"""The items that each user has among the training rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.loaded_samples import offsets_of, spread

Integers = NDArray[np.int64]


class ItemsOfUsers:
    """Pairs of user and item, 8 bytes each."""

    def __init__(self, users_R: Integers, number_R: Integers) -> None:
        """`users_R`: the id of each training row's user, any number of 64 bits; `number_R`: the number of its item, -1 for
        none."""
        self._users_U = np.unique(users_R)
        code_R = np.searchsorted(self._users_U, users_R)
        code_R <<= 32
        code_R |= number_R
        self._pairs = np.unique(code_R[number_R >= 0])

    @property
    def bytes(self) -> int:
        return self._users_U.nbytes + self._pairs.nbytes

    def has(self, users_S: Integers, number_S: Integers) -> NDArray[np.bool_]:
        """Return whether each user has an item."""
        code_S = self._numbers(users_S) << 32 | number_S
        place_S = np.minimum(np.searchsorted(self._pairs, code_S), max(0, len(self._pairs) - 1))
        return (self._pairs[place_S] == code_S) if len(self._pairs) else np.zeros(len(code_S), bool)

    def items(self, users_G: Integers) -> tuple[Integers, Integers]:
        """Return the items of users: for each pair the place of the user among these, and the item's number."""
        number_G = self._numbers(users_G)
        first_G = np.searchsorted(self._pairs, number_G << 32)
        counts_G = np.searchsorted(self._pairs, (number_G + 1) << 32) - first_G
        counts_G[number_G < 0] = 0
        place = spread(first_G, counts_G, offsets_of(counts_G))
        return np.repeat(np.arange(len(users_G)), counts_G), self._pairs[place] & (1 << 32) - 1

    def _numbers(self, users_S: Integers) -> Integers:
        """Return the number of each user, -1 for one without training rows."""
        place_S = np.minimum(np.searchsorted(self._users_U, users_S), len(self._users_U) - 1)
        return np.where(self._users_U[place_S] == users_S, place_S, -1)

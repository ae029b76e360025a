"""What raw ids call to change rows, and what they answer about keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Clear = Callable[[int, NDArray[np.int64]], None]
"""Clears rows of a table, by their ids, which no step looks up."""

Keep = Callable[[int, NDArray[np.int64], NDArray[np.int64]], None]
"""Keeps the values of rows of a table, by their ids, which no step looks up, at places."""

Restore = Callable[[int, NDArray[np.int64], NDArray[np.int64]], None]
"""Sets rows of a table, by their ids, to the values that are kept at places."""

Draw = Callable[[int, NDArray[np.int64], NDArray[np.int64], int], None]
"""Sets rows of a table, by their ids, to the first values of their keys, as in a table of so many rows."""


class FoundKeys(NamedTuple):
    """Where keys of a table are (N)."""

    id_N: NDArray[np.int64]
    """The rows that they read, by number within the table."""
    own_N: NDArray[np.bool_]
    """Whether the row is a key's own; otherwise it is shared."""
    counted_N: NDArray[np.int64]
    """Lookups of a key while it had no row of its own, as the sketch remembers them; 0 where none were counted."""

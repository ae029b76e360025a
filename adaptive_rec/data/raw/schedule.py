"""A knob whose changes take effect with a batch that no thread can have read yet."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.errors import CheckpointError
from adaptive_rec.saved import ANY, Saved


class KnobSchedule:
    """The values of a knob, each with the first batch that it holds for."""

    def __init__(self, value: int) -> None:
        self._changes = [(0, value)]

    @property
    def newest(self) -> int:
        """The value that was set last, whether it holds yet or not."""
        return self._changes[-1][1]

    def at(self, batch: int) -> int:
        """Return the value for a batch, none before those that are settled."""
        return next(value for first, value in reversed(self._changes) if first <= batch)

    def change(self, value: int, settled: int, first: int) -> None:
        """Have another value from a batch on. `settled`: how many batches will never be asked for again."""
        if value != self.newest:
            past = [change for change in self._changes if change[0] <= settled][-1:]
            yet = [change for change in self._changes if settled < change[0] < first]
            self._changes = [*past, *yet, (first, value)]

    def array(self) -> NDArray[np.int64]:
        """Return the changes, (batch, value) each, for a saved state."""
        return np.array(self._changes, dtype=np.int64)

    def set_array(self, found: Saved, name: str, settled: int) -> None:
        """Restore the changes of a saved state. Raises CheckpointError where there is no value for the next batch."""
        changes = found.array(name, np.int64, ANY, 2)
        if not len(changes) or changes[0, 0] > settled:
            rule = f"{name} of the raw ids must have a value from batch {settled} or before on"
            raise CheckpointError(f"{rule}, got {changes.tolist()}")
        self._changes = [(first, value) for first, value in changes.tolist()]

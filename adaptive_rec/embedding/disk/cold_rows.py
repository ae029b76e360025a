"""The cold rows of a batch on their way from the disk to its step."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.host import Arrays


@dataclass
class ColdPool:
    """The distinct rows of a batch in one pool (U); those that were read are there, the others' lines are arbitrary."""

    weights_UD: NDArray[Any]
    state_UK: NDArray[Any]
    stamp_U: NDArray[np.int64]
    """The stamp of the value that was read of each row."""
    read_U: NDArray[np.bool_]
    """Which rows were read."""
    absent_C: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """The lines of those that were not in memory."""

    @property
    def arrays(self) -> Arrays:
        return self.weights_UD, self.state_UK

    def set_absent(self, absent_C: NDArray[np.int64]) -> NDArray[np.int64]:
        """Set, and return, the lines of those that are not in memory."""
        self.absent_C = absent_C
        return absent_C


@dataclass
class ColdRows:
    """The rows of a batch, from its staging to its update."""

    pools: list[ColdPool] = field(default_factory=list)
    reading: Future[None] | None = None
    """The work that reads them; None where it is done."""
    looked_at: int = -1
    """The version of the placement by which some were not in memory."""
    ready_at: tuple[int, int] | None = None
    """The store's moment at which they were what the batch's step reads; None where they never were."""

    def read_by(self, reading: Future[None]) -> None:
        """Set the work that reads them."""
        self.reading = reading

    def wait(self) -> None:
        """Wait until they are read. Raises what their reading raised."""
        if self.reading is not None:
            self.reading.result()
        self.reading = None

    def end_looking(self, version: int) -> None:
        """Note by which version of the placement some were not in memory."""
        self.looked_at = version

    def end_reading(self, moment: tuple[int, int]) -> None:
        """Note that they are ready at a moment of the store."""
        self.ready_at = moment

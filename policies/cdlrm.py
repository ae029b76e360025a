"""cDLRM: a cache that looks ahead. The rows of the next batches are on the device before these batches are trained.

Paper: Balasubramanian, Alshabanah, Choe and Annavaram, "cDLRM: Look Ahead Caching for Scalable Training of Recommendation
Models" (RecSys 2021). As there: batches are read ahead of training in windows of `lookahead_batches` (2 as released; the
README's run on Criteo Terabyte takes 3000). Before a window begins, the rows it looks up are brought in; rows already on the
device stay. If the device holds fewer rows, the most looked up are chosen, and the others are read from the host as misses are
there. Better here: a row has one place only, so no old value is installed again, no update of a missed row is lost and no copies
are averaged; the row that leaves is the one not looked up for longest, not one drawn at random; any row may take any slot, so
slots do not collide. The stream keeps its order, and results equal plain steps.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch
from adaptive_rec.config.knobs import MOST_STEPS, Knobs
from adaptive_rec.placement import RowSpace
from adaptive_rec.policy import ArrangingPolicy, Outcome, Phase, StreamView
from adaptive_rec.policy.batches import rows_of
from adaptive_rec.saved import Saved


class CDLRM(ArrangingPolicy):
    name = "cdlrm"

    def __init__(self) -> None:
        self._size = 0
        """Batches of the present window, as the knob was when the window before began; 0 before the first one."""

    def arrange(self, stream: StreamView) -> Generator[Phase, Outcome, None]:
        ahead, size = stream.rest(), self._size or self.window_batches(stream.knobs())
        window = look(islice(ahead, size), stream.space)
        while window.batches:
            coming: list[ReadAhead] = []
            self._size, size = size, self.window_batches(stream.knobs())  # read here: the reader's progress is random
            following = islice(ahead, size)
            yield Phase("window", train(window, coming, following, stream.space), window.rows, others_stay=True)
            window = coming[0]

    def window_batches(self, knobs: Knobs) -> int:
        return knobs.lookahead_batches

    def state(self) -> dict[str, Any]:
        return {"window_batches": self._size}

    def set_state(self, found: Saved) -> None:
        if found.has("window_batches"):  # older versions took the knob as it was when the window began
            self._size = min(max(found.integer("window_batches"), 0), MOST_STEPS)


class ReadAhead:
    """Batches read ahead, and the rows they look up, the most looked up first."""

    def __init__(self, batches: list[Batch], rows: NDArray[np.int64]) -> None:
        self.batches = batches
        self.rows = rows


def train(window: ReadAhead, coming: list[ReadAhead], following: Iterator[Batch], space: RowSpace) -> Iterator[Batch]:
    """Yield the window's batches, then read the next window while they are still being trained."""
    yield from window.batches
    coming.append(look(following, space))


def look(ahead: Iterator[Batch], space: RowSpace) -> ReadAhead:
    batches = list(ahead)
    return ReadAhead(batches, most_looked_up([rows_of(batch, space) for batch in batches]))


def most_looked_up(rows: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the distinct rows, the most frequent first; of equally frequent rows the lower one."""
    lookups = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *rows]))
    first = np.flatnonzero(np.concatenate([[True], lookups[1:] != lookups[:-1]])[: len(lookups)])
    counts = np.diff(np.append(first, len(lookups)))
    rank = counts.max(initial=0) - counts
    small = rank.max(initial=0) < 1 << 16  # NumPy uses radix sort for these
    return lookups[first][np.argsort(rank.astype(np.uint16) if small else rank, kind="stable")]


POLICY = CDLRM

"""cDLRM: a cache that looks ahead. The rows of the batches to come are on the device when these are trained.

Paper: Balasubramanian, Alshabanah, Choe and Annavaram, "cDLRM: Look Ahead Caching for Scalable Training of
Recommendation Models" (RecSys 2021). As there: batches are read ahead of training, window by window of
`lookahead_batches` (2 as released; the README's run on Criteo Terabyte takes 3000), and before a window begins the rows
it looks up are brought in; rows already there stay. Where the device holds fewer, the most looked up are chosen and the
others read from the host, as misses are there. What we do better: a row is in one place only, so there is no old value
to be installed again, no update of a missed row to be lost and no average of copies; which row leaves is not drawn: it
is the one not looked up for longest. Any row may take any slot, so there are no collisions. The order of the stream
stays, and results equal plain steps.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.placement import RowSpace
from adaptive_rec.policy import ArrangingPolicy, Outcome, Phase, StreamView
from adaptive_rec.policy.batches import rows_of


class CDLRM(ArrangingPolicy):
    name = "cdlrm"

    def arrange(self, stream: StreamView) -> Generator[Phase, Outcome, None]:
        ahead = stream.rest()
        window = look(self.next_batches(stream, ahead), stream.space)
        while window.batches:
            coming: list[ReadAhead] = []
            following = self.next_batches(stream, ahead)  # counted here: when the reader comes to them is chance
            yield Phase("window", train(window, coming, following, stream.space), window.rows, others_stay=True)
            window = coming[0]

    def next_batches(self, stream: StreamView, ahead: Iterator[Batch]) -> Iterator[Batch]:
        return islice(ahead, self.window_batches(stream.knobs()))

    def window_batches(self, knobs: Knobs) -> int:
        return knobs.lookahead_batches


class ReadAhead:
    """Batches that were read, and the rows they look up, the most looked up first."""

    def __init__(self, batches: list[Batch], rows: NDArray[np.int64]) -> None:
        self.batches = batches
        self.rows = rows


def train(window: ReadAhead, coming: list[ReadAhead], following: Iterator[Batch], space: RowSpace) -> Iterator[Batch]:
    """The window's batches. Behind them, while they are still being trained, the next window is read."""
    yield from window.batches
    coming.append(look(following, space))


def look(ahead: Iterator[Batch], space: RowSpace) -> ReadAhead:
    batches = list(ahead)
    return ReadAhead(batches, most_looked_up([rows_of(batch, space) for batch in batches]))


def most_looked_up(rows: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The distinct rows, the most frequent first, of equals the lower."""
    lookups = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *rows]))
    first = np.flatnonzero(np.concatenate([[True], lookups[1:] != lookups[:-1]])[: len(lookups)])
    counts = np.diff(np.append(first, len(lookups)))
    rank = counts.max(initial=0) - counts
    small = rank.max(initial=0) < 1 << 16  # NumPy sorts these by radix
    return lookups[first][np.argsort(rank.astype(np.uint16) if small else rank, kind="stable")]


POLICY = CDLRM

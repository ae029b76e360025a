"""Policies as users write them: one places rows, one arranges the stream."""

from __future__ import annotations

from collections.abc import Generator
from itertools import islice

import numpy as np

from adaptive_rec.policy import AccessView, ArrangingPolicy, Outcome, Phase, Policy, StreamView, Wish


class FirstRows(Policy):
    """Makes the lowest ids of every table hot, whatever is looked up."""

    name = "first_rows"
    tracks_popularity = True

    def place(self, view: AccessView) -> Wish:
        rows = np.arange(view.all_rows.start, view.all_rows.stop, dtype=np.int64)
        return Wish(rows, -rows.astype(np.float64))


class EvenThenOdd(ArrangingPolicy):
    """Trains every second batch of an epoch, then the others, with the first rows hot for the latter."""

    name = "even_then_odd"
    reorders_stream = True

    def arrange(self, stream: StreamView) -> Generator[Phase, Outcome, None]:
        for epoch in stream.epochs:
            yield Phase("even", islice(stream.read(epoch), 0, None, 2), hot_rows=np.empty(0, dtype=np.int64))
            yield Phase("odd", islice(stream.read(epoch), 1, None, 2), hot_rows=np.arange(stream.space.rows))

"""FAE as released: the rows sampled most often are hot, and an epoch trains all cold batches, then all hot ones.

Paper: Adnan et al., "Accelerating Recommendation System Training by Leveraging Popular Choices" (VLDB 15(1), arXiv 2103.00686).
As in its released code, not its paper: the hot set is the top rows of all tables by sampled count, as many as the budget holds;
instead of a scheduler there is one switch an epoch; a sample is hot if all of its lookups are, and batches hold only hot samples
or only cold ones. Better here: samples are drawn from the seed and without replacement; optimizer state moves with the rows, both
ways and in every epoch; no batch is lost at an epoch's end; a kernel separates hot from cold samples as they are read, so nothing
of an epoch is held in memory or written to disk. The stream is reordered, so results equal plain steps on the reordered batches.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.policy import ArrangingPolicy, Outcome, Phase, StreamView
from adaptive_rec.policy.batches import repack
from adaptive_rec.policy.hot_sets import NO_ROWS, describe_hot_set, in_pool, only_hot, others, sample_rows


class FaeReleased(ArrangingPolicy):
    name = "fae_released"
    reorders_stream = True

    def arrange(self, stream: StreamView) -> Generator[Phase, Outcome, None]:
        sampled = sample_rows(stream)
        for epoch in stream.epochs:
            hot = self.choose(stream, *sampled)
            is_hot = only_hot(stream, hot)
            cold_batches = repack(stream.read(epoch), stream.batch_size, others(is_hot))
            hot_batches = repack(stream.read(epoch), stream.batch_size, is_hot, malformed=False)
            note = describe_hot_set(stream, hot) if epoch == stream.epochs[0] else ""
            yield Phase("cold", cold_batches, NO_ROWS, note=note)
            yield Phase("hot", hot_batches, hot)

    def choose(self, stream: StreamView, rows: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the hot set, best rows first, from the sampled rows and their counts."""
        best = rows[np.argsort(-counts, kind="stable")]
        pools = range(len(stream.space.pools))
        return np.concatenate([best[in_pool(best, stream, pool)][: stream.slots(pool)] for pool in pools])


POLICY = FaeReleased

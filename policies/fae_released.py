"""FAE as released: the rows sampled most often are hot, and an epoch trains all cold batches, then all hot ones.

Paper: Adnan et al., "Accelerating Recommendation System Training by Leveraging Popular Choices" (VLDB 15(1), arXiv
2103.00686). As in its released code, not its paper: the hot set is the top rows of all tables by sampled count, as many
as the budget holds; there is no scheduler, but one switch an epoch; a sample is hot if every one of its lookups is, and
batches hold hot samples only or cold ones only. What we do better: samples are drawn from the seed and without
replacement; optimizer state moves with the rows, both ways and in every epoch; no batch is lost at an epoch's end;
samples are told apart as they are read, by a kernel, so nothing of an epoch is held in memory or written to a disk. The
stream is reordered, so results equal plain steps on the batches as they come here.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch
from adaptive_rec.policy import Outcome, Phase, Policy, StreamView
from adaptive_rec.policy.arrange import Choose, count_rows, hot_samples, repack

NO_ROWS = np.empty(0, dtype=np.int64)


class FaeReleased(Policy):
    name = "fae_released"
    arranges_stream = True
    reorders_stream = True

    def arrange(self, stream: StreamView) -> Generator[Phase, Outcome, None]:
        sampled = sample(stream)
        for epoch in stream.epochs:
            hot = self.choose(stream, *sampled)
            is_hot = telling(stream, hot)
            cold_batches = repack(stream.read(epoch), stream.batch_size, others(is_hot))
            hot_batches = repack(stream.read(epoch), stream.batch_size, is_hot, malformed=False)
            note = told(stream, hot) if epoch == stream.epochs[0] else ""
            yield Phase("cold", cold_batches, NO_ROWS, note=note)
            yield Phase("hot", hot_batches, hot)

    def choose(self, stream: StreamView, rows: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """The hot set, best rows first, from the rows sampled and how often each."""
        best = rows[np.argsort(-counts, kind="stable")]
        return np.concatenate([best[within(best, stream, pool)][: stream.slots(pool)] for pool in pools(stream)])


def sample(stream: StreamView) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows that `policy.sampling_ratio` of the first epoch's samples look up, and how often each."""
    random = np.random.default_rng([stream.seed, int.from_bytes(b"sampling", "little")])

    def chosen(batch: Batch) -> NDArray[np.bool_]:
        return random.random(batch.size) < stream.options.sampling_ratio

    return count_rows(stream.read(stream.epochs[0]) if stream.epochs else (), stream.space, chosen)


def telling(stream: StreamView, hot: NDArray[np.int64]) -> Choose:
    """Tells which samples look up hot rows only."""
    hot_R = np.zeros(stream.space.rows, dtype=np.bool_)
    hot_R[hot] = True
    return lambda batch: hot_samples(batch, stream.space, hot_R)


def others(is_hot: Choose) -> Choose:
    """Tells the samples that are not hot."""
    return lambda batch: ~is_hot(batch)


def pools(stream: StreamView) -> range:
    return range(len(stream.space.pools))


def within(rows: NDArray[np.int64], stream: StreamView, pool: int) -> NDArray[np.bool_]:
    """Which rows are a pool's."""
    spec = stream.space.pools[pool]
    return (rows >= spec.first_row) & (rows < spec.end_row)


def told(stream: StreamView, hot: NDArray[np.int64], how: str = "the most frequent in") -> str:
    """What the journal is to say of a hot set."""
    share = f"{stream.options.sampling_ratio:.0%} of the samples"
    return f"{len(hot):,} of {stream.space.rows:,} rows are to be hot: {how} {share}"


POLICY = FaeReleased

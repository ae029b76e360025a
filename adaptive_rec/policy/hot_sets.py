"""Hot sets found in a sample of the stream, and the samples that stay within them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch
from adaptive_rec.policy.arranging import StreamView
from adaptive_rec.policy.batches import Choose, count_rows, hot_samples

NO_ROWS = np.empty(0, dtype=np.int64)


def sample_rows(stream: StreamView) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows that `policy.sampling_ratio` of the first epoch's samples look up, and how often each."""
    random = np.random.default_rng([stream.seed, int.from_bytes(b"sampling", "little")])

    def chosen(batch: Batch) -> NDArray[np.bool_]:
        return random.random(batch.size) < stream.options.sampling_ratio

    return count_rows(stream.read(stream.epochs[0]) if stream.epochs else (), stream.space, chosen)


def only_hot(stream: StreamView, hot: NDArray[np.int64]) -> Choose:
    """Choose the samples that look up hot rows only."""
    hot_R = np.zeros(stream.space.rows, dtype=np.bool_)
    hot_R[hot] = True
    return lambda batch: hot_samples(batch, stream.space, hot_R)


def others(is_hot: Choose) -> Choose:
    """Choose the samples that are not hot."""
    return lambda batch: ~is_hot(batch)


def count_samples(stream: StreamView, epoch: int, chosen: Choose) -> int:
    """Count the chosen samples of an epoch."""
    return sum(int(np.count_nonzero(chosen(batch))) for batch in stream.read(epoch))


def in_pool(rows: NDArray[np.int64], stream: StreamView, pool: int) -> NDArray[np.bool_]:
    """Return which rows are a pool's."""
    return stream.space.pools[pool].contains(rows)


def describe_hot_set(stream: StreamView, hot: NDArray[np.int64], how: str = "the most frequent in") -> str:
    """Describe a hot set for the journal."""
    share = f"{stream.options.sampling_ratio:.0%} of the samples"
    return f"{len(hot):,} of {stream.space.rows:,} rows are to be hot: {how} {share}"

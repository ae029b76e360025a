"""FeatureBags of batches: values by which bags are compared, and batches that are put together from several."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, is_one_each, one_each
from adaptive_rec.data.loaded_samples import offsets_of, spread
from adaptive_rec.kernels.sketch_numpy import mix

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
Integers = NDArray[np.int64]


def single_ids(batch: Batch, feature: int) -> Integers:
    """Return the id of each sample (B,) of a feature whose bags have one id each."""
    features = (len(batch.offsets) - 1) // batch.size if batch.size else 1
    return batch.ids_N[batch.offsets[feature : batch.size * features : features]]


def bag_values(batch: Batch, features: int) -> Integers:
    """Return a value of each bag, (B, F): its id where all bags have one, else a hash of its ids in their order."""
    if is_one_each(batch.offsets):
        return batch.ids_N.reshape(-1, features)
    lengths = np.diff(batch.offsets)
    place_N = np.arange(batch.lookups, dtype=np.int64) - np.repeat(batch.offsets[:-1], lengths)
    hashed_N = mix(mix(batch.ids_N.astype(np.uint64) + GOLDEN) + place_N.astype(np.uint64) * GOLDEN)
    sums = np.zeros(batch.lookups + 1, dtype=np.uint64)
    np.cumsum(hashed_N, out=sums[1:])
    hashed = sums[batch.offsets[1:]] - sums[batch.offsets[:-1]] + lengths.astype(np.uint64) * GOLDEN
    return hashed.view(np.int64).reshape(-1, features)


@dataclass(frozen=True)
class FeatureBags:
    """The bags of some features of samples, (S * F,) of them."""

    ids_N: Integers
    starts_SF: Integers
    lengths_SF: Integers

    @classmethod
    def of(cls, batch: Batch, features: int) -> FeatureBags:
        shape = (batch.size, features)
        return cls(batch.ids_N, batch.offsets[:-1].reshape(shape), np.diff(batch.offsets).reshape(shape))

    def take(self, samples_S: Integers) -> FeatureBags:
        """Return the bags of some samples, which share all ids."""
        return FeatureBags(self.ids_N, self.starts_SF[samples_S], self.lengths_SF[samples_S])

    def compact(self) -> FeatureBags:
        """Return the same with no other ids than theirs, bag after bag."""
        ids_N, offsets = self.packed()
        return FeatureBags(ids_N, offsets[:-1].reshape(self.starts_SF.shape), np.diff(offsets).reshape(self.starts_SF.shape))

    def with_others(self, others: FeatureBags, replaced_S: NDArray[np.bool_], features: Integers) -> FeatureBags:
        """Return these bags with those of others in place of some samples' features: `others` has these features of the samples
        that are replaced, in order."""
        starts_SF, lengths_SF = self.starts_SF.copy(), self.lengths_SF.copy()
        place = np.ix_(np.flatnonzero(replaced_S), features)
        starts_SF[place] = others.starts_SF + len(self.ids_N)
        lengths_SF[place] = others.lengths_SF
        return FeatureBags(np.concatenate([self.ids_N, others.ids_N]), starts_SF, lengths_SF)

    def packed(self) -> tuple[Integers, Integers]:
        """Return ids and offsets as a batch has them."""
        starts, lengths = self.starts_SF.reshape(-1), self.lengths_SF.reshape(-1)
        if (lengths == 1).all():
            return self.ids_N[starts], one_each(len(starts))
        offsets = offsets_of(lengths)
        return self.ids_N[spread(starts, lengths, offsets)], offsets

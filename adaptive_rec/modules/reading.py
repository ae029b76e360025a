"""Pooled vectors of lookups, each row read from the tier it is in."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.kernels.lookups import find_row_sources
from adaptive_rec.kernels.pooling import gather_bags
from adaptive_rec.micro_batch import MicroBatch
from adaptive_rec.modules.bags import NOBODY, BagBatch
from adaptive_rec.modules.gradients import Lookup


def gather(store: EmbeddingStore, lookup: Lookup) -> Tensor:
    """Pooled vectors (L, D), on the store's device. Nothing else is waited for."""
    pooled_LD = _by_the_store(store, lookup) if store.stages_ahead else _by_kernels(store, lookup)
    divisor_L1 = lookup.bags.divisor_L1
    if divisor_L1 is not None:
        pooled_LD /= divisor_L1.to(pooled_LD.device)
    return pooled_LD


def _by_kernels(store: EmbeddingStore, lookup: Lookup) -> Tensor:
    """On a CPU: from both tiers, which are in reach."""
    bags, pool = lookup.bags, lookup.bags.pool
    tiers = store.device.weights[pool].numpy(), store.host.weights[pool]
    pooled = torch.empty((len(bags), 1, tiers[1].shape[1]), dtype=store.dtype)
    if lookup.ready is not None:
        work = lookup.ready.take(store)
        where = (lookup.first, len(store.space.features), pool, work.batch.offsets, work.source_N)
    else:
        source_N, spec = np.empty(len(bags.row_N), dtype=np.int64), store.space.pools[pool]
        find_row_sources(bags.row_N, store.slot_of_row[spec.first_row : spec.end_row], source_N)
        where = (0, 1, 0, bags.offsets, source_N)
    gather_bags(*where, *tiers, pooled.numpy(), threads=store.threads)
    return pooled[:, 0]


def _by_the_store(store: EmbeddingStore, lookup: Lookup) -> Tensor:
    """On a device: what was not made ready goes up for this call alone."""
    samples = np.arange(len(lookup.bags))
    if lookup.ready is not None:
        return _lines(store, lookup.ready.take(store), lookup.first + samples, lookup.bags.pool)
    work = ClassifiedBatch(BagBatch.of(store.space, [(NOBODY, lookup.bags)]), store.space)
    store.classify(work)
    try:
        return _lines(store, work, samples, lookup.bags.pool)
    finally:
        store.release(work)


def _lines(store: EmbeddingStore, work: ClassifiedBatch, samples: NDArray[np.int64], pool: int) -> Tensor:
    """Fill a micro-batch with some bags and take what is wanted of it."""

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=store.dtype, device=store.torch_device)

    lines = len(samples)
    micro = MicroBatch(
        dense_SX=empty(lines, 0),
        pooled=[empty(lines, 1, spec.dim) for spec in store.space.pools],
        labels_S=empty(lines),
        scale_S=empty(lines),
        samples=lines,
    )
    store.gather(work, samples, np.ones(lines), micro)
    return micro.pooled[pool][:, 0]

"""Pooled vectors of bags, each row read from the tier it is in."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.records import MicroBatch
from adaptive_rec.embedding.row_types import as_array
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.kernels.lookups import find_row_sources
from adaptive_rec.kernels.pooling import gather_bags
from adaptive_rec.modules.bags import NO_CALL, BagBatch, Bags
from adaptive_rec.modules.lookahead import AheadBatch, PoolCall


def gather(store: EmbeddingStore, call: PoolCall, step: int) -> Tensor:
    """Return the pooled vectors (L, D) of a call, on the store's device. `step` is the number of updates so far."""
    bags, ahead = call.bags, call.ahead
    if ahead is None:
        pooled_LD = _gather_on_device(store, bags) if store.stages_ahead else _gather_on_cpu(store, bags)
    else:
        first, end = ahead.bag_range(bags.pool)
        if end - first == len(bags):
            pooled_LD = _gather_ahead(store, ahead, bags.pool, first, end)
        else:  # all bags of the pool at once: the kernel's start costs as much as its work
            version = (step, store.placement.version)
            whole_LD = ahead.pooled(bags.pool, version, lambda: _gather_ahead(store, ahead, bags.pool, first, end))
            pooled_LD = _without_view(whole_LD, call.first - first, len(bags))
    if bags.divisor_L1 is not None:
        pooled_LD /= bags.divisor_L1.to(pooled_LD.device)
    return pooled_LD


def _without_view(whole_LD: Tensor, first: int, vectors: int) -> Tensor:
    """Return some vectors in place, but not as a view: autograd would refuse to change a view in place."""
    place = whole_LD.storage_offset() + first * whole_LD.stride(0)
    shape = vectors, whole_LD.shape[1]
    return whole_LD.new_empty(0).set_(whole_LD.untyped_storage(), place, shape, whole_LD.stride())


def _gather_ahead(store: EmbeddingStore, ahead: AheadBatch, pool: int, first: int, end: int) -> Tensor:
    work = ahead.take(store)
    if store.stages_ahead:
        return _gather_by_store(store, work, np.arange(first, end), pool)
    first_bag = first, len(store.space.features), pool
    return _gather_by_kernel(store, pool, end - first, first_bag, work.batch.offsets, work.source_N)


def _gather_on_cpu(store: EmbeddingStore, bags: Bags) -> Tensor:
    source_N, spec = np.empty(len(bags.row_N), dtype=np.int64), store.space.pools[bags.pool]
    find_row_sources(bags.row_N, store.slot_of_row[spec.first_row : spec.end_row], source_N)
    return _gather_by_kernel(store, bags.pool, len(bags), (0, 1, 0), bags.offsets, source_N)


def _gather_by_kernel(
    store: EmbeddingStore,
    pool: int,
    vectors: int,
    first_bag: tuple[int, int, int],
    offsets: NDArray[np.int64],
    source_N: NDArray[np.int64],
) -> Tensor:
    """Read both tiers in host memory. `first_bag`: the first arguments of the kernel."""
    tiers = as_array(store.device.weights[pool]), store.host.weights[pool]
    pooled_LD = torch.empty((vectors, tiers[1].shape[1]), dtype=store.dtype)
    gather_bags(*first_bag, offsets, source_N, *tiers, pooled_LD.unsqueeze(1).numpy(), threads=store.threads)
    return pooled_LD


def _gather_on_device(store: EmbeddingStore, bags: Bags) -> Tensor:
    """Send the rows of one call to the device and pool them there."""
    work = ClassifiedBatch(BagBatch.of(store.space, [(NO_CALL, bags)]), store.space)
    store.classify(work)
    try:
        return _gather_by_store(store, work, np.arange(len(bags)), bags.pool)
    finally:
        store.release(work)


def _gather_by_store(store: EmbeddingStore, work: ClassifiedBatch, bags: NDArray[np.int64], pool: int) -> Tensor:
    """Fill a micro-batch with some bags and return its vectors of one pool."""

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=store.dtype, device=store.torch_device)

    micro = MicroBatch(
        dense_SX=empty(len(bags), 0),
        pooled=[empty(len(bags), 1, spec.dim) for spec in store.space.pools],
        labels_S=empty(len(bags)),
        scale_S=empty(len(bags)),
        samples=len(bags),
    )
    store.gather(work, bags, np.ones(len(bags)), micro)
    return _without_view(micro.pooled[pool][:, 0], 0, len(bags))

"""Pooled vectors of bags, each row read from the tier it is in."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.host import Arrays
from adaptive_rec.embedding.path.cpu import CpuPath
from adaptive_rec.embedding.records import MicroBatch
from adaptive_rec.embedding.row_types import as_array
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.kernels.lookups import find_row_sources
from adaptive_rec.kernels.pooling import gather_bags
from adaptive_rec.modules.bags import NO_CALL, BagBatch, Bags
from adaptive_rec.modules.lookahead import AheadBatch, PoolCall
from adaptive_rec.modules.uploads import to_device


def gather_pools(store: EmbeddingStore, call: PoolCall, step: int) -> Tensor:
    """Return the pooled vectors (L, D) of a call, on the store's device. `step` is the number of updates so far."""
    bags, ahead = call.bags, call.ahead
    if ahead is None:
        at_once = isinstance(store.path, CpuPath) and not store.cold.on_disk
        pooled_LD = _gather_at_once(store, bags) if at_once else _gather_staged(store, bags)
    else:
        first, end = ahead.bag_range(bags.pool)
        if end - first == len(bags):
            pooled_LD = _gather_ahead(store, ahead, bags.pool, first, end)
        else:  # all bags of the pool at once: the kernel's start costs as much as its work
            version = (step, store.index.placement.version)
            whole_LD = ahead.pooled(bags.pool, version, lambda: _gather_ahead(store, ahead, bags.pool, first, end))
            pooled_LD = _without_view(whole_LD, call.first - first, len(bags))
    if bags.divisor_L1 is not None:
        pooled_LD /= to_device(bags.divisor_L1, pooled_LD.device)
    return pooled_LD


def _without_view(whole_LD: Tensor, first: int, vectors: int) -> Tensor:
    """Return some vectors in place, but not as a view: autograd would refuse to change a view in place."""
    place = whole_LD.storage_offset() + first * whole_LD.stride(0)
    shape = vectors, whole_LD.shape[1]
    return whole_LD.new_empty(0).set_(whole_LD.untyped_storage(), place, shape, whole_LD.stride())


def _gather_ahead(store: EmbeddingStore, ahead: AheadBatch, pool: int, first: int, end: int) -> Tensor:
    return _gather_from(store, ahead.take(store), pool, first, end)


def _gather_at_once(store: EmbeddingStore, bags: Bags) -> Tensor:
    """Read the rows of one call from both tiers in host memory, without finding its distinct rows."""
    source_N, spec = np.empty(len(bags.row_N), dtype=np.int64), store.space.pools[bags.pool]
    find_row_sources(bags.row_N, store.index.slot_of_row[spec.first_row : spec.end_row], source_N)
    tiers = as_array(store.hot.tier.weights[bags.pool]), store.cold.types.weights[bags.pool]
    return _gather_by_kernel(store, tiers, len(bags), (0, 1, 0), bags.offsets, source_N)


def _gather_staged(store: EmbeddingStore, bags: Bags) -> Tensor:
    """Stage the rows of one call, and pool them."""
    work = ClassifiedBatch(BagBatch.of(store.space, [(NO_CALL, bags)]), store.space)
    store.look_up(work)
    try:
        return _gather_from(store, work, bags.pool, 0, len(bags))
    finally:
        store.release(work)


def _gather_from(store: EmbeddingStore, work: ClassifiedBatch, pool: int, first: int, end: int) -> Tensor:
    """Pool some bags of a batch whose rows are ready."""
    if not isinstance(store.path, CpuPath):
        return _gather_by_store(store, work, np.arange(first, end), pool)
    first_bag = first, len(store.space.features), pool
    return _gather_by_kernel(
        store, store.path.weights_of(work, pool), end - first, first_bag, work.batch.offsets, work.source_N
    )


def _gather_by_kernel(
    store: EmbeddingStore,
    tiers: Arrays,
    vectors: int,
    first_bag: tuple[int, int, int],
    offsets: NDArray[np.int64],
    source_N: NDArray[np.int64],
) -> Tensor:
    """Read both tiers in host memory. `first_bag`: the first arguments of the kernel."""
    pooled_LD = torch.empty((vectors, tiers[1].shape[1]), dtype=store.dtype)
    gather_bags(*first_bag, offsets, source_N, *tiers, pooled_LD.numpy(), threads=store.threads)
    return pooled_LD


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

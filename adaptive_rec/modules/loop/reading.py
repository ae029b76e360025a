"""Pooled vectors of bags, each row read from the tier it is in."""

from __future__ import annotations

from typing import NamedTuple

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
from adaptive_rec.modules.loop.bags import NO_CALL, BagBatch, Bags
from adaptive_rec.modules.loop.lookahead import PoolCall
from adaptive_rec.modules.loop.uploads import to_device


class _Places(NamedTuple):
    """What the kernel reads in host memory."""

    first_bag: tuple[int, int, int]
    """The first arguments of the kernel."""
    offsets: NDArray[np.int64]
    source_N: NDArray[np.int64]
    tiers: Arrays


def gather_pools(store: EmbeddingStore, call: PoolCall, step: int) -> Tensor:
    """Return the pooled vectors (L, D) of a call, on the store's device. `step` is the number of updates so far.

    Of a batch that was looked up ahead, all bags of the pool are pooled at once: the kernel's start costs as much as its work."""
    bags, ahead, version = call.bags, call.ahead, (step, store.index.placement.version)
    first, end = (0, len(bags)) if ahead is None else ahead.bag_range(bags.pool)
    whole_LD = None if ahead is None else ahead.pooled(bags.pool, version)
    if whole_LD is None:
        in_memory = isinstance(store.path, CpuPath)
        work = ahead.take(store) if ahead is not None else _staged(store, bags) if _must_stage(store) else None
        try:
            if work is not None and not in_memory:
                whole_LD = _gather_by_store(store, work, np.arange(first, end), bags.pool)
            else:
                places = _places_of_call(store, bags) if work is None else _places(store, work, bags.pool, first)
                whole_LD = torch.empty((end - first, places.tiers[1].shape[1]), dtype=store.dtype)
                gather_bags(
                    *places.first_bag, places.offsets, places.source_N, *places.tiers, whole_LD.numpy(), threads=store.threads
                )
        finally:
            if ahead is None and work is not None:
                store.batches.release(work)
    if ahead is not None and end - first != len(bags):
        ahead.keep_pooled(bags.pool, version, whole_LD)
        whole_LD = _without_view(whole_LD, call.first - first, len(bags))
    if bags.divisor_L1 is not None:
        whole_LD /= to_device(bags.divisor_L1, whole_LD.device)
    return whole_LD


def _without_view(whole_LD: Tensor, first: int, vectors: int) -> Tensor:
    """Return some vectors in place, but not as a view: autograd would refuse to change a view in place."""
    place = whole_LD.storage_offset() + first * whole_LD.stride(0)
    shape = vectors, whole_LD.shape[1]
    return whole_LD.new_empty(0).set_(whole_LD.untyped_storage(), place, shape, whole_LD.stride())


def _must_stage(store: EmbeddingStore) -> bool:
    """Return whether rows are not all in host memory, where a call can read them without finding its distinct ones."""
    return not isinstance(store.path, CpuPath) or store.cold.on_disk


def _staged(store: EmbeddingStore, bags: Bags) -> ClassifiedBatch:
    """Stage the rows of one call."""
    work = ClassifiedBatch(BagBatch.of(store.space, [(NO_CALL, bags)]), store.space)
    store.batches.look_up(work)
    return work


def _places_of_call(store: EmbeddingStore, bags: Bags) -> _Places:
    """Return where the rows of one call are."""
    source_N, spec = np.empty(len(bags.row_N), dtype=np.int64), store.space.pools[bags.pool]
    find_row_sources(bags.row_N, store.index.slot_of_row[spec.first_row : spec.end_row], source_N)
    tiers = as_array(store.hot.tier.weights[bags.pool]), store.cold.types.weights[bags.pool]
    return _Places((0, 1, 0), bags.offsets, source_N, tiers)


def _places(store: EmbeddingStore, work: ClassifiedBatch, pool: int, first: int) -> _Places:
    """Return where the rows of a batch are, whose bags are read from a first one on."""
    assert isinstance(store.path, CpuPath)
    first_bag = first, len(store.space.features), pool
    return _Places(first_bag, work.batch.offsets, work.source_N, store.path.weights_of(work, pool))


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
    store.batches.gather(work, bags, np.ones(len(bags)), micro)
    return _without_view(micro.pooled[pool][:, 0], 0, len(bags))

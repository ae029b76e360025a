"""Pooled vectors of lookups, each row read from the tier it is in."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.micro_batch import MicroBatch
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.kernels.lookups import find_row_sources
from adaptive_rec.kernels.pooling import gather_bags
from adaptive_rec.modules.bags import NOBODY, BagBatch, Bags
from adaptive_rec.modules.gradients import Lookup
from adaptive_rec.modules.lookahead import Ahead


def gather(store: EmbeddingStore, lookup: Lookup, step: int) -> Tensor:
    """Pooled vectors (L, D), on the store's device. `step` says which updates rows have had."""
    bags, ready = lookup.bags, lookup.ready
    if ready is None:
        pooled_LD = _alone_on_device(store, bags) if store.stages_ahead else _alone(store, bags)
    else:
        first, end = ready.lines(bags.pool)
        if end - first == len(bags):
            pooled_LD = _ready(store, ready, bags.pool, first, end)
        else:  # all that the step looks up of the pool at once: a call of the kernel costs as much as its work
            moment = (step, store.placement.version)
            whole_LD = ready.kept(bags.pool, moment, lambda: _ready(store, ready, bags.pool, first, end))
            pooled_LD = _lines_of(whole_LD, lookup.first - first, len(bags))
    if bags.divisor_L1 is not None:
        pooled_LD /= bags.divisor_L1.to(pooled_LD.device)
    return pooled_LD


def _lines_of(whole_LD: Tensor, first: int, lines: int) -> Tensor:
    """Some lines where they are. No view to autograd, which would refuse to let one be changed in place; nobody else has them."""
    place = whole_LD.storage_offset() + first * whole_LD.stride(0)
    shape = lines, whole_LD.shape[1]
    return whole_LD.new_empty(0).set_(whole_LD.untyped_storage(), place, shape, whole_LD.stride())


def _ready(store: EmbeddingStore, ahead: Ahead, pool: int, first: int, end: int) -> Tensor:
    """Some bags of a batch that was made ready."""
    work = ahead.take(store)
    if store.stages_ahead:
        return _lines(store, work, np.arange(first, end), pool)
    return _by_kernel(
        store, pool, end - first, (first, len(store.space.features), pool), work.batch.offsets, work.source_N
    )


def _alone(store: EmbeddingStore, bags: Bags) -> Tensor:
    """Bags of one call, on a CPU."""
    source_N, spec = np.empty(len(bags.row_N), dtype=np.int64), store.space.pools[bags.pool]
    find_row_sources(bags.row_N, store.slot_of_row[spec.first_row : spec.end_row], source_N)
    return _by_kernel(store, bags.pool, len(bags), (0, 1, 0), bags.offsets, source_N)


def _by_kernel(
    store: EmbeddingStore,
    pool: int,
    lines: int,
    where: tuple[int, int, int],
    offsets: NDArray[np.int64],
    source_N: NDArray[np.int64],
) -> Tensor:
    """From both tiers, which are in reach. `where`: as the kernel's first arguments."""
    tiers = store.device.weights[pool].numpy(), store.host.weights[pool]
    pooled_L1D = torch.empty((lines, 1, tiers[1].shape[1]), dtype=store.dtype)
    gather_bags(*where, offsets, source_N, *tiers, pooled_L1D.numpy(), threads=store.threads)
    return pooled_L1D[:, 0]


def _alone_on_device(store: EmbeddingStore, bags: Bags) -> Tensor:
    """Bags of one call: their rows go up for it alone."""
    work = ClassifiedBatch(BagBatch.of(store.space, [(NOBODY, bags)]), store.space)
    store.classify(work)
    try:
        return _lines(store, work, np.arange(len(bags)), bags.pool)
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

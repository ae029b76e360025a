"""These kernels gather pooled rows on the CPU and fill the caller's output.

Callers check shapes and bounds. Plain twins stand in `reference/step.py` and `reference/lookups.py`. Shapes: see the legend in
`adaptive_rec.batch`; T is the number of features of one pool. The work is cut into parts that write to different places, so
results do not depend on `threads`. Only the training thread may ask for more than one (OpenMP's threads); others pass 1. Rows of
16 bits are bit patterns, see `rows16.py`.
"""

from __future__ import annotations

from numba import njit, prange, set_num_threads

from adaptive_rec.kernels.jit import JIT, JIT_INLINE, JIT_PARALLEL, PARTS_PER_THREAD, worth_waking
from adaptive_rec.kernels.prefetch import prefetch_row
from adaptive_rec.kernels.rows16 import sum_listed


def gather_pooled(
    samples_S, pool_features, features, offsets, one_hot, source_N, mean_F, hot_HD, cold_RD, out_STD, threads=1
):
    """Sum (or average) the rows of every bag of one pool, each row read from the tier it lives in.

    `source_N` says where each lookup's row is, see `classify.find_sources`; `one_hot` that bag ``i`` is lookup ``i`` throughout.
    A negative sample is a padding line: zeros.
    """
    arrays = samples_S, pool_features, features, offsets, one_hot, source_N, mean_F, hot_HD, cold_RD, out_STD
    if worth_waking(threads, len(source_N)) == 1:
        _gather_range(0, len(samples_S), *arrays)
    else:
        set_num_threads(threads)
        _gather_parts(threads * PARTS_PER_THREAD, *arrays)


@njit(**JIT_PARALLEL)
def _gather_parts(
    parts, samples_S, pool_features, features, offsets, one_hot, source_N, mean_F, hot_HD, cold_RD, out_STD
):
    samples = len(samples_S)
    for p in prange(parts):
        _gather_range(
            samples * p // parts, samples * (p + 1) // parts,
            samples_S, pool_features, features, offsets, one_hot, source_N, mean_F, hot_HD, cold_RD, out_STD,
        )  # fmt: skip


@njit(**JIT)
def _gather_range(
    first, end, samples_S, pool_features, features, offsets, one_hot, source_N, mean_F, hot_HD, cold_RD, out_STD
):
    columns = len(pool_features)
    out_LD = out_STD.reshape(-1, out_STD.shape[2])
    block = max(1, _LOOKUPS_AT_ONCE // max(columns, 1))
    for i in range(first, end):
        if one_hot and (i - first) % block == 0:
            for j in range(i + block, min(i + 2 * block, end)):
                _prefetch_sample(samples_S[j], pool_features, features, source_N, hot_HD, cold_RD)
        if samples_S[i] < 0:
            out_STD[i] = 0
            continue
        for t in range(columns):
            f = pool_features[t]
            bag = samples_S[i] * features + f
            start, stop = (bag, bag + 1) if one_hot else (offsets[bag], offsets[bag + 1])
            if not one_hot:
                _prefetch_ahead(start, stop, source_N, hot_HD, cold_RD)
            _pool_bag(start, stop, source_N, mean_F[f], hot_HD, cold_RD, out_LD, i * columns + t)


_LOOKUPS_AT_ONCE, _LOOKUPS_AHEAD = 64, 32
"""Where bags hold one id each, so many rows are prefetched at once, a block of samples ahead: a core then waits for all of them
together. Of longer bags, rows are prefetched one by one, so far ahead of their use."""


def gather_bags(first, features, feature, offsets, source_N, hot_HD, cold_RD, out_LD, threads=1):
    """Sum the rows of bags of one feature, from sample `first` on: bag ``(first + i) * features + feature`` to line ``i``."""
    arrays = first, features, feature, offsets, source_N, hot_HD, cold_RD, out_LD
    if worth_waking(threads, len(out_LD)) == 1:
        _gather_bag_range(0, len(out_LD), *arrays)
    else:
        set_num_threads(threads)
        _gather_bag_parts(threads * PARTS_PER_THREAD, *arrays)


@njit(**JIT_PARALLEL)
def _gather_bag_parts(parts, first, features, feature, offsets, source_N, hot_HD, cold_RD, out_LD):
    bags = len(out_LD)
    for p in prange(parts):
        begin, end = bags * p // parts, bags * (p + 1) // parts
        _gather_bag_range(begin, end, first, features, feature, offsets, source_N, hot_HD, cold_RD, out_LD)


@njit(**JIT)
def _gather_bag_range(begin, end, first, features, feature, offsets, source_N, hot_HD, cold_RD, out_LD):
    for i in range(begin, end):
        bag = (first + i) * features + feature
        _prefetch_ahead(offsets[bag], offsets[bag + 1], source_N, hot_HD, cold_RD)
        _pool_bag(offsets[bag], offsets[bag + 1], source_N, False, hot_HD, cold_RD, out_LD, i)


@njit(**JIT_INLINE)
def _prefetch_sample(sample, pool_features, features, source_N, hot_HD, cold_RD):
    if sample >= 0:
        for f in pool_features:
            _prefetch_source(source_N[sample * features + f], hot_HD, cold_RD)


@njit(**JIT_INLINE)
def _prefetch_ahead(start, stop, source_N, hot_HD, cold_RD):
    """Prefetch as many rows as a bag has, of this bag and of the next ones."""
    for n in range(start + _LOOKUPS_AHEAD, min(stop + _LOOKUPS_AHEAD, len(source_N))):
        _prefetch_source(source_N[n], hot_HD, cold_RD)


@njit(**JIT_INLINE)
def _prefetch_source(source, hot_HD, cold_RD):
    if source >= 0:
        prefetch_row(hot_HD, source)
    else:
        prefetch_row(cold_RD, ~source)


@njit(**JIT_INLINE)
def _pool_bag(start, end, source_N, mean, hot_HD, cold_RD, out_LD, line):
    """Fill ``out_LD[line]`` with a bag's sum or mean."""
    sum_listed(hot_HD, cold_RD, source_N, start, end, out_LD, line)
    if mean and end > start:
        for d in range(out_LD.shape[1]):
            out_LD[line, d] /= end - start

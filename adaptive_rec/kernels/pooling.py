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
from adaptive_rec.kernels.rows16 import read


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
    for i in range(first, end):
        if i + 1 < end and samples_S[i + 1] >= 0:
            _prefetch_sample(samples_S[i + 1], pool_features, features, offsets, one_hot, source_N, hot_HD, cold_RD)
        if samples_S[i] < 0:
            out_STD[i] = 0
            continue
        for t in range(len(pool_features)):
            f = pool_features[t]
            bag = samples_S[i] * features + f
            start, stop = (bag, bag + 1) if one_hot else (offsets[bag], offsets[bag + 1])
            _pool_bag(start, stop, source_N, mean_F[f], hot_HD, cold_RD, out_STD, i, t)


_LOOKUPS_AHEAD = 16
"""How far ahead of their use rows are prefetched where bags are pooled one by one."""


def gather_bags(first, features, feature, offsets, source_N, hot_HD, cold_RD, out_L1D, threads=1):
    """Sum the rows of bags of one feature, from sample `first` on: bag ``(first + i) * features + feature`` to line ``i``."""
    arrays = first, features, feature, offsets, source_N, hot_HD, cold_RD, out_L1D
    if worth_waking(threads, len(out_L1D)) == 1:
        _gather_bag_range(0, len(out_L1D), *arrays)
    else:
        set_num_threads(threads)
        _gather_bag_parts(threads * PARTS_PER_THREAD, *arrays)


@njit(**JIT_PARALLEL)
def _gather_bag_parts(parts, first, features, feature, offsets, source_N, hot_HD, cold_RD, out_L1D):
    bags = len(out_L1D)
    for p in prange(parts):
        begin, end = bags * p // parts, bags * (p + 1) // parts
        _gather_bag_range(begin, end, first, features, feature, offsets, source_N, hot_HD, cold_RD, out_L1D)


@njit(**JIT)
def _gather_bag_range(begin, end, first, features, feature, offsets, source_N, hot_HD, cold_RD, out_L1D):
    for i in range(begin, end):
        bag = (first + i) * features + feature
        for n in range(offsets[bag] + _LOOKUPS_AHEAD, offsets[bag + 1] + _LOOKUPS_AHEAD):
            if n < len(source_N):
                _prefetch_source(source_N[n], hot_HD, cold_RD)
        _pool_bag(offsets[bag], offsets[bag + 1], source_N, False, hot_HD, cold_RD, out_L1D, i, 0)


@njit(**JIT_INLINE)
def _prefetch_sample(sample, pool_features, features, offsets, one_hot, source_N, hot_HD, cold_RD):
    for f in pool_features:
        bag = sample * features + f
        start, stop = (bag, bag + 1) if one_hot else (offsets[bag], offsets[bag + 1])
        for n in range(start, stop):
            _prefetch_source(source_N[n], hot_HD, cold_RD)


@njit(**JIT_INLINE)
def _prefetch_source(source, hot_HD, cold_RD):
    if source >= 0:
        prefetch_row(hot_HD, source)
    else:
        prefetch_row(cold_RD, ~source)


@njit(**JIT_INLINE)
def _pool_bag(start, end, source_N, mean, hot_HD, cold_RD, out_STD, i, t):
    """Fill ``out_STD[i, t]`` with a bag's sum or mean: the first row is copied, the others are added."""
    dim = out_STD.shape[2]
    if start == end:
        for d in range(dim):
            out_STD[i, t, d] = 0
        return
    source = source_N[start]
    if source >= 0:
        for d in range(dim):
            out_STD[i, t, d] = read(hot_HD, source, d)
    else:
        for d in range(dim):
            out_STD[i, t, d] = read(cold_RD, ~source, d)
    if end == start + 1:
        return
    n = start + 1
    while n < end:
        source = source_N[n]
        if n + 4 <= end and _same_tier(source, source_N[n + 1], source_N[n + 2], source_N[n + 3]):
            if source >= 0:
                _add_four(hot_HD, source, source_N[n + 1], source_N[n + 2], source_N[n + 3], out_STD, i, t)
            else:
                _add_four(cold_RD, ~source, ~source_N[n + 1], ~source_N[n + 2], ~source_N[n + 3], out_STD, i, t)
            n += 4
            continue
        if source >= 0:
            for d in range(dim):
                out_STD[i, t, d] += read(hot_HD, source, d)
        else:
            for d in range(dim):
                out_STD[i, t, d] += read(cold_RD, ~source, d)
        n += 1
    if mean:
        for d in range(dim):
            out_STD[i, t, d] /= end - start


@njit(**JIT_INLINE)
def _same_tier(first, second, third, fourth):
    return (first >= 0) == (second >= 0) == (third >= 0) == (fourth >= 0)


@njit(**JIT_INLINE)
def _add_four(table, first, second, third, fourth, out_STD, i, t):
    """Add four rows at once: what was summed so far is read and written once for all of them."""
    for d in range(out_STD.shape[2]):
        two, others = read(table, first, d) + read(table, second, d), read(table, third, d) + read(table, fourth, d)
        out_STD[i, t, d] += two + others

"""Embedding kernels for the CPU: arrays in, the caller's outputs filled. Callers check shapes and bounds.

Every kernel has a plain twin of the same name in `reference.py`. Shapes: see the legend in `adaptive_rec.batch`;
T is the number of features of one pool, K the width of the optimizer state of a row.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from adaptive_rec.kernels.jit import JIT

SGD, ROWWISE_ADAGRAD, ADAGRAD, LAZY_ADAM = 0, 1, 2, 3
"""Update rules of `apply_rows`."""


@njit(inline="always")
def _hash(row, mask):
    x = np.uint64(row) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64((x >> np.uint64(20)) & np.uint64(mask))


@njit(**JIT)
def find_distinct(
    ids_N, offsets, feature_order, pool_of_feature, first_row_F, rows_F, keys, values,
    distinct_N, inverse_N, segments_N1, segment_bag_N, pool_ends,
):  # fmt: skip
    """Find the distinct rows of a batch, pool by pool, and list the bags that touch each.

    `keys` (filled with -1, a power of two long, at least twice N) and `values` are scratch of a hash table.
    Row ``u`` is touched by bags ``segment_bag_N[segments_N1[u] : segments_N1[u + 1]]``, in order of features, then samples.
    Returns U, or ``-1 - n`` for the first lookup ``n`` whose id lies outside its table. Only the first U entries of
    `distinct_N` (U + 1 of `segments_N1`) are meaningful.
    """
    features = len(feature_order)
    samples = (len(offsets) - 1) // features
    mask = len(keys) - 1
    distinct = 0
    for k in range(features):
        f = feature_order[k]
        for b in range(samples):
            bag = b * features + f
            for n in range(offsets[bag], offsets[bag + 1]):
                if ids_N[n] < 0 or ids_N[n] >= rows_F[f]:
                    return -1 - n
                row = first_row_F[f] + ids_N[n]
                h = _hash(row, mask)
                while keys[h] != row and keys[h] != -1:
                    h = (h + 1) & mask
                if keys[h] == -1:
                    keys[h] = row
                    values[h] = distinct
                    distinct_N[distinct] = row
                    segments_N1[distinct + 1] = 0
                    distinct += 1
                u = values[h]
                inverse_N[n] = u
                segments_N1[u + 1] += 1
        pool_ends[pool_of_feature[f]] = distinct
    segments_N1[0] = 0
    for u in range(distinct):
        segments_N1[u + 1] += segments_N1[u]
    for k in range(features):
        f = feature_order[k]
        for b in range(samples):
            bag = b * features + f
            for n in range(offsets[bag], offsets[bag + 1]):
                u = inverse_N[n]
                segment_bag_N[segments_N1[u]] = bag
                segments_N1[u] += 1
    for u in range(distinct, 0, -1):
        segments_N1[u] = segments_N1[u - 1]
    segments_N1[0] = 0
    return distinct


@njit(**JIT)
def classify(distinct_U, pool_ends, pool_first_row, slot_of_row, inverse_N, offsets, features, source_U, popular_B):
    """Look up where each distinct row is, and which samples touch hot rows only.

    `source_U` becomes the slot of a hot row, or ``~row`` of a cold one (row within its pool).
    """
    pool = 0
    for u in range(len(distinct_U)):
        while u >= pool_ends[pool]:
            pool += 1
        row = distinct_U[u]
        slot = slot_of_row[row]
        source_U[u] = slot if slot >= 0 else ~(row - pool_first_row[pool])
    for b in range(len(popular_B)):
        popular = True
        for n in range(offsets[b * features], offsets[(b + 1) * features]):
            if source_U[inverse_N[n]] < 0:
                popular = False
                break
        popular_B[b] = popular


@njit(**JIT)
def count_by_feature(source_U, inverse_N, offsets, features, lookups_F, hot_F):
    """Count the lookups of each feature, and those of hot rows among them."""
    lookups_F[:] = 0
    hot_F[:] = 0
    for bag in range(len(offsets) - 1):
        f = bag % features
        for n in range(offsets[bag], offsets[bag + 1]):
            lookups_F[f] += 1
            hot_F[f] += source_U[inverse_N[n]] >= 0


@njit(**JIT)
def count_flagged(flag_U, inverse_N, offsets, features, count_B):
    """Count the lookups of each sample whose distinct row is flagged."""
    for b in range(len(count_B)):
        count = 0
        for n in range(offsets[b * features], offsets[(b + 1) * features]):
            count += flag_U[inverse_N[n]]
        count_B[b] = count


@njit(**JIT)
def gather_pooled(samples_S, pool_features, features, offsets, inverse_N, source_U, mean_F, hot_HD, cold_RD, out_STD):
    """Sum (or average) the rows of every bag of one pool, each row read from the tier it lives in.

    A negative sample is a padding line: zeros.
    """
    dim = out_STD.shape[2]
    for i in range(len(samples_S)):
        for t in range(len(pool_features)):
            for d in range(dim):
                out_STD[i, t, d] = 0
            if samples_S[i] < 0:
                continue
            f = pool_features[t]
            bag = samples_S[i] * features + f
            start, end = offsets[bag], offsets[bag + 1]
            for n in range(start, end):
                source = source_U[inverse_N[n]]
                if source >= 0:
                    for d in range(dim):
                        out_STD[i, t, d] += hot_HD[source, d]
                else:
                    for d in range(dim):
                        out_STD[i, t, d] += cold_RD[~source, d]
            if mean_F[f] and end - start > 1:
                for d in range(dim):
                    out_STD[i, t, d] /= end - start


@njit(**JIT)
def sum_segments(
    first_u, segments_U1, segment_bag_N, features, offsets, column_F, mean_F, position_B, grad_STD, grad_UD, touched_U
):
    """Add up each distinct row's gradient over the bags that touch it, for one pool.

    `first_u` is the pool's first distinct row, `column_F` a feature's column in `grad_STD`, and ``position_B[b]`` the
    line of sample ``b`` in it, or -1 for a sample that was skipped. Rows that no trained sample touches stay untouched.
    """
    dim = grad_UD.shape[1]
    for i in range(len(grad_UD)):
        u = first_u + i
        touched = 0
        for d in range(dim):
            grad_UD[i, d] = 0
        for k in range(segments_U1[u], segments_U1[u + 1]):
            bag = segment_bag_N[k]
            sample = bag // features
            line = position_B[sample]
            if line < 0:
                continue
            touched = 1
            f = bag - sample * features
            column = column_F[f]
            length = offsets[bag + 1] - offsets[bag]
            if mean_F[f] and length > 1:
                for d in range(dim):
                    grad_UD[i, d] += grad_STD[line, column, d] / length
            else:
                for d in range(dim):
                    grad_UD[i, d] += grad_STD[line, column, d]
        touched_U[i] = touched


@njit(**JIT)
def apply_rows(
    rule, lr, eps, beta1, beta2, step, source_U, grad_UD, active_U, hot_HD, hot_state_HK, cold_RD, cold_state_RK
):
    """Update every active distinct row once, in the tier it lives in. Returns how many were updated.

    `step` counts from 1 and serves the bias correction of lazy Adam (as in torch.optim.SparseAdam) only. State columns:
    none for SGD, the mean square for row-wise Adagrad, D squares for Adagrad, D first then D second moments for Adam.
    """
    dim = grad_UD.shape[1]
    updated = 0
    correction = lr * np.sqrt(1 - beta2**step) / (1 - beta1**step) if rule == LAZY_ADAM else lr
    for u in range(len(source_U)):
        if not active_U[u]:
            continue
        updated += 1
        r = source_U[u]
        weights, state = hot_HD, hot_state_HK
        if r < 0:
            r = ~r
            weights, state = cold_RD, cold_state_RK
        if rule == SGD:
            for d in range(dim):
                weights[r, d] -= lr * grad_UD[u, d]
        elif rule == ROWWISE_ADAGRAD:
            square = 0.0
            for d in range(dim):
                square += grad_UD[u, d] * grad_UD[u, d]
            state[r, 0] += square / dim
            scale = lr / (np.sqrt(state[r, 0]) + eps)
            for d in range(dim):
                weights[r, d] -= scale * grad_UD[u, d]
        elif rule == ADAGRAD:
            for d in range(dim):
                state[r, d] += grad_UD[u, d] * grad_UD[u, d]
                weights[r, d] -= lr * grad_UD[u, d] / (np.sqrt(state[r, d]) + eps)
        else:
            for d in range(dim):
                state[r, d] = beta1 * state[r, d] + (1 - beta1) * grad_UD[u, d]
                state[r, dim + d] = beta2 * state[r, dim + d] + (1 - beta2) * grad_UD[u, d] * grad_UD[u, d]
                weights[r, d] -= correction * state[r, d] / (np.sqrt(state[r, dim + d]) + eps)
    return updated

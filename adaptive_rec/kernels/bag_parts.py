"""The parts of bags that the owners of their rows pool: a part is the lookups of one bag whose rows have one owner.

The plain twin is in `reference/bag_parts.py`. Callers check shapes and bounds. Q are parts, K their lookups, W ranks, P pools.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from adaptive_rec.kernels.jit import JIT


@njit(**JIT)
def count_parts(offsets, inverse_N, owner_U, parts_FW, lookups_FW):
    """Count the parts of each feature's bags, and their lookups, by owner. Adds to `parts_FW` and `lookups_FW`."""
    features, ranks = parts_FW.shape
    last_bag_W = np.full(ranks, -1, dtype=np.int64)
    for bag in range(len(offsets) - 1):
        f = bag % features
        for n in range(offsets[bag], offsets[bag + 1]):
            owner = owner_U[inverse_N[n]]
            lookups_FW[f, owner] += 1
            if last_bag_W[owner] != bag:
                last_bag_W[owner] = bag
                parts_FW[f, owner] += 1


@njit(**JIT)
def list_parts(
    offsets, inverse_N, owner_U, pooled_F, pool_F, next_part_WP, next_lookup_WP, part_bag_Q, part_length_Q, looked_up_K
):
    """List the parts and the distinct row of each of their lookups: owner after owner, pool after pool, in the order of the bags.

    `next_part_WP` and `next_lookup_WP` are where the first part of each owner and pool goes, and its first lookup; they move on.
    """
    features, ranks = len(pooled_F), len(next_part_WP)
    count_W, place_W = np.zeros(ranks, dtype=np.int64), np.zeros(ranks, dtype=np.int64)
    for bag in range(len(offsets) - 1):
        f = bag % features
        if not pooled_F[f]:
            continue
        p = pool_F[f]
        for n in range(offsets[bag], offsets[bag + 1]):
            count_W[owner_U[inverse_N[n]]] += 1
        for n in range(offsets[bag], offsets[bag + 1]):
            owner = owner_U[inverse_N[n]]
            if count_W[owner]:  # the first lookup of a part
                part = next_part_WP[owner, p]
                part_bag_Q[part], part_length_Q[part] = bag, count_W[owner]
                place_W[owner] = next_lookup_WP[owner, p]
                next_part_WP[owner, p] += 1
                next_lookup_WP[owner, p] += count_W[owner]
                count_W[owner] = 0
            looked_up_K[place_W[owner]] = inverse_N[n]
            place_W[owner] += 1


@njit(**JIT)
def list_sources(offsets, inverse_N, pooled_F, line_U, part_bag_Q, line_Q, next_source, source_N):
    """List the lines that each bag reads: those of its rows, or those of its parts where its feature is pooled.

    `next_source` is where each bag's first line goes; it moves on.
    """
    features = len(pooled_F)
    for bag in range(len(offsets) - 1):
        if pooled_F[bag % features]:
            continue
        for n in range(offsets[bag], offsets[bag + 1]):
            source_N[next_source[bag]] = line_U[inverse_N[n]]
            next_source[bag] += 1
    for q in range(len(part_bag_Q)):
        bag = part_bag_Q[q]
        source_N[next_source[bag]] = line_Q[q]
        next_source[bag] += 1

"""Parts of bags: kernels beside their plain twins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adaptive_rec.kernels import bag_parts
from tests.kernels.reference import bag_parts as plain

FEATURES, SAMPLES, ROWS = 3, 40, 50
POOL_F = np.array([0, 1, 0])


def listed(module: Any, ranks: int, pooled_F: Any, seed: int) -> list[Any]:
    """Return all that the kernels of a module make of a random batch."""
    random = np.random.default_rng(seed)
    length = random.integers(0, 7, SAMPLES * FEATURES)
    offsets = np.concatenate([[0], np.cumsum(length)])
    inverse_N = random.integers(0, ROWS, offsets[-1]).astype(np.int32)
    owner_U = random.integers(0, ranks, ROWS)
    bags = offsets, inverse_N
    parts_FW, lookups_FW = np.zeros((2, FEATURES, ranks), dtype=np.int64)
    module.count_parts(*bags, owner_U, parts_FW, lookups_FW)
    counted = [parts_FW.copy(), lookups_FW.copy()]
    for count in (parts_FW, lookups_FW):
        count[~pooled_F] = 0
    counts = [np.stack([count[POOL_F == pool].sum(axis=0) for pool in (0, 1)], axis=1) for count in (parts_FW, lookups_FW)]
    firsts = [(np.cumsum(count) - count.reshape(-1)).reshape(count.shape) for count in counts]
    part_bag_Q, part_length_Q = np.empty((2, counts[0].sum()), dtype=np.int64)
    looked_up_K = np.empty(counts[1].sum(), dtype=np.int64)
    module.list_parts(*bags, owner_U, pooled_F, POOL_F, *firsts, part_bag_Q, part_length_Q, looked_up_K)
    length[np.tile(pooled_F, SAMPLES)] = np.bincount(part_bag_Q, minlength=len(length))[np.tile(pooled_F, SAMPLES)]
    next_source = np.cumsum(length) - length
    source_N = np.full(length.sum(), -1)
    line_U, line_Q = random.permutation(ROWS), ROWS + random.permutation(len(part_bag_Q))
    module.list_sources(*bags, pooled_F, line_U, part_bag_Q, line_Q, next_source, source_N)
    assert len(part_bag_Q) == 0 or part_length_Q.sum() == len(looked_up_K)
    return [*counted, *firsts, part_bag_Q, part_length_Q, looked_up_K, next_source, source_N]


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("pooled", [(True, True, True), (False, True, False), (True, False, True), (False, False, False)])
def test_kernels_equal_their_plain_twins(ranks: int, pooled: tuple[bool, ...]) -> None:
    for seed in range(3):
        fast, slow = (listed(module, ranks, np.array(pooled), seed) for module in (bag_parts, plain))
        for one, other in zip(fast, slow, strict=True):
            np.testing.assert_array_equal(one, other)

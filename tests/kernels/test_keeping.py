"""Every kernel of a snapshot against its plain twin."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_rec.kernels import keeping
from tests.kernels.reference import keeping as reference_keeping

ROWS = 40
DTYPES = [np.float32, np.float64, np.uint16]
quick = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 1 << 16)


Arguments = tuple[keeping.KeptPool, keeping.ShardArrays]


def drawn(random: np.random.Generator, dtype: Any, dim: int, width: int, room: int, tiers: bool) -> Arguments:
    """A pool of which a third of the rows is hot, or which has one tier only, and an empty shard."""
    slot_R = np.where(random.random(ROWS) < 0.3, random.permutation(ROWS), -1).astype(np.int32)
    arrays = [random.integers(0, 1000, (ROWS, cols)).astype(dtype) for cols in (dim, width, dim, width)]
    shard = keeping.ShardArrays(
        np.full(room, 77, np.int64), np.full((room, dim), 77, dtype), np.full((room, width), 77, dtype)
    )
    mark_R = random.integers(0, 3, ROWS).astype(np.uint8)
    return keeping.KeptPool(mark_R, slot_R if tiers else slot_R[:0], *arrays, first_row=1000), shard


def same(mine: Arguments, twins: Arguments) -> bool:
    return all(np.array_equal(*pair) for part in zip(mine, twins, strict=True) for pair in zip(*part, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dim", "width"), [(1, 0), (16, 1), (5, 10)])
@quick
@given(seeds, st.integers(1, 30), st.integers(0, 10), st.integers(0, 5), st.booleans())
def test_keep_rows_equals_its_twin(
    dtype: Any, dim: int, width: int, seed: int, room: int, start: int, filled: int, tiers: bool
) -> None:
    random = np.random.default_rng(seed)
    mine = drawn(random, dtype, dim, width, room, tiers)
    twins, rows, filled = deepcopy(mine), random.permutation(ROWS)[:25], min(filled, room)
    assert keeping.keep_rows(rows, start, *mine, filled) == reference_keeping.keep_rows(rows, start, *twins, filled)
    assert same(mine, twins)


@pytest.mark.parametrize("dtype", DTYPES)
@quick
@given(seeds, st.integers(1, 30), st.integers(0, ROWS), st.integers(1, 12), st.booleans())
def test_take_rows_equals_its_twin(dtype: Any, seed: int, room: int, first: int, most: int, tiers: bool) -> None:
    random = np.random.default_rng(seed)
    mine = drawn(random, dtype, 4, 2, room, tiers)
    twins = deepcopy(mine)
    end, filled = int(random.integers(first, ROWS + 1)), int(random.integers(0, room + 1))
    got = keeping.take_rows(first, end, most, *mine, filled)
    assert got == reference_keeping.take_rows(first, end, most, *twins, filled)
    assert same(mine, twins)

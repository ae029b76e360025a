"""Every kernel of a snapshot against its plain twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_rec.kernels import keeping
from adaptive_rec.kernels.reference import keeping as reference_keeping

ROWS = 40
DTYPES = [np.float32, np.float64, np.uint16]
quick = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 1 << 16)


def drawn(random: np.random.Generator, dtype: Any, dim: int, width: int, room: int, tiers: bool) -> list[Any]:
    """Arguments of both kernels from `mark_R` on, but for `filled`: a third of the rows is hot, or there is one tier only."""
    slot_R = np.where(random.random(ROWS) < 0.3, random.permutation(ROWS), -1).astype(np.int32)
    arrays = [random.integers(0, 1000, (ROWS, cols)).astype(dtype) for cols in (dim, width, dim, width)]
    shard = [np.full(room, 77, np.int64), np.full((room, dim), 77, dtype), np.full((room, width), 77, dtype)]
    return [random.integers(0, 3, ROWS).astype(np.uint8), slot_R if tiers else slot_R[:0], *arrays, 1000, *shard]


def copied(arguments: list[Any]) -> list[Any]:
    return [each.copy() if isinstance(each, np.ndarray) else each for each in arguments]


def same(mine: list[Any], twins: list[Any]) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(mine, twins, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dim", "width"), [(1, 0), (16, 1), (5, 10)])
@quick
@given(seeds, st.integers(1, 30), st.integers(0, 10), st.integers(0, 5), st.booleans())
def test_keep_rows_equals_its_twin(
    dtype: Any, dim: int, width: int, seed: int, room: int, start: int, filled: int, tiers: bool
) -> None:
    random = np.random.default_rng(seed)
    mine = drawn(random, dtype, dim, width, room, tiers)
    twins, rows, filled = copied(mine), random.permutation(ROWS)[:25], min(filled, room)
    assert keeping.keep_rows(rows, start, *mine, filled) == reference_keeping.keep_rows(rows, start, *twins, filled)
    assert same(mine, twins)


@pytest.mark.parametrize("dtype", DTYPES)
@quick
@given(seeds, st.integers(1, 30), st.integers(0, ROWS), st.integers(1, 12), st.booleans())
def test_take_rows_equals_its_twin(dtype: Any, seed: int, room: int, first: int, most: int, tiers: bool) -> None:
    random = np.random.default_rng(seed)
    mine = drawn(random, dtype, 4, 2, room, tiers)
    twins = copied(mine)
    end, filled = int(random.integers(first, ROWS + 1)), int(random.integers(0, room + 1))
    got = keeping.take_rows(first, end, most, *mine, filled)
    assert got == reference_keeping.take_rows(first, end, most, *twins, filled)
    assert same(mine, twins)

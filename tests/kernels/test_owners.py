"""Owners of rows: kernels beside their plain twins, and what the sharing promises."""

from __future__ import annotations

import numpy as np
import pytest

from adaptive_rec.batch import FeatureSpec, TableSpec
from adaptive_rec.embedding.peers.ownership import Ownership
from adaptive_rec.kernels import owners
from adaptive_rec.placement import RowSpace
from tests.kernels.reference import owners as plain

TABLES = (TableSpec("a", 1000, 8), TableSpec("b", 3, 16), TableSpec("c", 1, 8), TableSpec("d", 77, 16))
SPACE = RowSpace.of(TABLES, tuple(FeatureSpec(table.name, index) for index, table in enumerate(TABLES)))


WHOLE = (-1, -1, 1, 0)
"""Homes of the tables, where some have one owner: of two dims, the smallest, and neither first nor last in the row space."""


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_kernels_equal_their_plain_twins(ranks: int) -> None:
    rows = np.random.default_rng(ranks).permutation(SPACE.rows)
    dealt = np.array([-1, -1, -1, -1]), np.array([[0, 500, 501, 504]])
    some_whole = np.array([-1, ranks - 1, -1, 0]), np.arange(ranks * 4).reshape(ranks, 4) * 1000
    for homes in (dealt, some_whole):
        found = [[np.empty_like(rows) for _ in range(2)] for _ in range(2)]
        for module, out in zip((owners, plain), found, strict=True):
            module.find_owners(rows, np.sort(SPACE.table_first_row), *homes, ranks, *out)
        np.testing.assert_array_equal(*[np.stack(out) for out in found])

    blocks, ids = np.arange(5, 300), [np.empty(295, np.int64) for _ in range(2)]
    for module, out in zip((owners, plain), ids, strict=True):
        module.find_ids(blocks, ranks, ranks - 1, out)
    np.testing.assert_array_equal(*ids)


@pytest.mark.parametrize("home_T", [(), WHOLE, (0, 1, 0, 1)])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_every_row_has_one_owner_and_its_number_leads_back(ranks: int, home_T: tuple[int, ...]) -> None:
    rows = np.arange(SPACE.rows)
    parts = [Ownership(SPACE, ranks, rank, home_T=home_T) for rank in range(ranks)]
    owner_U, own_row_U = parts[0].split(rows)

    for rank, part in enumerate(parts):
        mine = owner_U == rank
        joint = part.joint_rows(np.arange(part.own.rows))
        assert (np.diff(joint[joint >= 0]) > 0).all()
        np.testing.assert_array_equal(joint[joint >= 0], np.flatnonzero(mine))
        np.testing.assert_array_equal(joint[own_row_U[mine]], rows[mine])
        for table, spec in enumerate(TABLES):
            ids = part.owned_ids(table)
            first = SPACE.table_first_row[table]
            np.testing.assert_array_equal(owner_U[first + ids[ids < spec.rows]], rank)


@pytest.mark.parametrize("period", [1, 2, 4, 8, 26])
def test_no_period_of_the_ids_falls_on_one_rank(period: int) -> None:
    space = RowSpace.of((TableSpec("t", 80_000, 8),), (FeatureSpec("t", 0),))
    owner_U, _ = Ownership(space, 8, 0).split(np.arange(0, 80_000, period))

    shares = np.bincount(owner_U, minlength=8) / len(owner_U)
    assert shares.min() > 0.11
    assert shares.max() < 0.14

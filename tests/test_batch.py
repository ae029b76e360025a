"""Batches that break a rule are refused with the rule, the name and the value; the joint row space is laid out pool by pool."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adaptive_rec.batch import Batch, FeatureSpec, TableSpec, check_batch
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.errors import DataError
from adaptive_rec.placement import Placement, RowSpace

TABLES = (TableSpec("users", 5, 8), TableSpec("items", 7, 4), TableSpec("places", 3, 8))
FEATURES = (
    FeatureSpec("viewer", 0),
    FeatureSpec("viewed", 1, "mean"),
    FeatureSpec("bought", 1),
    FeatureSpec("city", 2),
)


def jagged() -> Batch:
    """Two samples; bags of 2, 0, 1, 1 and 1, 3, 0, 1 ids."""
    lengths = [2, 0, 1, 1, 1, 3, 0, 1]
    ids = np.array([4, 0, 6, 2, 1, 0, 6, 3, 0])
    return Batch(np.zeros((2, 3), np.float32), ids, np.concatenate([[0], np.cumsum(lengths)]), np.zeros(2, np.float32))


def with_id(lookup: int, value: int) -> Batch:
    batch = jagged()
    ids = batch.ids_N.copy()
    ids[lookup] = value
    return replace(batch, ids_N=ids)


def test_a_sound_batch_passes() -> None:
    check_batch(jagged(), TABLES, FEATURES)


@pytest.mark.parametrize(
    ("lookup", "value", "words"),
    [
        (1, 5, ["table users", "[0, 5)", "got 5", "sample 0", "feature viewer"]),
        (2, 7, ["table items", "[0, 7)", "got 7", "sample 0", "feature bought"]),
        (7, -1, ["table items", "[0, 7)", "got -1", "sample 1", "feature viewed"]),
        (8, 1 << 40, ["table places", "[0, 3)", f"got {1 << 40}", "sample 1", "feature city"]),
    ],
)
def test_an_id_outside_its_table_is_named_with_table_size_sample_and_feature(
    lookup: int, value: int, words: list[str]
) -> None:
    with pytest.raises(DataError) as raised:
        check_batch(with_id(lookup, value), TABLES, FEATURES)
    assert not [word for word in words if word not in str(raised.value)], str(raised.value)


@pytest.mark.parametrize("value", [-1, 5, 1 << 40])
def test_classifying_refuses_an_id_outside_its_table(value: int) -> None:
    with pytest.raises(DataError, match=r"table users must lie in \[0, 5\)"):
        ClassifiedBatch(with_id(4, value), RowSpace.of(TABLES, FEATURES))


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"offsets": np.arange(8)}, "offsets must have samples . features . 1 = 9 entries, got 8"),
        ({"offsets": np.array([0, 2, 1, 3, 4, 5, 8, 8, 9])}, "offsets must rise from 0 to the number of lookups, 9"),
        ({"offsets": np.array([1, 2, 2, 3, 4, 5, 8, 8, 9])}, "offsets must rise"),
        ({"offsets": np.array([0, 2, 2, 3, 4, 5, 8, 8, 8])}, "offsets must rise"),
        ({"dense_BX": np.zeros((3, 3), np.float32)}, "dense features must have 2 samples like the labels, got 3"),
    ],
)
def test_disagreeing_shapes_are_refused(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(DataError, match=rule):
        check_batch(replace(jagged(), **changes), TABLES, FEATURES)


def test_one_hot_batches_have_one_id_for_each_bag() -> None:
    batch = Batch.one_hot(
        np.zeros((2, 1), np.float32), np.array([[1, 2], [3, 4]], dtype=np.int32), np.ones(2, np.float32)
    )
    assert (batch.size, batch.lookups) == (2, 4)
    assert batch.ids_N.dtype == np.int64
    assert batch.offsets.tolist() == [0, 1, 2, 3, 4]


def test_tables_of_one_dim_stand_together_in_the_row_space() -> None:
    space = RowSpace.of(TABLES, FEATURES)
    assert [(pool.dim, pool.first_row, pool.end_row) for pool in space.pools] == [(8, 0, 8), (4, 8, 15)]
    assert space.table_first_row.tolist() == [0, 8, 5], "users 0-4, places 5-7, items 8-14"
    assert space.rows == 15
    assert space.feature_first_row.tolist() == [0, 8, 8, 5], "viewed and bought share the rows of items"
    assert space.rows_F.tolist() == [5, 7, 7, 3]
    assert [pool.features.tolist() for pool in space.pools] == [[0, 3], [1, 2]]
    assert space.feature_order.tolist() == [0, 3, 1, 2]
    assert space.pool_of_feature.tolist() == [0, 1, 1, 0]
    assert space.column_of_feature.tolist() == [0, 0, 1, 1]
    assert space.mean_F.tolist() == [False, True, False, False]


def test_features_of_a_shared_table_find_the_same_distinct_row() -> None:
    space = RowSpace.of(TABLES, FEATURES)
    work = ClassifiedBatch(jagged(), space)
    rows_N = work.distinct_U[work.inverse_N]
    assert rows_N.tolist() == [4, 0, 14, 7, 1, 8, 14, 11, 5]
    assert len(work.distinct_U) == 8
    assert np.diff(work.segments_U1)[work.distinct_U == 14].tolist() == [2]
    assert work.lookups_B.tolist() == [4, 5]


def test_every_distinct_row_lies_in_its_own_pool_though_no_feature_reads_the_pool_between() -> None:
    tables = (TableSpec("a", 4, 2), TableSpec("unread", 4, 3), TableSpec("b", 4, 5))
    space = RowSpace.of(tables, (FeatureSpec("a", 0), FeatureSpec("b", 2)))
    batch = Batch.one_hot(np.zeros((2, 1), np.float32), np.array([[0, 1], [2, 3]]), np.zeros(2, np.float32))
    work = ClassifiedBatch(batch, space)
    assert [work.distinct_U[work.pool_range(pool)].tolist() for pool in range(3)] == [[0, 2], [], [9, 11]]


def test_a_sample_is_popular_when_every_lookup_is_hot_and_empty_bags_do_not_matter() -> None:
    space = RowSpace.of(TABLES, FEATURES)
    work = ClassifiedBatch(jagged(), space)
    slot_of_row = np.full(space.rows, -1, dtype=np.int32)
    slot_of_row[[4, 0, 7]] = [2, 0, 1]
    slot_of_row[14] = 0
    work.classify(Placement(6, slot_of_row))
    assert work.popular_B.tolist() == [True, False]
    assert work.placement_version == 6
    source = dict(zip(work.distinct_U.tolist(), work.source_U.tolist(), strict=True))
    assert source == {4: 2, 0: 0, 1: ~1, 7: 1, 5: ~5, 8: ~0, 14: 0, 11: ~3}, "cold rows count within their pool"

"""The stale classes of hot rows: marked by slot or by row, found in a batch, counted by table."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from adaptive_rec.batch import Batch, FeatureSpec, TableSpec
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.kernels import row_update
from adaptive_rec.placement import RowSpace
from adaptive_rec.reclassify.stale_rows import StaleRows
from adaptive_rec.saved import Saved
from tests.stores import cpu_store

SPACE = RowSpace.of((TableSpec("A", 10, 2), TableSpec("B", 6, 3)), (FeatureSpec("a", 0), FeatureSpec("b", 1)))
"""Two pools: rows 0 to 9 and 10 to 15 of the joint row space."""

HOT = np.array([1, 4, 7, 10, 12])


@pytest.fixture
def store() -> EmbeddingStore:
    store = cpu_store(SPACE, RowRule(row_update.SGD, 0, 0, 0), 1, torch.float64, 0, True)
    store.resize([3, 2], HOT, True)
    return store


def test_marked_rows_are_found_and_counted(store: EmbeddingStore) -> None:
    stale = StaleRows(store)
    stale.mark_rows(np.array([4, 5, 12]))
    assert sorted(stale.rows()) == [4, 12], "row 5 is not hot"
    assert stale.rows_T.tolist() == [1, 1]
    stale.clear()
    assert stale.rows().tolist() == []
    assert stale.rows_T.tolist() == [0, 0]


def test_slots_of_all_pools_are_marked_in_one_line(store: EmbeddingStore) -> None:
    stale = StaleRows(store)
    stale.mark(np.array([True, False, True, False, True]))
    line = np.concatenate(store.hot.tier.row_of_slot)
    assert sorted(stale.rows()) == sorted(line[[0, 2, 4]])


def test_rows_of_a_batch_are_stale_where_they_are_hot_and_marked(store: EmbeddingStore) -> None:
    stale = StaleRows(store)
    stale.mark_rows(np.array([4, 12]))
    ids = np.array([[4, 2], [4, 0], [3, 5]])
    batch = Batch.one_hot(np.zeros((3, 1), np.float32), ids, np.zeros(3, np.float32))
    work = ClassifiedBatch(batch, SPACE)
    store.batches.take(work)
    assert work.distinct_U[stale.of(work)].tolist() == [4, 12]


def test_agreement_is_the_share_of_stale_rows_that_were_stale_twice(store: EmbeddingStore) -> None:
    stale, none = StaleRows(store), np.zeros(5, dtype=bool)
    first, then = np.array([True, True, True, False, False]), np.array([False, True, True, True, False])
    assert math.isnan(stale.agreement)
    stale.compare(none, first)
    assert math.isnan(stale.agreement), "it was judged once"
    stale.compare(first, then)
    assert stale.agreement == 0.5
    other = StaleRows(store)
    other.set_state(Saved(stale.state()))
    assert other.agreement == 0.5
    stale.compare(first, none)
    assert stale.agreement == 0
    stale.clear()
    assert math.isnan(stale.agreement)

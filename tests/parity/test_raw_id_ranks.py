"""Several ranks on raw ids: each id has the row, and each row the value, that one process gives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_rec.data.raw.raw_ids import RawIds, raw_ids_of
from tests.parity.conftest import Outcome
from tests.parity.test_disk import on_disk
from tests.parity.test_parity import assert_equal, plain

RAW = "data.ids=raw"


def raw_ids_in(outcome: Outcome) -> RawIds:
    found = raw_ids_of(outcome.runtime.source)
    assert found is not None
    found.counts()  # settles all steps
    return found


def assert_same_keys(one: Outcome, other: Outcome) -> None:
    mine, theirs = raw_ids_in(one), raw_ids_in(other)
    assert mine.counts() == theirs.counts()
    for table in range(len(mine.tables)):
        np.testing.assert_array_equal(np.stack(mine.keys.keys_of(table)), np.stack(theirs.keys.keys_of(table)))


@pytest.mark.parametrize(
    ("ranks", "policy", "optimizer", "bags", "depth", "where"),
    [
        (2, "hotline", "rowwise_adagrad", "one-hot", 0, "memory"),
        pytest.param(3, "hotline", "adagrad", "sum", 4, "disk", marks=pytest.mark.slow),
        pytest.param(2, "device_only", "lazy_adam", "mean", 2, "device", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_several_ranks_admitting_all_ids_equal_one_on_rows(
    train: Any, small_segments: None, tmp_path: Path, ranks: int, policy: str, optimizer: str, bags: str, depth: int,
    where: str,
) -> None:  # fmt: skip
    settings = [RAW, *(on_disk(tmp_path) if where == "disk" else [])]
    device = "late" if where == "device" else "direct"
    arguments = {"budget_bytes": 200_000, "depth": depth, "ranks": ranks, "device": device}

    several = train(policy, optimizer, bags, **arguments, settings=settings, steps=40)

    by_number = plain(train, optimizer, bags, steps=40)
    np.testing.assert_allclose(several.losses, by_number.losses, rtol=1e-12, atol=0)
    known = 0
    for table, (mine, theirs) in enumerate(zip(several.tables, by_number.tables, strict=True)):
        row_K, key_K = raw_ids_in(several).keys.keys_of(table)
        np.testing.assert_allclose(mine[row_K], theirs[key_K], rtol=0, atol=1e-11)
        known += len(key_K)
    assert known > 5000
    assert raw_ids_in(several).counts()["lookups_shared"] == 0


@pytest.mark.parametrize(("ranks", "depth"), [(2, 5), pytest.param(3, 0, marks=pytest.mark.slow)])
def test_several_ranks_admit_what_one_admits(train: Any, ranks: int, depth: int) -> None:
    settings = [RAW, "knobs.admit_after=3", "data.shared_rows=4"]
    changes = {15: [{"admit_after": 2}], 30: [{"policy": "hybrid"}], 45: [{"admit_after": 5, "prefetch_depth": 7}]}

    one, several = (
        train("hotline", "sgd", "sum", budget_bytes=100_000, depth=depth, ranks=number, settings=settings, at=changes,
              steps=60)
        for number in (1, ranks)
    )

    assert_equal(several, one)
    assert_same_keys(several, one)
    counts = raw_ids_in(one).counts()
    assert 0 < counts["lookups_shared"] < counts["lookups"]

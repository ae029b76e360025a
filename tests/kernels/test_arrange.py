"""Kernels that arrange a stream against their plain twins; samples taken, joined and repacked against bare hands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_rec.batch import Batch, FeatureSpec, Position, TableSpec, check_batch, join_batches, take
from adaptive_rec.errors import DataError
from adaptive_rec.kernels import arrange as kernels
from adaptive_rec.placement import RowSpace
from adaptive_rec.policy.batches import (
    Portions,
    check_against_space,
    count_rows,
    hot_samples,
    repack,
    rows_of,
)
from tests.kernels.reference import arrange as reference

TABLES = (TableSpec("A", 9, 2), TableSpec("B", 5, 3), TableSpec("C", 7, 2))
FEATURES = (FeatureSpec("a", 0), FeatureSpec("c", 2), FeatureSpec("b", 1), FeatureSpec("a2", 0))
SPACE = RowSpace.of(TABLES, FEATURES)


def batch(random: np.random.Generator, size: int, longest: int, first: int = 0) -> Batch:
    """Bags of 0 to `longest` ids, or of one each; the dense feature is the sample's number."""
    bags = size * len(FEATURES)
    lengths = random.integers(0, longest + 1, bags) if longest > 1 else np.ones(bags, np.int64)
    limits = np.repeat(np.tile(SPACE.rows_F, size), lengths)
    ids = (random.random(len(limits)) * limits).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    dense = np.arange(first, first + size, dtype=np.float32)[:, None]
    return Batch(dense, ids, offsets, (random.random(size) < 0.5).astype(np.float32), Position(0, 7, first + size))


def bags(made: Batch, sample: int) -> list[list[int]]:
    features = len(FEATURES)
    return [
        made.ids_N[made.offsets[bag] : made.offsets[bag + 1]].tolist()
        for bag in range(sample * features, (sample + 1) * features)
    ]


cases = given(seed=st.integers(0, 2**32 - 1), size=st.integers(0, 12), longest=st.integers(1, 3))
quick = settings(deadline=None, max_examples=40)  # what is compiled takes its time


@quick
@cases
def test_kernels_do_what_their_twins_do(seed: int, size: int, longest: int) -> None:
    random = np.random.default_rng(seed)
    one = batch(random, size, longest)
    flags = random.random(SPACE.rows) < 0.7
    chosen = random.random(size) < 0.5
    numbers = random.permutation(size)[: size // 2]
    where = (one.ids_N, one.offsets, SPACE.feature_first_row)
    found: list[list[Any]] = []
    for module in (kernels, reference):
        hot, count, counts = np.empty(size, bool), np.empty(size, np.int64), np.zeros(SPACE.rows, np.uint32)
        module.find_hot_samples(*where, flags, hot)
        module.count_flagged(*where, flags, count)
        module.count_chosen(*where, chosen, counts)
        lookups = int(np.diff(one.offsets[:: len(FEATURES)])[numbers].sum()) if size else 0
        ids, offsets = np.empty(lookups, np.int64), np.zeros(len(numbers) * len(FEATURES) + 1, np.int64)
        module.copy_samples(numbers, len(FEATURES), one.ids_N, one.offsets, ids, offsets)
        found.append([hot, count, counts, ids, offsets])
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    lookups_B = np.diff(one.offsets[:: len(FEATURES)])
    np.testing.assert_array_equal(found[0][0], found[0][1] == lookups_B)


@quick
@cases
def test_an_id_outside_its_table_is_found(seed: int, size: int, longest: int) -> None:
    random = np.random.default_rng(seed)
    one = batch(random, size, longest)
    assert check_against_space(one, SPACE) is one
    if not one.lookups:
        return
    limits_N = np.repeat(np.tile(SPACE.rows_F, size), np.diff(one.offsets))
    wrong = int(random.integers(one.lookups))
    one.ids_N[wrong] = random.choice([-1, limits_N[wrong], 10**12])
    for module in (kernels, reference):
        assert not module.ids_fit(one.ids_N, one.offsets, SPACE.rows_F)
    with pytest.raises(DataError, match=f"got {one.ids_N[wrong]} "):
        check_against_space(one, SPACE)


@quick
@cases
def test_samples_are_taken_whole(seed: int, size: int, longest: int) -> None:
    random = np.random.default_rng(seed)
    one = batch(random, size, longest)
    numbers = random.permutation(size)[: random.integers(0, size + 1)]
    part = take(one, numbers)
    check_batch(part, TABLES, FEATURES)
    assert part.dense_BX[:, 0].tolist() == numbers.tolist()
    assert part.labels_B.tolist() == one.labels_B[numbers].tolist()
    assert [bags(part, s) for s in range(part.size)] == [bags(one, int(n)) for n in numbers]
    rows = rows_of(part, SPACE).tolist()
    firsts = SPACE.feature_first_row.tolist()
    assert rows == [
        first + i for n in numbers for bag, first in zip(bags(one, int(n)), firsts, strict=True) for i in bag
    ]


@quick
@given(
    seed=st.integers(0, 2**32 - 1), sizes=st.lists(st.integers(0, 9), max_size=6), longest=st.integers(1, 3),
    packed=st.integers(1, 7),
)  # fmt: skip
def test_a_stream_is_repacked_without_loss(seed: int, sizes: list[int], longest: int, packed: int) -> None:
    """Wanted samples come once, in their order, in full batches but the last; what is skipped is counted."""
    random = np.random.default_rng(seed)
    starts = np.cumsum([0, *sizes])
    made = [batch(random, size, longest, int(first)) for first, size in zip(starts, sizes, strict=False)]
    kind = random.integers(0, 3, int(starts[-1]) + 1)

    def of(which: list[int]) -> Any:
        return lambda one: np.isin(kind[one.dense_BX[:, 0].astype(int)], which)

    came = list(repack(made, packed, of([1, 2]), skipped=of([2])))
    for one in came:
        check_batch(one, TABLES, FEATURES)
    trained = [one for one in came if one.size]
    assert [int(x) for one in trained for x in one.dense_BX[:, 0]] == np.flatnonzero(kind[:-1] == 1).tolist()
    assert all(one.size == packed for one in trained[:-1])
    assert all(1 <= one.size <= packed for one in trained)
    assert sum(one.skipped_samples for one in came) == np.count_nonzero(kind[:-1] == 2)
    whole = join_batches(made) if made else None
    for one in trained:
        for place, number in enumerate(one.dense_BX[:, 0].astype(int).tolist()):
            assert whole is not None
            assert bags(one, place) == bags(whole, number)


def test_rows_are_counted_of_the_chosen_samples_only() -> None:
    random = np.random.default_rng(1)
    made = [batch(random, 8, 2) for _ in range(5)]
    rows, counts = count_rows(made, SPACE, lambda one: one.dense_BX[:, 0] < 4)
    by_hand = np.bincount(
        np.concatenate([rows_of(take(one, np.arange(4)), SPACE) for one in made]), minlength=SPACE.rows
    )
    assert rows.tolist() == np.flatnonzero(by_hand).tolist()
    assert counts.tolist() == by_hand[rows].tolist()


def test_a_hot_sample_looks_up_hot_rows_only() -> None:
    one = batch(np.random.default_rng(2), 40, 1)
    hot = np.ones(SPACE.rows, bool)
    assert hot_samples(one, SPACE, hot).all()
    row = int(rows_of(one, SPACE)[len(FEATURES) * 7 + 2])
    hot[row] = False
    touched = (rows_of(one, SPACE) == row).reshape(40, -1).any(axis=1)
    assert touched[7]
    assert (hot_samples(one, SPACE, hot) == ~touched).all()


@pytest.mark.parametrize("portions", [[1, 2, 3], [10], [None], [2, None], [6]])
def test_portions_know_their_end(portions: list[int | None]) -> None:
    made = [batch(np.random.default_rng(3), 1, 1, first) for first in range(6)]
    handed = Portions(iter(made))
    came = []
    for count in portions:
        assert not handed.over
        came += list(handed.portion(count))
    assert [one.dense_BX[0, 0] for one in came] == list(range(6))
    assert handed.over
    assert Portions([]).over

"""The synthetic stream: kernels against plain twins, and each planted property measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, Position, check_batch
from adaptive_rec.config.data import DataConfig, SyntheticConfig
from adaptive_rec.config.run import RunConfig
from adaptive_rec.config.tree import Config
from adaptive_rec.data.open import open_source
from adaptive_rec.data.synthetic import SyntheticSource, zipf_mass
from adaptive_rec.errors import ConfigError, DataError
from adaptive_rec.kernels import synthetic
from tests.kernels.reference import synthetic as reference_data

SEED = 3


def make(rows: tuple[int, ...] = (1000, 40, 7), data: dict[str, Any] | None = None, **stream: Any) -> SyntheticSource:
    settings = SyntheticConfig(**({"samples": 20_000, "test_samples": 1000} | stream))
    shape: dict[str, Any] = {"table_rows": rows, "dense_features": 4, "synthetic": settings}
    source = open_source(Config(run=RunConfig(seed=SEED), data=DataConfig(**(shape | (data or {})))))
    assert isinstance(source, SyntheticSource)
    return source


def draw(source: SyntheticSource, samples: int, start: int = 0) -> Batch:
    return next(source.train_batches(Position(0, SEED, start), samples))


def ids_of(batch: Batch, feature: int, features: int) -> NDArray[np.int64]:
    return batch.ids_N.reshape(-1, features)[:, feature]


def assert_same(left: Batch, right: Batch) -> None:
    for name in ("dense_BX", "ids_N", "offsets", "labels_B"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))
    assert left.position == right.position


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.05, 2.0, 4.0])
@pytest.mark.parametrize("lookups", [1, 3])
def test_kernels_equal_their_plain_twins(monkeypatch: pytest.MonkeyPatch, exponent: float, lookups: int) -> None:
    stream = {"drift_ranks": 9.0, "sudden_drift_at": 150, "teacher_jump_at": 120, "popular_ratio": 0.3}
    source = make((50_000, 300, 1, 2), zipf_exponent=exponent, lookups_per_feature=lookups, **stream)
    fast = draw(source, 100, start=100)
    for name in ("draw_units", "draw_counts", "draw_ids", "teacher_sums"):
        monkeypatch.setattr(synthetic, name, getattr(reference_data, name))
    plain = draw(source, 100, start=100)
    np.testing.assert_array_equal(fast.ids_N, plain.ids_N)
    np.testing.assert_array_equal(fast.offsets, plain.offsets)
    np.testing.assert_allclose(fast.dense_BX, plain.dense_BX, rtol=1e-6)
    np.testing.assert_array_equal(fast.labels_B, plain.labels_B)


@pytest.mark.parametrize("lookups", [1, 2])
def test_resume_from_any_position_and_ragged_last_batch(lookups: int) -> None:
    source = make(samples=100, data={"epochs": 2}, lookups_per_feature=lookups)
    whole = list(source.train_batches(Position(seed=SEED), 30))
    assert [batch.size for batch in whole] == [30, 30, 30, 10] * 2
    assert [batch.position for batch in whole[2:5]] == [
        Position(0, SEED, 90),
        Position(1, SEED, 0),
        Position(1, SEED, 30),
    ]
    again = make(samples=100, data={"epochs": 2}, lookups_per_feature=lookups)
    for i, batch in enumerate(whole):
        rest = list(again.train_batches(batch.position, 30))
        assert len(rest) == len(whole) - i - 1
        for one, other in zip(rest, whole[i + 1 :], strict=True):
            assert_same(one, other)


def test_samples_do_not_depend_on_the_batch_size() -> None:
    source = make()
    whole, part = draw(source, 64), draw(source, 10, start=50)
    np.testing.assert_array_equal(whole.ids_N.reshape(64, -1)[50:60], part.ids_N.reshape(10, -1))
    np.testing.assert_array_equal(whole.labels_B[50:60], part.labels_B)


def test_held_out_samples_follow_the_training_stream() -> None:
    source, longer = make(samples=500), make(samples=1500)
    test = list(source.test_batches(300))
    assert [batch.size for batch in test] == [300, 300, 300, 100]
    assert [batch.position for batch in test] == [Position()] * 4
    np.testing.assert_array_equal(test[0].ids_N, draw(longer, 300, start=500).ids_N)
    assert [batch.size for batch in source.test_batches(300, max_samples=350)] == [300, 50]


def test_seed_decides_the_stream() -> None:
    settings = DataConfig(table_rows=(1000,))
    ids = [
        next(open_source(Config(run=RunConfig(seed=s), data=settings)).train_batches(Position(seed=s), 50)).ids_N
        for s in (1, 2)
    ]
    assert not np.array_equal(ids[0], ids[1])
    with pytest.raises(DataError, match="seed of a reader position of synthetic data must be run.seed, 3, got 4"):
        next(make().train_batches(Position(seed=4), 8))


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.05, 2.0])
def test_popularity_is_bounded_zipf(exponent: float) -> None:
    rows, samples = 5000, 200_000
    source = make((rows,), samples=samples, zipf_exponent=exponent, popular_ratio=0.0)
    counts = np.bincount(ranks_of(source, draw(source, samples), 1)[:, 0], minlength=rows)
    weights = np.arange(1, rows + 1, dtype=np.float64) ** -exponent
    expected = samples * weights / weights.sum()
    assert zipf_mass(rows, exponent) == pytest.approx(weights.sum(), rel=1e-5)
    np.testing.assert_allclose(counts, expected, atol=5 * np.sqrt(expected.max()))
    for head in (1, 10, 100, 256, 257, 1000, 4000):
        assert counts[:head].sum() / samples == pytest.approx(expected[:head].sum() / samples, abs=0.004)


def test_every_row_of_a_table_is_reached_and_no_other() -> None:
    for rows in ((1,), (2,), (3,), (10,), (300,)):
        batch = draw(make(rows, zipf_exponent=0.0, popular_ratio=0.0), 20_000)
        assert np.array_equal(np.unique(batch.ids_N), np.arange(rows[0]))


@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0])
def test_share_of_popular_samples(ratio: float) -> None:
    rows, head_ratio = (2000,) * 6, 0.05
    source = make(rows, zipf_exponent=0.8, popular_ratio=ratio, head_ratio=head_ratio)
    ranks_BF = ranks_of(source, draw(source, 20_000), len(rows))
    all_in_head = (ranks_BF < head_ratio * rows[0]).all(axis=1).mean()
    chance = zipf_mass(100, 0.8) / zipf_mass(2000, 0.8)
    assert all_in_head == pytest.approx(ratio + (1 - ratio) * chance**6, abs=0.015)


def ranks_of(source: SyntheticSource, batch: Batch, features: int, phase: int = 0) -> NDArray[np.int64]:
    """Undo the bijection of every table."""
    ranks_BF = np.empty((batch.size, features), dtype=np.int64)
    popularity = source._popularity
    for f in range(features):
        rows = int(popularity.ranks_2F[0, f])
        id_of_rank = (popularity.multiplier_2F[phase, f] * np.arange(rows) + popularity.shift_2F[phase, f]) % rows
        rank_of_id = np.empty(rows, dtype=np.int64)
        rank_of_id[id_of_rank] = np.arange(rows)
        ranks_BF[:, f] = rank_of_id[ids_of(batch, f, features)]
    return ranks_BF


def head_ids(batch: Batch, count: int) -> set[int]:
    values, counts = np.unique(batch.ids_N, return_counts=True)
    return set(values[np.argsort(-counts)][:count].tolist())


def test_sudden_drift_moves_the_head_at_once() -> None:
    source = make((5000,), sudden_drift_at=10_000)
    before, after = draw(source, 5000, 0), draw(source, 5000, 10_000)
    assert len(head_ids(draw(source, 5000, 5000), 20) & head_ids(before, 20)) >= 15
    assert len(head_ids(after, 20) & head_ids(before, 20)) <= 2
    last, first = draw(source, 1, 9999), draw(source, 1, 10_000)
    both = draw(source, 2, 9999)
    assert both.ids_N.tolist() == [*last.ids_N.tolist(), *first.ids_N.tolist()]


def test_gradual_drift_moves_the_head_by_ranks() -> None:
    source = make((5000,), drift_ranks=2.0, zipf_exponent=1.2)
    heads = [head_ids(draw(source, 1000, start), 10) for start in (0, 1000, 3000, 10_000)]
    assert len(heads[0] & heads[1]) > len(heads[0] & heads[2]) > len(heads[0] & heads[3])
    ranks = ranks_of(source, draw(source, 1000, 10_000), 1)[:, 0]
    assert np.bincount(ranks).argmax() in ((0 - 20) % 5000, (0 - 21) % 5000)


def planted_scores(source: SyntheticSource, batch: Batch, first: int) -> NDArray[np.float64]:
    return source._teacher_sums(source._teacher, first, batch.dense_BX, batch.ids_N, batch.offsets)


def test_labels_follow_the_planted_teacher() -> None:
    source = make((300, 50), teacher_scale=2.0, label_ratio=0.3)
    batch = draw(source, 20_000)
    sums = planted_scores(source, batch, 0)
    logits = np.log(0.3 / 0.7) + 2.0 * (sums - sums.mean()) / sums.std()
    expected = 1 / (1 + np.exp(-logits))
    for part in np.array_split(np.argsort(logits), 8):
        assert batch.labels_B[part].mean() == pytest.approx(expected[part].mean(), abs=0.03)
    flat = draw(make(teacher_scale=0.0, label_ratio=0.3), 20_000)
    assert flat.labels_B.mean() == pytest.approx(0.3, abs=0.015)


def one_hot_design(batch: Batch, rows: tuple[int, ...]) -> NDArray[np.float64]:
    columns = [np.eye(n)[ids_of(batch, f, len(rows))] for f, n in enumerate(rows)]
    return np.hstack([batch.dense_BX, *columns]).astype(np.float64)


def fit_and_score(train: Batch, test: Batch, rows: tuple[int, ...]) -> float:
    """Correlation of held-out labels with a ridge regression fitted to other samples."""
    design = one_hot_design(train, rows)
    gram = design.T @ design + 10.0 * np.eye(design.shape[1])
    weights = np.linalg.solve(gram, design.T @ (train.labels_B - train.labels_B.mean()))
    return float(np.corrcoef(one_hot_design(test, rows) @ weights, test.labels_B)[0, 1])


def test_teacher_can_be_learnt_until_it_jumps() -> None:
    rows = (60, 30, 10)
    source = make(rows, teacher_scale=2.0, teacher_jump_at=10_000)
    before, same, after = draw(source, 8000, 0), draw(source, 2000, 8000), draw(source, 2000, 10_000)
    assert fit_and_score(before, same, rows) > 0.45
    assert abs(fit_and_score(before, after, rows)) < 0.3
    assert fit_and_score(draw(source, 8000, 12_000), after, rows) > 0.45


def test_bags_of_several_ids() -> None:
    source = make((500, 20), lookups_per_feature=4, popular_ratio=0.0)
    batch = draw(source, 10_000)
    check_batch(batch, source.tables, source.features)
    lengths = np.diff(batch.offsets)
    assert lengths.mean() == pytest.approx(4.0, abs=0.1)
    assert (lengths.min(), lengths.max()) == (0, 8)
    assert (lengths == 0).mean() == pytest.approx(1 / 9, abs=0.01)
    full = batch.ids_N[batch.offsets[:-1][lengths == 8][:, None] + np.arange(8)]
    assert (np.diff(full, axis=1) != 0).any(axis=1).mean() > 0.9


def test_dense_features_are_logs_of_counts() -> None:
    dense_BX = draw(make(), 5000).dense_BX
    counts = np.expm1(dense_BX.astype(np.float64))
    assert dense_BX.dtype == np.float32
    assert dense_BX.min() >= 0
    np.testing.assert_allclose(counts, np.rint(counts), rtol=1e-5, atol=1e-5)
    assert (dense_BX.std(axis=0) > 0.2).all()


def test_tables_are_cut_and_may_be_shared() -> None:
    shared = {"feature_tables": (0, 0, 1), "max_table_rows": 100, "pooling": "mean"}
    source = make((1000, 50), data=shared, zipf_exponent=2.0)
    batch = draw(source, 5000)
    check_batch(batch, source.tables, source.features)
    assert [(table.name, table.rows) for table in source.tables] == [("C1", 100), ("C2", 50)]
    assert [(feature.name, feature.table, feature.pooling) for feature in source.features] == [
        ("C1", 0, "mean"),
        ("C2", 0, "mean"),
        ("C3", 1, "mean"),
    ]
    tops = [np.bincount(ids_of(batch, f, 3)).argmax() for f in (0, 1)]
    assert tops[0] == tops[1]
    assert not np.array_equal(ids_of(batch, 0, 3), ids_of(batch, 1, 3))


def test_rows_beyond_the_bijection_are_refused() -> None:
    with pytest.raises(ConfigError, match="data.max_table_rows of synthetic data must be at most 2147483648, got"):
        make((1 << 40,), data={"max_table_rows": 1 << 41})
    wide = draw(make((1 << 31,), data={"max_table_rows": 1 << 31}, popular_ratio=0.0, zipf_exponent=0.0), 2000)
    assert wide.ids_N.min() >= 0
    assert wide.ids_N.max() > 1 << 30
    assert wide.ids_N.max() < 1 << 31

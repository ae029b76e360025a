"""Quality measures against scikit-learn and against their definitions."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_rec.dense.metrics import auc, quality
from adaptive_rec.runtime.evaluator import why_no_auc

sklearn = pytest.importorskip("sklearn.metrics")

# Few different scores, so that ties are common; a few far ones.
scored = st.lists(
    st.tuples(st.booleans(), st.sampled_from([-3.0, -1.0, 0.0, 1e-9, 0.5, 2.0, 40.0])), min_size=2, max_size=60
)


@settings(max_examples=200, deadline=None)
@given(scored)
def test_auc_equals_scikit_learn_with_ties(pairs: list[tuple[bool, float]]) -> None:
    labels, scores = (np.array(part, dtype=np.float64) for part in zip(*pairs, strict=True))
    if labels.min() == labels.max():
        assert math.isnan(auc(labels, scores))
    else:
        assert auc(labels, scores) == pytest.approx(sklearn.roc_auc_score(labels, scores), abs=1e-12)


def test_auc_is_the_chance_that_a_positive_outranks_a_negative() -> None:
    assert auc(np.array([0.0, 1.0, 0.0, 1.0]), np.array([1.0, 1.0, 0.0, 2.0])) == (0.5 + 1 + 1 + 1) / 4


def test_one_class_has_no_auc_but_a_loss() -> None:
    found = quality(np.ones(3), np.array([0.0, 1.0, -1.0]))
    assert math.isnan(found.auc)
    assert math.isnan(found.normalized_entropy)
    assert found.logloss == pytest.approx(np.mean(np.log1p(np.exp(-np.array([0.0, 1.0, -1.0])))))
    assert found.calibration == pytest.approx(0.5)
    assert math.isnan(quality(np.zeros(3), np.zeros(3)).calibration)


@pytest.mark.parametrize("weights", [None, np.ones(4)])
@pytest.mark.parametrize("scores", [[np.nan] * 4, [np.nan, 0.1, 0.2, 0.3], [0.1, 0.2, 0.3, np.nan]])
def test_scores_of_nan_have_no_auc(scores: list[float], weights: np.ndarray | None) -> None:
    """NumPy sorts NaN behind all numbers, so such a model would rank as the best one."""
    found = quality(np.array([1.0, 0, 0, 1]), np.array(scores), weights)
    assert math.isnan(found.auc)
    assert math.isnan(found.logloss)
    assert "have a score of NaN" in why_no_auc(asdict(found), False)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 200))
def test_quality_equals_the_formulas(seed: int, samples: int) -> None:
    random = np.random.default_rng(seed)
    labels = (random.random(samples) < 0.3).astype(np.float32)
    labels[:2] = [0, 1]
    logits = random.normal(size=samples).astype(np.float32)
    p = 1 / (1 + np.exp(-logits.astype(np.float64)))
    base = labels.astype(np.float64).mean()
    found = quality(labels, logits)

    assert found.samples == samples
    assert found.logloss == pytest.approx(sklearn.log_loss(labels, p), rel=1e-9)
    assert found.logloss == pytest.approx(-np.mean(labels * np.log(p) + (1 - labels) * np.log(1 - p)), rel=1e-9)
    assert found.normalized_entropy == pytest.approx(
        found.logloss / -(base * np.log(base) + (1 - base) * np.log(1 - base))
    )
    assert found.calibration == pytest.approx(p.mean() / base)
    assert found.accuracy == sklearn.accuracy_score(labels, p > 0.5)
    assert found.auc == pytest.approx(sklearn.roc_auc_score(labels, logits), abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 200), st.booleans())
def test_weighted_quality_equals_scikit_learn_and_repeated_samples(seed: int, samples: int, whole: bool) -> None:
    random = np.random.default_rng(seed)
    labels = (random.random(samples) < 0.3).astype(np.float32)
    logits = random.integers(-6, 6, samples).astype(np.float32) / 2  # with ties
    weights = (random.integers(0, 4, samples) if whole else random.gamma(0.5, size=samples)).astype(np.float32)
    labels[:2], weights[:2] = [0, 1], 1
    p = 1 / (1 + np.exp(-logits.astype(np.float64)))
    found = quality(labels, logits, weights)

    assert found.samples == samples
    assert found.logloss == pytest.approx(sklearn.log_loss(labels, p, sample_weight=weights), rel=1e-9)
    assert found.accuracy == pytest.approx(sklearn.accuracy_score(labels, p > 0.5, sample_weight=weights))
    assert found.auc == pytest.approx(sklearn.roc_auc_score(labels, logits, sample_weight=weights), abs=1e-9)
    base = np.average(labels, weights=weights)
    assert found.calibration == pytest.approx(np.average(p, weights=weights) / base)
    if whole:
        often = weights.astype(np.int64)
        repeated = quality(np.repeat(labels, often), np.repeat(logits, often)).as_dict()
        assert found.as_dict() | {"samples": 0} == pytest.approx(repeated | {"samples": 0}, rel=1e-12, abs=1e-12)


def test_weighted_figures_that_scikit_learn_1_9_1_gives() -> None:
    """Of `roc_auc_score`, `log_loss` and `accuracy_score` with `sample_weight`."""
    labels, logits = np.array([0, 0, 1, 1, 1.0]), np.array([-1.0, 0.5, 0.5, 2.0, -0.5])
    found = quality(labels, logits, np.array([1.0, 2, 3, 0.5, 0]))
    assert found.auc == pytest.approx(0.7142857142857143, abs=1e-12)
    assert found.logloss == pytest.approx(0.5764785559908066, abs=1e-12)
    assert found.accuracy == pytest.approx(0.6923076923076923, abs=1e-12)


def test_weights_of_sum_0_have_no_figures() -> None:
    found = quality(np.array([0.0, 1.0]), np.array([0.0, 1.0]), np.zeros(2))
    assert found.samples == 2
    assert all(math.isnan(value) for name, value in found.as_dict().items() if name != "samples")
    one_class = quality(np.array([0.0, 1.0]), np.array([0.0, 1.0]), np.array([1.0, 0.0]))
    assert math.isnan(one_class.auc)
    assert one_class.logloss == pytest.approx(math.log(2))


def test_predicting_the_base_rate_has_normalized_entropy_one() -> None:
    labels = np.array([1.0, 0, 0, 0] * 5)
    assert quality(labels, np.full(20, math.log(0.25 / 0.75))).normalized_entropy == pytest.approx(1.0)
    assert quality(labels, np.full(20, math.log(0.25 / 0.75))).calibration == pytest.approx(1.0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("far", [30.0, 800.0, 1e30, 3e38])
def test_extreme_logits_neither_overflow_nor_round_to_nothing(far: float) -> None:
    right = quality(np.array([0.0, 1.0], np.float32), np.array([-far, far], np.float32))
    wrong = quality(np.array([0.0, 1.0], np.float32), np.array([far, -far], np.float32))
    assert 0 <= right.logloss < 1e-12
    assert wrong.logloss == pytest.approx(far)
    assert (right.auc, wrong.auc) == (1.0, 0.0)
    assert (right.accuracy, wrong.accuracy) == (1.0, 0.0)
    assert right.calibration == pytest.approx(1.0)


def test_many_samples_are_summed_in_double_precision() -> None:
    """A float32 mean over a million equal losses would be off in the fifth digit."""
    labels = np.zeros(1_000_000, np.float32)
    labels[0] = 1
    logits = np.full(1_000_000, -0.1, np.float32)
    expected = float(np.log1p(np.exp(np.float64(np.float32(-0.1)))))
    assert quality(labels, logits).logloss == pytest.approx(expected + 1e-6 * float(-np.float64(logits[0])), rel=1e-10)

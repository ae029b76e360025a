"""Metrics that rank, beside their definitions written out and beside scikit-learn 1.9.1 (`ndcg_score`, `roc_auc_score`)."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from numpy.typing import NDArray

from adaptive_rec.config.metrics import eval_metric, ranking_metric
from adaptive_rec.dense.metrics import quality
from adaptive_rec.dense.ranking import SHORT_TIE, ranking
from adaptive_rec.errors import ConfigError

NAMES = ("gauc", "recall@1", "recall@5", "recall@20", "ndcg@3", "ndcg@20", "mrr")
Group = list[tuple[float, bool]]
"""Score and label of each sample."""


def plain(name: str, group: Group) -> float:
    """Return the metric of a group with a positive (`gauc`: and with a negative), tie by tie."""
    positives = [score for score, label in group if label]
    if name == "gauc":
        negatives = [score for score, label in group if not label]
        won = sum((p > n) + 0.5 * (p == n) for p in positives for n in negatives)
        return won / (len(positives) * len(negatives))
    ties = [[label for other, label in group if other == score] for score in sorted({s for s, _ in group}, reverse=True)]
    if name == "mrr":
        place = 0
        for tie in ties:
            if count := sum(tie):
                ways = [math.comb(len(tie) - j, count - 1) for j in range(1, len(tie) + 1)]
                return float(sum(Fraction(way, sum(ways)) / (place + j) for j, way in enumerate(ways, 1)))
            place += len(tie)
    kind, k = name.split("@")
    gain_at = [1.0 if kind == "recall" else 1 / math.log2(place + 2) for place in range(int(k))]
    gains = [sum(tie) / len(tie) for tie in ties for _ in tie]
    found = sum(gain * at for gain, at in zip(gains, gain_at, strict=False))
    return found / (len(positives) if kind == "recall" else sum(gain_at[: len(positives)]))


def plain_mean(name: str, groups: list[Group]) -> float:
    parts = [(plain(name, each), len(each) if name == "gauc" else 1) for each in groups if counts(name, each)]
    return sum(value * weight for value, weight in parts) / sum(weight for _, weight in parts) if parts else math.nan


def counts(name: str, group: Group) -> bool:
    labels = {label for _, label in group}
    return labels == {True, False} if name == "gauc" else True in labels


def drawn(rng: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]:
    """Return labels, scores with many ties, and groups with far numbers."""
    samples = int(rng.integers(1, 120))
    labels = (rng.random(samples) < rng.random()).astype(np.float32)
    scores = rng.integers(0, rng.integers(1, 50), samples).astype(np.float32) / 8 - 2
    return labels, scores, rng.integers(-3, rng.integers(-2, 12), samples) * 10**17


def as_groups(labels: NDArray[np.float32], scores: NDArray[np.float32], groups: NDArray[np.int64]) -> list[Group]:
    return [
        [(float(s), bool(y)) for s, y, other in zip(scores, labels, groups, strict=True) if other == group]
        for group in np.unique(groups)
    ]


def test_metrics_equal_their_definitions_in_1000_random_cases_with_ties() -> None:
    rng = np.random.default_rng(59)
    for case in range(1000):
        labels, scores, groups = drawn(rng)
        found, parts = ranking(NAMES, labels, scores, groups), as_groups(labels, scores, groups)
        for name in NAMES:
            assert found.metrics[name] == pytest.approx(plain_mean(name, parts), rel=0, abs=1e-12, nan_ok=True), (case, name)
        assert found.groups == len(parts), case
        assert found.groups_with_positive == sum(counts("mrr", each) for each in parts), case
        assert found.groups_with_both == sum(counts("gauc", each) for each in parts), case


def test_a_tie_is_the_mean_over_all_orders_of_its_samples() -> None:
    labels, scores = [True, False, False, True, False], [2.0, 1.0, 1.0, 1.0, 0.0]
    orders = [[labels[0], *middle, labels[4]] for middle in permutations(labels[1:4])]
    untied = [ranking(NAMES, np.array(each, float), -np.arange(5.0), np.zeros(5, np.int64)).metrics for each in orders]
    tied = ranking(NAMES, np.array(labels, float), np.array(scores), np.zeros(5, np.int64)).metrics
    for name in NAMES:
        assert tied[name] == pytest.approx(np.mean([each[name] for each in untied]), rel=0, abs=1e-15), name


def test_the_first_positive_of_a_long_tie_has_the_expectation_of_its_definition() -> None:
    for samples, positives in ((SHORT_TIE + 1, 1), (SHORT_TIE + 2, 1), (400, 1), (400, 3), (400, 400)):
        group = [(9.0, False), *((1.0, place < positives) for place in range(samples))]
        scores, labels = (np.array(part, float) for part in zip(*group, strict=True))
        found = ranking(["mrr"], labels, scores, np.zeros(len(group), np.int64)).metrics["mrr"]
        assert found == pytest.approx(plain("mrr", group), rel=0, abs=1e-13), (samples, positives)


def test_metrics_equal_scikit_learn_group_by_group() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(1)
    for case in range(60):
        labels, scores, groups = drawn(rng)
        chosen = [groups == group for group in np.unique(groups)]
        both = [own for own in chosen if 0 < labels[own].sum() < own.sum()]
        found = ranking(["gauc", "ndcg@3", "ndcg@20"], labels, scores, groups).metrics
        if both:
            aucs = [sklearn.roc_auc_score(labels[own], scores[own]) for own in both]
            weights = [own.sum() for own in both]
            assert found["gauc"] == pytest.approx(np.average(aucs, weights=weights), rel=0, abs=1e-12), case
        with_positive = [(labels[own][None], scores[own][None]) for own in chosen if labels[own].any()]
        for k in (3, 20) if with_positive else ():  # ndcg_score refuses a group of one
            ndcgs = [sklearn.ndcg_score(*group, k=k) if group[0].size > 1 else 1.0 for group in with_positive]
            assert found[f"ndcg@{k}"] == pytest.approx(np.mean(ndcgs), rel=0, abs=1e-12), case


def test_figures_of_scikit_learn() -> None:
    """Where scikit-learn is not installed, these stand: `roc_auc_score`, `ndcg_score` of 1.9.1."""
    labels = np.array([0, 1, 0, 1, 1, 0, 0, 1.0])
    scores = np.array([0.5, 0.5, 0.1, 0.9, 0.2, 0.5, 0.7, 0.7])
    found = ranking(["gauc", "ndcg@3", "ndcg@20"], labels, scores, np.zeros(8, np.int64)).metrics
    assert found == pytest.approx(FIGURES, rel=0, abs=1e-12)


FIGURES = {"gauc": 0.65625, "ndcg@3": 0.7346393630113782, "ndcg@20": 0.8939873848610922}


def test_nothing_depends_on_the_order_of_the_samples_by_a_bit() -> None:
    rng = np.random.default_rng(2)
    labels, scores, groups = drawn(rng)
    weights = rng.random(len(labels)).astype(np.float32)
    for case in range(20):
        order = rng.permutation(len(labels))
        for own in (None, weights):
            before = ranking(NAMES, labels, scores, groups, own)
            moved = None if own is None else own[order]
            assert ranking(NAMES, labels[order], scores[order], groups[order], moved) == before, case


def test_grouped_auc_of_whole_weights_is_that_of_repeated_rows() -> None:
    rng = np.random.default_rng(3)
    for case in range(100):
        labels, scores, groups = drawn(rng)
        times = rng.integers(0, 4, len(labels))
        own = ranking(["gauc"], labels, scores, groups, times.astype(np.float32)).metrics["gauc"]
        again = ranking(["gauc"], *(np.repeat(part, times) for part in (labels, scores, groups))).metrics["gauc"]
        assert own == pytest.approx(again, rel=0, abs=1e-12, nan_ok=True), case


def test_a_small_group_takes_no_rounding_of_a_heavy_one() -> None:
    rng = np.random.default_rng(4)
    labels, scores = (rng.random(40) < 0.5).astype(np.float32), rng.random(40)
    heavy = np.repeat(np.array([1e12, 1e-12], np.float64), 20)
    groups = np.repeat(np.arange(2), 20)
    alone = ranking(["gauc"], labels[20:], scores[20:], groups[20:], heavy[20:]).metrics["gauc"]
    labels[:20] = 0  # the heavy group does not count
    both = ranking(["gauc"], labels, scores, groups, heavy).metrics["gauc"]
    assert both == alone
    assert both == pytest.approx(ranking(["gauc"], labels[20:], scores[20:], groups[20:]).metrics["gauc"], abs=1e-12)


def test_the_mean_of_a_groups_weights_weighs_it_and_moves_no_place() -> None:
    labels, scores, groups = np.array([1.0, 0, 0, 1, 0]), np.array([2.0, 1, 2, 1, 3]), np.array([0, 0, 1, 1, 1])
    weights = np.array([1.0, 5, 0.5, 0.5, 0])  # the last sample is as if it were not there
    found = ranking(["mrr"], labels, scores, groups, weights)
    assert found.metrics["mrr"] == (3 * 1 + 0.5 * 0.5) / 3.5
    none = ranking(["mrr"], labels, scores, groups, 0 * weights)
    assert math.isnan(none.metrics["mrr"])
    assert none.groups == 0


def test_groups_without_a_positive_are_left_out_and_counted() -> None:
    found = ranking(["gauc", "mrr"], np.array([0.0, 0, 1, 1, 0]), -np.arange(5.0), np.array([7, 7, 8, 9, 9]))
    assert (found.groups, found.groups_with_positive, found.groups_with_both) == (3, 2, 1)
    assert found.metrics == {"gauc": 1.0, "mrr": 1.0}
    none = ranking(NAMES, np.zeros(3), np.arange(3.0), np.zeros(3, np.int64))
    assert all(map(math.isnan, none.metrics.values()))


def test_a_score_that_is_no_number_has_no_rank() -> None:
    found = ranking(["mrr"], np.array([1.0, 0]), np.array([np.nan, 1.0]), np.zeros(2, np.int64))
    assert math.isnan(found.metrics["mrr"])


def test_a_metric_is_found_by_its_name_in_a_quality() -> None:
    labels, logits = np.array([0.0, 1, 0, 1]), np.array([0.3, 0.1, -1.0, 2.0])
    found = quality(labels, logits, groups=np.array([0, 0, 1, 1]), metrics=["gauc", "recall@1"])
    assert (found.value("auc"), found.value("gauc"), found.value("recall@1")) == (found.auc, 0.5, 0.5)
    assert math.isnan(found.value("mrr"))
    assert [eval_metric(name).is_more_better for name in ("auc", "logloss", "recall@1")] == [True, False, True]
    with pytest.raises(ConfigError, match="got calibration"):
        _ = eval_metric("calibration").is_more_better


@pytest.mark.parametrize("name", ["", "recall", "recall@0", "recall@020", "ndcg@1000001", "ndcg@٣", "GAUC", "mrr@5", "ndcg@20 "])
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="gauc, mrr, recall@K and ndcg@K"):
        ranking_metric(name)
    with pytest.raises(ConfigError, match="a metric must be one of auc, logloss"):
        eval_metric(name)

"""Quality of predicted probabilities on held-out samples: exact, in float64, with NumPy only.

torchmetrics takes a second to import and sums in float32; scikit-learn adds 160 MB.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.live.telemetry import Quality

_TINY = 1e-12


def quality(
    labels: NDArray[np.floating],
    logits: NDArray[np.floating],
    weights: NDArray[np.floating] | None = None,
    groups: NDArray[np.int64] | None = None,
    metrics: Sequence[str] = (),
) -> Quality:
    """Score logits (samples,) against labels 0 or 1 (samples,).

    `weights` (samples,), at least 0, say how much each sample counts: 2 is the same as the sample twice. Where their sum is 0
    there are no figures (NaN). `groups` (samples,) are the numbers of the samples' groups, within which `metrics` rank them
    (`dense/ranking.py`) by the scores that `predict` writes."""
    ranked = None
    if metrics and groups is not None:
        from adaptive_rec.dense.ranking import ranking

        ranked = ranking(metrics, labels, scores_of_logits(logits), groups, weights)
    labels, logits = labels.astype(np.float64), logits.astype(np.float64)
    weights = weights if weights is None else weights.astype(np.float64)
    base = mean(labels, weights)
    # log(1 + exp(x)) - y x, without overflow
    logloss = mean(np.maximum(logits, 0) - logits * labels + np.log1p(np.exp(-np.abs(logits))), weights)
    probabilities = 0.5 * (1 + np.tanh(0.5 * logits))
    entropy = -sum(p * math.log(p) for p in (base, 1 - base) if p > _TINY)
    return Quality(
        samples=len(labels),
        auc=auc(labels, logits, weights),
        logloss=logloss,
        accuracy=mean((logits > 0) == (labels > 0.5), weights),
        normalized_entropy=logloss / entropy if entropy > _TINY else float("nan"),
        calibration=mean(probabilities, weights) / base if base > _TINY else float("nan"),
        ranking=ranked,
    )


def scores_of_logits(logits: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return predicted probabilities of label 1. Rounded to 32 bits, those of equal samples are equal nearly always, though their
    logits may differ in the last bit by their place in a batch, and so by the number of processes."""
    return (0.5 * (1 + np.tanh(0.5 * logits.astype(np.float64)))).astype(np.float32)


def mean(values: NDArray[np.floating] | NDArray[np.bool_], weights: NDArray[np.floating] | None) -> float:
    """Return the mean of values, each counted as its weight says; NaN where the sum of the weights is 0."""
    if weights is None:
        return float(np.mean(values))
    total = float(weights.sum())
    return float(np.dot(values, weights)) / total if total > 0 else float("nan")


def auc(
    labels: NDArray[np.floating], scores: NDArray[np.floating], weights: NDArray[np.floating] | None = None
) -> float:
    """Return the probability that a positive outranks a negative, ties counting half (the Mann-Whitney statistic), where samples
    are drawn with chances in proportion to their weights; NaN where a score is NaN or a class has no sample."""
    if np.isnan(scores).any():
        return float("nan")
    if weights is not None:
        return _weighted_auc(labels > 0.5, scores, weights.astype(np.float64))
    positives = float(labels.sum())
    negatives = len(labels) - positives
    if positives == 0 or negatives == 0:
        return float("nan")
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    middle_rank = np.cumsum(count) - (count - 1) / 2
    return float((middle_rank[place][labels > 0.5].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def _weighted_auc(positive: NDArray[np.bool_], scores: NDArray[np.floating], weights: NDArray[np.float64]) -> float:
    distinct, place = np.unique(scores, return_inverse=True)
    positives, negatives = (np.bincount(place, weights * of, len(distinct)) for of in (positive, ~positive))
    pairs = positives.sum() * negatives.sum()
    if not pairs > 0:
        return float("nan")
    outranked = np.cumsum(negatives) - negatives / 2
    return float(np.dot(positives, outranked) / pairs)

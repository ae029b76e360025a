"""Quality of predicted probabilities on held-out samples: exact, in float64, with NumPy only.

torchmetrics takes a second to import and sums in float32; scikit-learn adds 160 MB.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.dense.ranking import ranking
from adaptive_rec.live.telemetry import Quality

_TINY = 1e-12


def quality(
    labels: NDArray[np.floating],
    logits: NDArray[np.floating],
    *,
    groups: NDArray[np.int64] | None = None,
    metrics: Sequence[str] = (),
) -> Quality:
    """Score logits (samples,) against labels 0 or 1 (samples,); by `metrics` that rank, too, where their groups (samples,) are
    given."""
    ranked = ranking(metrics, labels, logits, groups) if metrics and groups is not None else None
    labels, logits = labels.astype(np.float64), logits.astype(np.float64)
    base = float(labels.mean())
    # log(1 + exp(x)) - y x, without overflow
    logloss = float(np.mean(np.maximum(logits, 0) - logits * labels + np.log1p(np.exp(-np.abs(logits)))))
    probabilities = 0.5 * (1 + np.tanh(0.5 * logits))
    entropy = -sum(p * math.log(p) for p in (base, 1 - base) if p > _TINY)
    return Quality(
        samples=len(labels),
        auc=auc(labels, logits),
        logloss=logloss,
        accuracy=float(np.mean((logits > 0) == (labels > 0.5))),
        normalized_entropy=logloss / entropy if entropy > _TINY else float("nan"),
        calibration=float(probabilities.mean()) / base if base > _TINY else float("nan"),
        ranking=ranked,
    )


def auc(labels: NDArray[np.floating], scores: NDArray[np.floating]) -> float:
    """Return the probability that a positive outranks a negative, ties counting half (the Mann-Whitney statistic)."""
    positives = float(labels.sum())
    negatives = len(labels) - positives
    if positives == 0 or negatives == 0:
        return float("nan")
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    middle_rank = np.cumsum(count) - (count - 1) / 2
    return float((middle_rank[place][labels > 0.5].sum() - positives * (positives + 1) / 2) / (positives * negatives))

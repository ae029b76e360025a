"""Metrics of how well scores rank the samples of each group, such as those of one user: exact, in float64, with NumPy only.

Samples of a group that have one score stand in a random order: each metric is its expectation over all orders of such ties, so it
depends neither on the order of the samples nor on chance. Groups come in the order of their numbers, and what is added up within
one is exact or in a fixed order, so the samples of several processes give the same bits as those of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.config.metrics import EvalMetric, ranking_metric
from adaptive_rec.live.telemetry import Ranking

SHORT_TIE = 64
"""Samples of a tie up to which all ties are treated together; longer ones are treated one by one."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def ranking(
    names: Sequence[str],
    labels: NDArray[np.floating],
    scores: NDArray[np.floating],
    groups: Integers,
    weights: NDArray[np.floating] | None = None,
) -> Ranking:
    """Return metrics by the names of `eval.metrics` of labels 0 or 1, scores, groups and weights of 0 or more, each (samples,).

    Grouped AUC is the mean of the groups' AUC over those with samples of both classes, weighted by their samples (Zhou et al.,
    "Deep Interest Network", KDD 2018), or by the sum of these samples' weights, which count in the AUC, too. The other metrics
    are means over the groups with a positive, each weighted by the mean of its samples' weights; within a group samples have
    places, which no weight changes: recall@k is the share of a group's positives among its first k, NDCG@k has gains of 0 and 1
    and a discount of log2 (Jaervelin and Kekaelaeinen, 2002), MRR is of the first positive. A sample of weight 0 is left out.

    Raises ConfigError for an unknown name.
    """
    metrics = [ranking_metric(name) for name in names]
    if weights is not None:
        counts = weights > 0
        labels, scores, groups, weights = labels[counts], scores[counts], groups[counts], weights[counts]
    ties = _ties(labels, scores, groups, weights)
    has_positive = ties.positives_G > 0
    has_both = has_positive & (ties.positives_G < ties.samples_G)
    known = not np.isnan(scores).any()
    values = {
        metric.name: _value(metric, ties, has_both if metric.kind == "gauc" else has_positive) if known else float("nan")
        for metric in metrics
    }
    return Ranking(len(ties.samples_G), int(has_positive.sum()), int(has_both.sum()), values)


@dataclass(frozen=True)
class _Ties:
    """Samples by group, and within a group by falling score: Q runs of samples of one group and one score, G groups."""

    group_Q: Integers
    """Each run's group, counted from 0 in the order of the groups' numbers."""
    first_G: Integers
    """Each group's first run."""
    before_Q: Integers
    """Samples of the group with a greater score."""
    samples_Q: Integers
    positives_Q: Integers
    samples_G: Integers
    positives_G: Integers
    weights_Q: Floats | None
    """Sum of the weights of a run; None where each sample counts once."""
    positive_weights_Q: Floats | None
    group_weights_G: Floats
    """Mean of a group's weights."""

    def sums(self, values_Q: NDArray[Any]) -> NDArray[Any]:
        """Return the sum of each group, (G,)."""
        return np.add.reduceat(values_Q, self.first_G) if len(values_Q) else values_Q


def _ties(
    labels: NDArray[np.floating], scores: NDArray[np.floating], groups: Integers, weights: NDArray[np.floating] | None
) -> _Ties:
    weighed = None if weights is None else weights.astype(np.float64)
    is_positive = labels > 0.5
    order = _order(is_positive, -scores, groups, weighed)
    scores, groups, is_positive = scores[order], groups[order], is_positive[order]
    begins = np.concatenate([[True], groups[1:] != groups[:-1]])[: len(groups)]
    first_sample_Q = np.flatnonzero(begins | np.concatenate([[True], scores[1:] != scores[:-1]])[: len(groups)])
    group_Q = np.cumsum(begins)[first_sample_Q] - 1
    first_G = np.flatnonzero(begins[first_sample_Q])
    samples_Q = np.diff(first_sample_Q, append=len(groups))
    positives_Q = np.add.reduceat(is_positive, first_sample_Q, dtype=np.int64) if len(groups) else samples_Q
    first_sample_G = np.flatnonzero(begins)
    samples_G = np.diff(first_sample_G, append=len(groups))
    weights_Q = positive_weights_Q = None
    group_weights_G = np.ones(len(first_G))
    if weighed is not None and len(groups):
        weighed = weighed[order]
        weights_Q = np.add.reduceat(weighed, first_sample_Q)
        positive_weights_Q = np.add.reduceat(weighed * is_positive, first_sample_Q)
        group_weights_G = np.add.reduceat(weighed, first_sample_G) / samples_G
    before_Q = first_sample_Q - first_sample_G[group_Q]
    positives_G = np.add.reduceat(positives_Q, first_G) if len(groups) else samples_G
    return _Ties(
        group_Q, first_G, before_Q, samples_Q, positives_Q, samples_G, positives_G, weights_Q, positive_weights_Q, group_weights_G
    )


def _order(is_positive: NDArray[np.bool_], falling: NDArray[np.floating], groups: Integers, weights: Floats | None) -> Integers:
    """Return the samples by group and falling score. Sums of weights depend on their order, so all else has one there, too."""
    return np.lexsort((falling, groups) if weights is None else (is_positive, weights, falling, groups))


def _value(metric: EvalMetric, ties: _Ties, counts_G: NDArray[np.bool_]) -> float:
    """Return a metric's mean over the groups that count; NaN without any."""
    if metric.kind == "gauc":
        values_G, weights_G = _aucs(ties)
    else:
        weights_G = ties.group_weights_G
        if metric.kind == "recall":
            values_G = _recalls(ties, metric.ranks)
        elif metric.kind == "ndcg":
            values_G = _ndcgs(ties, metric.ranks)
        else:
            values_G = _reciprocal_ranks(ties)
    weights_G = weights_G[counts_G]
    return float((values_G[counts_G] * weights_G).sum() / weights_G.sum()) if len(weights_G) else float("nan")


def _aucs(ties: _Ties) -> tuple[Floats, Floats]:
    """Return each group's AUC, ties counting half, and its weight, which is 0 without weight in both classes."""
    positives_Q: NDArray[Any]
    negatives_Q: NDArray[Any]
    through_Q: NDArray[Any]
    if ties.weights_Q is None or ties.positive_weights_Q is None:
        positives_Q, negatives_Q = ties.positives_Q, ties.samples_Q - ties.positives_Q
        through_Q = np.cumsum(negatives_Q)
        through_Q -= (through_Q - negatives_Q)[ties.first_G][ties.group_Q]
    else:
        positives_Q = ties.positive_weights_Q
        negatives_Q = ties.weights_Q - positives_Q
        through_Q = _sums_so_far(negatives_Q, np.arange(len(ties.group_Q)) - ties.first_G[ties.group_Q])
    positives_G, negatives_G = ties.sums(positives_Q), ties.sums(negatives_Q)
    below_Q = negatives_G[ties.group_Q] - through_Q + negatives_Q / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        aucs_G = ties.sums(positives_Q * below_Q) / (positives_G * negatives_G)
    return aucs_G, np.where(positives_G * negatives_G > 0, positives_G + negatives_G, 0.0)


def _sums_so_far(values_Q: Floats, place_Q: Integers) -> Floats:
    """Return, for each value, the sum of its group's values up to it. `place_Q`: its place in the group. It adds in pairs, so no
    group takes a rounding of another one."""
    sums_Q, far, shift = values_Q.copy(), np.flatnonzero(place_Q), 1
    while len(far):
        sums_Q[far] += sums_Q[far - shift]
        shift *= 2
        far = far[place_Q[far] >= shift]
    return sums_Q


def _recalls(ties: _Ties, ranks: int) -> Floats:
    among = np.clip(ranks - ties.before_Q, 0, ties.samples_Q)
    with np.errstate(invalid="ignore"):
        return ties.sums(ties.positives_Q * among / ties.samples_Q) / ties.positives_G


def _ndcgs(ties: _Ties, ranks: int) -> Floats:
    """Return NDCG with the gains of a tie averaged over its places (McSherry and Najork, 2008), as scikit-learn does."""
    longest = int(ties.samples_G.max(initial=0))
    places = min(ranks, longest)
    discounts = np.concatenate([[0.0], np.cumsum(1 / np.log2(np.arange(2, places + 2)))])
    first, end = np.minimum(ties.before_Q, places), np.minimum(ties.before_Q + ties.samples_Q, places)
    gains_G = ties.sums(ties.positives_Q / ties.samples_Q * (discounts[end] - discounts[first]))
    with np.errstate(invalid="ignore"):
        return gains_G / discounts[np.minimum(ties.positives_G, places)]


def _reciprocal_ranks(ties: _Ties) -> Floats:
    """Return the expectation of 1 / the place of a group's first positive; 0 in groups without one."""
    found = np.flatnonzero(ties.positives_Q)
    found = found[np.diff(ties.group_Q[found], prepend=-1) > 0]
    values_G = np.zeros(len(ties.samples_G))
    values_G[ties.group_Q[found]] = _expected_reciprocals(ties.before_Q[found], ties.samples_Q[found], ties.positives_Q[found])
    return values_G


def _expected_reciprocals(before: Integers, samples: Integers, positives: Integers) -> Floats:
    """Return the expectation of 1 / the place of the first positive of ties, each behind `before` other samples of its group. All
    are (ties,)."""
    sums = np.zeros(len(before))
    last = samples - positives + 1  # the last place in the tie that the first positive may have
    for tie in np.flatnonzero(last > SHORT_TIE):
        sums[tie] = _one_expected_reciprocal(int(before[tie]), int(samples[tie]), int(positives[tie]))
    active = np.flatnonzero(last <= SHORT_TIE)
    none_yet = np.ones(len(active))
    for place in range(1, int(last[active].max(initial=0)) + 1):
        left = samples[active] - (place - 1)
        chance = positives[active] / left
        sums[active] += none_yet * chance / (before[active] + place)
        none_yet = none_yet * (1 - chance)
        goes_on = last[active] > place
        active, none_yet = active[goes_on], none_yet[goes_on]
    return sums


def _one_expected_reciprocal(before: int, samples: int, positives: int) -> float:
    place = np.arange(1, samples - positives + 2)
    left = samples - (place - 1)
    none_yet = np.cumprod(np.concatenate([[1.0], ((left - positives) / left)[:-1]]))
    return float((none_yet * (positives / left) / (before + place)).sum())

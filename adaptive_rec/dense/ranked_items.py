"""Evaluation where all rows are positives: what each user has chosen of the held-out rows is ranked among the other items."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_rec.batch import Batch
from adaptive_rec.config.metrics import ranking_metric
from adaptive_rec.data.implicit.candidates import Candidates, UserBlock
from adaptive_rec.dense.eager import DensePart
from adaptive_rec.dense.evaluate import TOO_SMALL, logits_in_order
from adaptive_rec.dense.ranking import ranking
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import MemoryPlanError, first_line
from adaptive_rec.live.telemetry import Quality, Ranking

RowsOf = Callable[[Iterable[Batch]], Iterator[Batch]]
"""Returns batches of this process, with the ids of rows, for whole ones with the ids of the data."""
GAUC = "gauc"
MOST_AT_ONCE = 1024
"""Pairs of a batch at the most: on a CPU the layers' outputs stay in a core's second cache."""


def rank_items(
    candidates: Candidates,
    negatives: int,
    metrics: Sequence[str],
    batch_size: int,
    rows_of: RowsOf,
    store: EmbeddingStore,
    dense: DensePart,
    given_up: Callable[[], bool] = lambda: False,
) -> Quality | None:
    """Score all pairs of users and items. Returns None where it was given up. Raises MemoryPlanError where the device is too
    small.

    AUC is grouped AUC, of the items that training rows have. Log loss, accuracy and calibration are what negatives that are drawn
    for each held-out row as in training would give on average; `negatives`: how many are drawn.
    """
    found = _Sums([*metrics, *([] if GAUC in metrics else [GAUC])], candidates.shares_I, negatives)
    for block in candidates.blocks():
        batches = batches_of(candidates, block, min(batch_size, MOST_AT_ONCE))
        try:
            logits = logits_in_order(rows_of(batches), store, dense, given_up)
        except torch.OutOfMemoryError as error:
            raise MemoryPlanError(f"{TOO_SMALL}: {first_line(error)}") from error
        if logits is None:
            return None
        found.add(block, logits.astype(np.float64))
    return found.quality(metrics)


def batches_of(candidates: Candidates, block: UserBlock, batch_size: int) -> Iterator[Batch]:
    """Yield the pairs of a block."""
    for start in range(0, len(block.number_P), batch_size):
        yield candidates.batch(block, slice(start, min(start + batch_size, len(block.number_P))))


@dataclass
class _Sums:
    """What blocks add up to."""

    names: list[str]
    shares_I: NDArray[np.float64]
    negatives: int
    chosen: int = 0
    groups: int = 0
    groups_with_both: int = 0
    weight: float = 0.0
    loss: float = 0.0
    right: float = 0.0
    predicted: float = 0.0
    ranked: dict[str, float] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)

    @property
    def places(self) -> int:
        """The greatest k of the metrics."""
        return max(ranking_metric(name).ranks for name in self.names)

    def add(self, block: UserBlock, logits_P: NDArray[np.float64]) -> None:
        """Take in a block with its scores."""
        self.chosen += int(block.is_chosen_P.sum()) + len(block.missed)
        self._add(self._ranked(block, logits_P), self._samples_with_both(block))
        self._add_expected(block, logits_P)

    def _add(self, made: Ranking, samples_with_both: int) -> None:
        self.groups += made.groups_with_positive
        self.groups_with_both += made.groups_with_both
        for name, value in made.metrics.items():
            weight = samples_with_both if name == GAUC else made.groups_with_positive
            if weight:
                self.ranked[name] = self.ranked.get(name, 0.0) + value * weight
                self.weights[name] = self.weights.get(name, 0.0) + weight

    def _ranked(self, block: UserBlock, logits_P: NDArray[np.float64]) -> Ranking:
        """Return the metrics of a block. Items that are missed are behind all places that count; grouped AUC is of the others."""
        labels_P = block.is_chosen_P.astype(np.float32)
        if not len(block.missed):
            return ranking(self.names, labels_P, logits_P, block.context_P)
        found = ranking([GAUC], labels_P, logits_P, block.context_P)
        before = np.repeat(np.unique(block.missed), self.places)  # ahead of those missed, behind all items
        others = ranking(
            [name for name in self.names if name != GAUC],
            np.concatenate([labels_P, np.ones(len(block.missed), np.float32), np.zeros(len(before), np.float32)]),
            np.concatenate([logits_P, np.full(len(block.missed), -np.inf), np.full(len(before), -np.finfo(np.float64).max)]),
            np.concatenate([block.context_P, block.missed, before]),
        )
        return replace(others, groups_with_both=found.groups_with_both, metrics={**others.metrics, **found.metrics})

    @staticmethod
    def _samples_with_both(block: UserBlock) -> int:
        """Return the pairs of users who have chosen some of the items and not all."""
        user_P = block.context_P - block.context_P.min(initial=0)
        samples_U, chosen_U = np.bincount(user_P), np.bincount(user_P, weights=block.is_chosen_P)
        return int(samples_U[(chosen_U > 0) & (chosen_U < samples_U)].sum())

    def _add_expected(self, block: UserBlock, logits_P: NDArray[np.float64]) -> None:
        """Add the losses that chosen items, and negatives drawn for each of them, have on average."""
        first = int(block.context_P.min(initial=0))
        user_P = block.context_P - first
        chosen_P = block.is_chosen_P
        users = int(user_P.max(initial=0)) + 1
        chosen_U = np.bincount(user_P, weights=chosen_P, minlength=users)
        share_P = np.where(chosen_P, 0.0, self.shares_I[block.number_P])
        share_U = np.bincount(user_P, weights=share_P, minlength=users)
        with np.errstate(invalid="ignore", divide="ignore"):
            each_U = np.where(share_U > 0, self.negatives * chosen_U / share_U, 0.0)
        weight_P = np.where(chosen_P, 1.0, share_P * each_U[user_P])
        loss_P = np.maximum(logits_P, 0) - logits_P * chosen_P + np.log1p(np.exp(-np.abs(logits_P)))
        self.weight += float(weight_P.sum())
        self.loss += float((weight_P * loss_P).sum())
        self.right += float((weight_P * ((logits_P > 0) == chosen_P)).sum())
        self.predicted += float((weight_P * (0.5 * (1 + np.tanh(0.5 * logits_P)))).sum())

    def quality(self, metrics: Sequence[str]) -> Quality:
        """Return what all blocks together show."""
        values = {name: self._mean(name) for name in self.names}
        base = 1 / (1 + self.negatives)
        entropy = -sum(p * math.log(p) for p in (base, 1 - base))
        logloss, right, predicted = (
            part / self.weight if self.weight else math.nan for part in (self.loss, self.right, self.predicted)
        )
        ranked = {name: values[name] for name in metrics}
        return Quality(
            samples=self.chosen,
            auc=values[GAUC],
            logloss=logloss,
            accuracy=right,
            normalized_entropy=logloss / entropy,
            calibration=predicted / base,
            ranking=Ranking(self.groups, self.groups, self.groups_with_both, ranked) if ranked else None,
        )

    def _mean(self, name: str) -> float:
        return self.ranked[name] / self.weights[name] if self.weights.get(name) else math.nan

"""Samples and what a model predicts for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch
from adaptive_rec.dense.metrics import quality, scores_of_logits
from adaptive_rec.live.telemetry import Quality
from adaptive_rec.system.group import Group


@dataclass(frozen=True)
class Scored:
    """Some samples that were scored."""

    labels_B: NDArray[np.float32]
    """All 0 where they have no labels."""
    logits_B: NDArray[np.floating]
    weights_B: NDArray[np.float32] | None
    """None: all count 1."""
    groups_B: NDArray[np.int64] | None
    """None where they have no groups."""

    @staticmethod
    def of(batch: Batch, logits_B: NDArray[np.floating], keeps_groups: bool = True) -> Scored:
        """Return the samples of a batch with their logits."""
        return Scored(batch.labels_B, logits_B, batch.weights_B, batch.groups_B if keeps_groups else None)

    @staticmethod
    def joined(parts: Sequence[Scored]) -> Scored:
        """Return samples that were scored in parts, at least one. All parts have weights or none has, and groups."""
        first = parts[0]
        return first._with(lambda name: np.concatenate([getattr(part, name) for part in parts]))

    def of_all_ranks(self, group: Group) -> Scored:
        """Return the samples of all ranks, each of which must call it."""
        return self._with(lambda name: group.everyone(getattr(self, name)))

    def _with(self, array_of: Callable[[str], NDArray[Any]]) -> Scored:
        """Return the same with other arrays in place of those that are there."""
        return Scored(
            array_of("labels_B"),
            array_of("logits_B"),
            None if self.weights_B is None else array_of("weights_B"),
            None if self.groups_B is None else array_of("groups_B"),
        )

    @property
    def scores_B(self) -> NDArray[np.float32]:
        """The predicted probability of label 1."""
        return scores_of_logits(self.logits_B)

    def quality(self, metrics: Sequence[str] = ()) -> Quality:
        """Return how well the labels were predicted, also by `metrics` that rank samples within their groups."""
        return quality(self.labels_B, self.logits_B, self.weights_B, self.groups_B, metrics)

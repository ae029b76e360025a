"""Progressive validation: each sample is scored by the model as it was before it trained on it (Blum, Kalai and Langford,
"Beating the hold-out", 1999). The scores are those of the training step's own forward pass, so they cost nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.dense.metrics import quality
from adaptive_rec.embedding.records import Fetched
from adaptive_rec.live.telemetry import Quality
from adaptive_rec.policy import StepPlan
from adaptive_rec.saved import ANY, Saved
from adaptive_rec.system.group import ALONE, Group

MicroLosses = list[tuple[Fetched, NDArray[np.float32], NDArray[np.float32] | None]]
"""Losses, labels and weights of micro-batches."""


class Progressive:
    """Losses of the samples of a window, each from before the sample was trained on. Of several processes each has those of its
    parts of the batches."""

    def __init__(self, group: Group = ALONE) -> None:
        self._group = group
        self._window: MicroLosses = []
        self._before: MicroLosses = []
        """The window before this one."""

    def observe(self, work: ClassifiedBatch, _: StepPlan, samples_S: NDArray[np.int64]) -> Callable[[Fetched], None]:
        """Return what adds the losses of a micro-batch (see `LossObserver`)."""
        labels_S, weights_B = work.batch.labels_B[samples_S], work.batch.weights_B
        weights_S = None if weights_B is None else weights_B[samples_S]
        return lambda losses_S: self._window.append((losses_S, labels_S, weights_S))

    def begin_window(self) -> None:
        """End the present window and begin another."""
        self._before, self._window = self._window, []

    # Kept in a checkpoint --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {"window": _state_of(self._window), "before": _state_of(self._before)}

    def set_state(self, found: Saved) -> None:
        """Add what was saved, by this process or by another one."""
        self._window += _saved(found.part("window"))
        self._before += _saved(found.part("before"))

    def quality(self) -> Quality | None:
        """Return the quality over the present window, with the one before where it has had fewer samples. None without any
        sample. Ranks call it together."""
        sizes = [sum(len(labels_S) for _, labels_S, _ in window) for window in (self._window, self._before)]
        samples, before = self._group.total(np.array(sizes, dtype=np.int64)).tolist()
        if not samples + before:
            return None
        scored = _state_of(self._window if samples >= before else self._before + self._window)
        labels = self._group.everyone(scored["labels"])
        # A rank without samples knows no weights; that some have weights is known to all.
        weighted = self._group.any_true("weights" in scored)
        weights = self._group.everyone(scored.get("weights", np.empty(0, np.float32))) if weighted else None
        return quality(labels, logits_of_losses(self._group.everyone(scored["losses"]), labels), weights)


def _state_of(window: MicroLosses) -> dict[str, Any]:
    losses = [losses_S.array()[: len(labels_S)] for losses_S, labels_S, _ in window]
    weights = [weights_S for _, _, weights_S in window if weights_S is not None]
    return {
        "sizes": np.array([len(labels_S) for _, labels_S, _ in window], dtype=np.int64),
        "losses": np.concatenate([np.empty(0), *losses]),
        "labels": np.concatenate([np.empty(0, dtype=np.float32), *(labels_S for _, labels_S, _ in window)]),
        **({"weights": np.concatenate(weights)} if weights else {}),
    }


def _saved(found: Saved) -> MicroLosses:
    ends = np.cumsum(found.array("sizes", np.int64, ANY))
    samples = int(ends[-1]) if len(ends) else 0
    losses, labels = found.array("losses", np.float64, samples), found.array("labels", np.float32, samples)
    weights = np.split(found.array("weights", np.float32, samples), ends)[:-1] if found.has("weights") else [None] * len(ends)
    parts = zip(np.split(losses, ends)[:-1], np.split(labels, ends)[:-1], weights, strict=True)
    return [(Fetched(losses_S), labels_S, weights_S) for losses_S, labels_S, weights_S in parts]


def logits_of_losses(losses: NDArray[np.floating], labels: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the logits (samples,) whose cross-entropies with labels of 0 or 1 are these losses."""
    losses = np.maximum(losses.astype(np.float64), np.finfo(np.float64).tiny)
    against = losses + np.log(-np.expm1(-losses))  # log(exp(loss) - 1), without overflow
    return np.where(labels > 0.5, -against, against)

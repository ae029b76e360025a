"""Progressive validation: each sample is scored by the model as it was before it trained on it (Blum, Kalai and Langford,
"Beating the hold-out", 1999). The scores are those of the training step's own forward pass, so they cost nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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

BESIDE = {"weights": np.float32, "groups": np.int64}
"""Names in a checkpoint, and types, of what samples may have beside losses and labels."""


@dataclass(frozen=True)
class MicroScores:
    """What is kept of a micro-batch."""

    losses: Fetched
    labels_S: NDArray[np.float32]
    beside: Mapping[str, NDArray[Any]]
    """By the names of `BESIDE`; without those that the samples lack."""


class Progressive:
    """Losses of the samples of a window, each from before the sample was trained on. Of several processes each has those of its
    parts of the batches."""

    def __init__(self, group: Group = ALONE, metrics: Sequence[str] = ()) -> None:
        """`metrics`: those of `eval.metrics`, for which the samples' groups are kept."""
        self._group = group
        self._metrics = metrics
        self._window: list[MicroScores] = []
        self._before: list[MicroScores] = []
        """The window before this one."""
        self._began = self._before_began = 0
        """Steps at which they began. A rank that takes over no saved window has 0 for both."""

    def observe(self, work: ClassifiedBatch, _: StepPlan, samples_S: NDArray[np.int64]) -> Callable[[Fetched], None]:
        """Return what adds the losses of a micro-batch (see `LossObserver`)."""
        batch = work.batch
        known = {"weights": batch.weights_B, "groups": batch.groups_B if self._metrics else None}
        beside = {name: array_B[samples_S] for name, array_B in known.items() if array_B is not None}
        labels_S = batch.labels_B[samples_S]
        return lambda losses: self._window.append(MicroScores(losses, labels_S, beside))

    def begin_window(self, step: int) -> None:
        """End the present window, which reaches to `step`, and begin another."""
        self._before, self._window = self._window, []
        self._before_began, self._began = self._began, step

    # Kept in a checkpoint --------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        began = {"began": self._began, "before_began": self._before_began}
        return {"window": _state_of(self._window), "before": _state_of(self._before), **began}

    def set_state(self, found: Saved) -> None:
        """Add what was saved, by this process or by another one."""
        self._window += _saved(found.part("window"))
        self._before += _saved(found.part("before"))
        if found.has("began"):  # older versions saved none
            self._began, self._before_began = found.integer("began"), found.integer("before_began")

    def quality(self, step: int) -> Quality | None:
        """Return the quality over the present window, which reaches to `step`, with the one before where it has had fewer steps
        (in steps of equal length fewer samples may be trained on, by their weights or a policy). None without any sample. Ranks
        call it together."""
        is_short = self._group.any_true(step - self._began < self._began - self._before_began)
        window = self._before + self._window if is_short else self._window
        samples = np.array([sum(len(micro.labels_S) for micro in window)], dtype=np.int64)
        if not self._group.total(samples).item():
            return None
        scored = _state_of(window)
        labels = self._group.everyone(scored["labels"])
        logits = logits_of_losses(self._group.everyone(scored["losses"]), labels)
        return quality(labels, logits, self._beside(scored, "weights"), self._beside(scored, "groups"), self._metrics)

    def _beside(self, scored: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any] | None:
        """Return what the scored samples of all ranks have under a name; None where some of them lack it."""
        own = scored.get(name, np.empty(0, BESIDE[name]))
        return None if self._group.any_true(len(own) < len(scored["labels"])) else self._group.everyone(own)


def _state_of(window: Sequence[MicroScores]) -> dict[str, Any]:
    losses = [micro.losses.array()[: len(micro.labels_S)] for micro in window]
    shared = [name for name in BESIDE if window and all(name in micro.beside for micro in window)]
    return {
        "sizes": np.array([len(micro.labels_S) for micro in window], dtype=np.int64),
        "losses": np.concatenate([np.empty(0), *losses]),
        "labels": np.concatenate([np.empty(0, dtype=np.float32), *(micro.labels_S for micro in window)]),
        **{name: np.concatenate([micro.beside[name] for micro in window]) for name in shared},
    }


def _saved(found: Saved) -> list[MicroScores]:
    ends = np.cumsum(found.array("sizes", np.int64, ANY))
    samples = int(ends[-1]) if len(ends) else 0
    losses, labels = found.array("losses", np.float64, samples), found.array("labels", np.float32, samples)
    beside = {name: found.array(name, kind, samples) for name, kind in BESIDE.items() if found.has(name)}
    parts = zip(np.split(losses, ends)[:-1], np.split(labels, ends)[:-1], strict=True)
    starts = [0, *ends.tolist()]
    return [
        MicroScores(Fetched(losses_S), labels_S, {name: array[first:end] for name, array in beside.items()})
        for (losses_S, labels_S), first, end in zip(parts, starts[:-1], ends.tolist(), strict=True)
    ]


def logits_of_losses(losses: NDArray[np.floating], labels: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the logits (samples,) whose cross-entropies with labels of 0 or 1 are these losses."""
    losses = np.maximum(losses.astype(np.float64), np.finfo(np.float64).tiny)
    against = losses + np.log(-np.expm1(-losses))  # log(exp(loss) - 1), without overflow
    return np.where(labels > 0.5, -against, against)

"""Evaluation on held-out samples. It reads rows from both tiers, and tracks and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_rec.batch import Batch
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.dense.eager import DensePart
from adaptive_rec.dense.metrics import quality
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import DataError, MemoryPlanError, first_line
from adaptive_rec.live.telemetry import Quality
from adaptive_rec.system.group import ALONE, Group

TOO_SMALL = "the device's memory must hold an evaluation; lower eval.batch_size or knobs.hot_budget_bytes"


def score_batches(
    batches: Iterable[Batch],
    store: EmbeddingStore,
    dense: DensePart,
    given_up: Callable[[], bool] = lambda: False,
    metrics: Sequence[str] = (),
) -> Quality | None:
    """Score held-out batches, by `metrics` that rank, too. Returns None where it was given up. Raises MemoryPlanError where the
    device is too small."""
    traffic = replace(store.index.traffic)
    parts: list[ScoredPart] = []
    try:
        for work in _looked_ahead(batches, store):
            if given_up():
                return None
            parts.append(ScoredPart.of(work.batch, _logits(work, store, dense)))
    except torch.OutOfMemoryError as error:
        raise MemoryPlanError(f"{TOO_SMALL}: {first_line(error)}") from error
    finally:
        store.index.set_traffic(traffic)  # it counts training only
    if not parts:
        raise DataError("the held-out range must hold at least one sample, got 0; widen data.test_range")
    return quality_of_parts(parts, metrics, store.group)


@dataclass(frozen=True)
class ScoredPart:
    """Some samples that were scored."""

    labels_B: NDArray[np.float32]
    """All 0 where the samples have no labels."""
    logits_B: NDArray[np.floating]
    weights_B: NDArray[np.float32] | None
    groups_B: NDArray[np.int64] | None

    @classmethod
    def of(cls, batch: Batch, logits_B: NDArray[np.floating]) -> ScoredPart:
        return cls(batch.labels_B, logits_B, batch.weights_B, batch.groups_B)

    @property
    def scores_B(self) -> NDArray[np.float32]:
        """The predicted probability of label 1."""
        return (0.5 * (1 + np.tanh(0.5 * self.logits_B.astype(np.float64)))).astype(np.float32)


def quality_of_parts(parts: Sequence[ScoredPart], metrics: Sequence[str] = (), group: Group = ALONE) -> Quality:
    """Return the quality over parts, one or more, and over those of all ranks, which call it together."""
    weights, groups = _all_of(part.weights_B for part in parts), _all_of(part.groups_B for part in parts)
    return quality(
        group.everyone(np.concatenate([part.labels_B for part in parts])),
        group.everyone(np.concatenate([part.logits_B for part in parts])),
        None if weights is None else group.everyone(weights),
        group.everyone(groups) if metrics and groups is not None else None,
        metrics,
    )


def _all_of(arrays: Iterable[NDArray[Any] | None]) -> NDArray[Any] | None:
    """Return arrays as one; None where one of them is missing."""
    known = [*arrays]
    there = [array for array in known if array is not None]
    return np.concatenate(there) if len(there) == len(known) else None


def logits_in_order(
    batches: Iterable[Batch], store: EmbeddingStore, dense: DensePart, given_up: Callable[[], bool] = lambda: False
) -> NDArray[np.floating] | None:
    """Return the logits of all samples of batches, of which each process has its part, in the order of the whole batches. Returns
    None where it was given up."""
    traffic = replace(store.index.traffic)
    logits: list[NDArray[np.floating]] = []
    try:
        for work in _looked_ahead(batches, store):
            if given_up():
                return None
            logits.append(store.group.everyone(_logits(work, store, dense)))
    finally:
        store.index.set_traffic(traffic)
    return np.concatenate([np.empty(0, np.float32), *logits])


def logits_of(batch: Batch, store: EmbeddingStore, dense: DensePart) -> NDArray[np.floating]:
    """Return the logits of a batch."""
    return _logits(ClassifiedBatch(batch, store.peers.batch_space), store, dense)


def _looked_ahead(batches: Iterable[Batch], store: EmbeddingStore) -> Iterator[ClassifiedBatch]:
    """Yield batches, the rows of the next one on their way."""
    present = None
    for batch in batches:
        work = ClassifiedBatch(batch, store.peers.batch_space)
        store.look_ahead(work)
        if present is not None:
            yield present
        present = work
    if present is not None:
        yield present


def _logits(work: ClassifiedBatch, store: EmbeddingStore, dense: DensePart) -> NDArray[np.floating]:
    store.look_up(work)
    try:
        size = work.batch.size
        micro = dense.evaluation_inputs(size)
        store.gather(work, np.arange(size), np.ones(size), micro)
        logits: NDArray[np.floating] = store.hot.fetch(dense.logits(micro.dense_SX, micro.pooled))
    finally:
        store.release(work)
    return logits

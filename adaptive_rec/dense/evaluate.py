"""Evaluation on held-out samples. It reads rows from both tiers, and tracks and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_rec.batch import Batch
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.dense.eager import DensePart
from adaptive_rec.dense.scored import Scored
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import DataError, MemoryPlanError, first_line
from adaptive_rec.live.telemetry import Quality

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
    parts: list[Scored] = []
    try:
        for work in _looked_ahead(batches, store):
            if given_up():
                return None
            parts.append(Scored.of(work.batch, _logits(work, store, dense), bool(metrics)))
    except torch.OutOfMemoryError as error:
        raise MemoryPlanError(f"{TOO_SMALL}: {first_line(error)}") from error
    finally:
        store.index.set_traffic(traffic)  # it counts training only
    if not parts:
        raise DataError("the held-out range must hold at least one sample, got 0; widen data.test_range")
    return Scored.joined(parts).of_all_ranks(store.group).quality(metrics)


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
        store.batches.look_ahead(work)
        if present is not None:
            yield present
        present = work
    if present is not None:
        yield present


def _logits(work: ClassifiedBatch, store: EmbeddingStore, dense: DensePart) -> NDArray[np.floating]:
    store.batches.look_up(work)
    try:
        size = work.batch.size
        micro = dense.evaluation_inputs(size)
        store.batches.gather(work, np.arange(size), np.ones(size), micro)
        logits: NDArray[np.floating] = store.hot.fetch(dense.logits(micro.dense_SX, micro.pooled))
    finally:
        store.batches.release(work)
    return logits

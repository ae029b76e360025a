"""Evaluation on held-out samples: rows are read from whatever tier they are in; nothing is tracked or changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.batch import Batch
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import DataError
from adaptive_rec.metrics import Quality, quality

Predict = Callable[[Batch, NDArray[np.int64], list[Tensor]], Tensor]
"""Logits of some samples of a batch from their pooled rows."""


@dataclass(frozen=True)
class Evaluation:
    step: int
    quality: Quality


@torch.no_grad()
def evaluate(
    batches: Iterable[Batch], store: EmbeddingStore, predict: Predict, given_up: Callable[[], bool] = lambda: False
) -> Quality | None:
    """Score held-out batches. None where it was given up on the way."""
    traffic = replace(store.traffic)
    labels, logits = [], []
    for batch in batches:
        if given_up():
            break
        work = ClassifiedBatch(batch, store.space)
        store.classify(work)
        samples = np.arange(batch.size)
        pooled = store.gather(work, samples, popular=bool(work.popular_B.all()))
        labels.append(batch.labels_B)
        logits.append(predict(batch, samples, pooled).cpu().numpy())
    store.traffic = traffic  # the counters speak of training
    if given_up():
        return None
    if not labels:
        raise DataError("the held-out range must hold at least one sample, got 0; widen data.test_range")
    return quality(np.concatenate(labels), np.concatenate(logits))

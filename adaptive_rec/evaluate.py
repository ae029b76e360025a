"""Evaluation on held-out samples: rows are read from whatever tier they are in; nothing is tracked or changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.errors import DataError
from adaptive_rec.metrics import Quality, quality

if TYPE_CHECKING:
    from adaptive_rec.runtime import Runtime


@dataclass(frozen=True)
class Evaluation:
    step: int
    quality: Quality


@torch.no_grad()
def evaluate(runtime: Runtime) -> Evaluation:
    """Score the model as it stands on the held-out range."""
    settings = runtime.config.eval
    traffic = replace(runtime.store.traffic)
    runtime.model.eval()
    labels, logits = [], []
    for batch in runtime.source.test_batches(settings.batch_size, settings.max_samples):
        work = ClassifiedBatch(batch, runtime.store.space)
        runtime.store.classify(work)
        samples = np.arange(batch.size)
        pooled = runtime.store.gather(work, samples, popular=bool(work.popular_B.all()))
        labels.append(batch.labels_B)
        logits.append(runtime.logits(batch, samples, pooled).cpu().numpy())
    runtime.store.traffic = traffic  # the counters speak of training
    if not labels:
        raise DataError("the held-out range must hold at least one sample, got 0; widen data.test_range")
    return Evaluation(runtime.step_number, quality(np.concatenate(labels), np.concatenate(logits)))

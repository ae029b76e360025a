"""What rivals on the GPU and on the CPU share: batches in their form, and update rules by their names."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_rec.batch import Batch
from adaptive_rec.classify import expand_ranges
from adaptive_rec.config.tree import Config

FBGEMM_RULES = {
    "sgd": "EXACT_SGD",
    "rowwise_adagrad": "EXACT_ROWWISE_ADAGRAD",
    "adagrad": "EXACT_ADAGRAD",
    "lazy_adam": "ADAM",
}


@dataclass
class ByFeature:
    """A batch as `nn.EmbeddingBag` wants it: ids and bag boundaries of one feature after the other."""

    dense_BX: Tensor
    labels_B: Tensor
    ids_F: list[Tensor]
    offsets_F: list[Tensor]


def by_feature(batch: Batch, features: int, pin: bool) -> ByFeature:
    """Bring a sample-major batch into feature-major form."""
    starts_FB = batch.offsets[:-1].reshape(-1, features).T
    lengths_FB = np.diff(batch.offsets).reshape(-1, features).T
    ids_F, offsets_F = [], []
    for starts, lengths in zip(starts_FB, lengths_FB, strict=True):
        one_each = batch.lookups == batch.size * features
        where = starts if one_each else expand_ranges(starts, lengths)
        ids_F.append(torch.from_numpy(batch.ids_N[where]))
        offsets_F.append(torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)])))
    dense, labels = torch.from_numpy(batch.dense_BX), torch.from_numpy(batch.labels_B)
    return ByFeature(dense.pin_memory() if pin else dense, labels.pin_memory() if pin else labels, ids_F, offsets_F)


def sparse_optimizer(config: Config, weights: list[nn.Parameter]) -> tuple[torch.optim.Optimizer, str]:
    """torch's own sparse optimizer of the rule, or the nearest one there is, and what it is."""
    options = config.optimizer
    if options.embedding == "sgd":
        return torch.optim.SGD(weights, lr=options.embedding_lr), "sparse SGD"
    if options.embedding == "lazy_adam":
        adam = torch.optim.SparseAdam(weights, lr=options.embedding_lr, betas=options.betas, eps=options.eps)
        return adam, "SparseAdam"
    adagrad = torch.optim.Adagrad(weights, lr=options.embedding_lr, eps=options.eps)
    exact = options.embedding == "adagrad"
    return adagrad, "sparse Adagrad" + ("" if exact else " (per component; torch has no row-wise one)")

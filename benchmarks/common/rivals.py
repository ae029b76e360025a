"""What rivals on the GPU and on the CPU share: batches in their form, update rules by their names, and how tables are made."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_rec.batch import Batch
from adaptive_rec.classify import expand_ranges
from adaptive_rec.config.tree import Config
from adaptive_rec.placement import RowSpace

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


def sparse_optimizer(config: Config, weights: Sequence[Tensor]) -> tuple[torch.optim.Optimizer, str]:
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


def joint(found: ByFeature) -> tuple[Tensor, Tensor]:
    """Return ids of all features, one feature after the other, and the ends of their bags, (N,) and (T * B + 1,)."""
    first_F = np.cumsum([0, *(len(ids) for ids in found.ids_F)])
    parts = [offsets[:-1] + int(first) for offsets, first in zip(found.offsets_F, first_F[:-1], strict=True)]
    return torch.cat(found.ids_F).long(), torch.cat([*parts, torch.tensor([int(first_F[-1])])])


def torch_bag(rows_RD: Tensor) -> nn.EmbeddingBag:
    """Return torch's bag of a table, whose gradients are sparse."""
    warnings.filterwarnings("ignore", message="Sparse invariant checks")
    return nn.EmbeddingBag.from_pretrained(rows_RD, freeze=False, mode="sum", sparse=True, include_last_offset=True)


def fbgemm_tables(config: Config, space: RowSpace, device: torch.device, place: str, **options: Any) -> Any:
    """Return FBGEMM's table-batched embeddings of all tables, in a place that it names; their backward pass updates the rows."""
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    rule, there = config.optimizer, ComputeDevice.CUDA if device.type == "cuda" else ComputeDevice.CPU
    return SplitTableBatchedEmbeddingBagsCodegen(
        [(table.rows, table.dim, EmbeddingLocation[place], there) for table in space.tables],
        optimizer=getattr(EmbOptimType, FBGEMM_RULES[rule.embedding]),
        learning_rate=rule.embedding_lr,
        eps=rule.eps,
        beta1=rule.betas[0],
        beta2=rule.betas[1],
        pooling_mode=PoolingMode.SUM,
        device=device,
        **options,
    )


def torchrec_collection(config: Config, space: RowSpace, device: torch.device) -> Any:
    """Return TorchRec's fused collection of all tables, under row-wise Adagrad."""
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)  # it warns when TorchRec is imported
    import torchrec
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection

    assert config.optimizer.embedding == "rowwise_adagrad"
    return FusedEmbeddingBagCollection(
        tables=[
            torchrec.EmbeddingBagConfig(
                name=f"t{number}", embedding_dim=table.dim, num_embeddings=table.rows, feature_names=[feature.name]
            )
            for number, (table, feature) in enumerate(zip(space.tables, space.features, strict=True))
        ],
        optimizer_type=torchrec.optim.RowWiseAdagrad,
        optimizer_kwargs={"lr": config.optimizer.embedding_lr, "eps": config.optimizer.eps},
        device=device,
        location=EmbeddingLocation.DEVICE if device.type == "cuda" else EmbeddingLocation.HOST,
    )


def torchrec_rows(collection: Any, table: int) -> Tensor:
    """Return all rows of a table; writing to it sets them."""
    weight: Tensor = collection.state_dict()[f"embedding_bags.t{table}.weight"].detach()
    return weight

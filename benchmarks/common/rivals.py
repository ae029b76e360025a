"""The tables of others, on a CPU or a GPU: torch's own bags with sparse gradients, FBGEMM's table-batched embeddings, TorchRec.

Each reads pooled vectors from a batch in its own form, made before the clock runs, and updates its rows from their gradients.
"""

from __future__ import annotations

import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adaptive_rec.batch import Batch
from adaptive_rec.classify import expand_ranges
from adaptive_rec.config.tree import Config
from adaptive_rec.placement import RowSpace

CPU = torch.device("cpu")

Weights = Callable[[int], NDArray[Any]]
"""The rows (R, D) that a table begins with: those of our run."""

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


class Tables(ABC):
    """All tables of a rival, feature i reading table i."""

    about = ""
    row_wise = True
    """Whether it makes the same updates as our run, so that its rows can be compared."""

    @abstractmethod
    def prepare(self, batch: Batch) -> Any: ...

    @abstractmethod
    def read(self, prepared: Any) -> Tensor:
        """Pooled vectors (B, T * D), in a graph of autograd."""

    def update(self, pooled: Tensor, gradient: Tensor) -> None:
        pooled.backward(gradient)

    @abstractmethod
    def weight(self, table: int) -> Tensor:
        """All rows (R, D) of a table; writing to it sets them."""

    def rows(self, table: int, ids: NDArray[np.int64]) -> NDArray[Any]:
        found: NDArray[Any] = self.weight(table)[torch.from_numpy(ids)].float().numpy()
        return found

    def begin_with(self, weights: Weights, tables: int) -> None:
        for table in range(tables):
            self.weight(table).copy_(torch.from_numpy(weights(table)))


class TorchSparse(Tables):
    """`nn.EmbeddingBag(sparse=True)` for each table, with one of torch's sparse optimizers: it has no row-wise Adagrad."""

    row_wise = False

    def __init__(
        self, config: Config, space: RowSpace, weights: Weights, rule: str = "", device: torch.device = CPU
    ) -> None:
        """`rule`: an update rule instead of the configuration's."""
        self._features = len(space.features)
        own = (np.require(weights(table), requirements="O") for table in range(len(space.tables)))  # no view of a run's
        self.bags = [torch_bag(torch.from_numpy(rows_RD).to(device)) for rows_RD in own]
        options = config.optimizer.model_copy(update={"embedding": rule or config.optimizer.embedding})
        parameters = [bag.weight for bag in self.bags]
        self.optimizer, note = sparse_optimizer(config.model_copy(update={"optimizer": options}), parameters)
        self.about = f"nn.EmbeddingBag(sparse=True) for each table, {note}"

    def prepare(self, batch: Batch) -> Any:
        found = by_feature(batch, self._features, pin=False)
        return list(zip(self.bags, found.ids_F, found.offsets_F, strict=True))

    def read(self, prepared: Any) -> Tensor:
        return torch.cat([bag(ids, offsets) for bag, ids, offsets in prepared], dim=1)

    def update(self, pooled: Tensor, gradient: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        pooled.backward(gradient)
        self.optimizer.step()

    def weight(self, table: int) -> Tensor:
        return self.bags[table].weight.detach()


class Fbgemm(Tables):
    """SplitTableBatchedEmbeddingBagsCodegen; its backward pass updates the rows."""

    def __init__(
        self, config: Config, space: RowSpace, weights: Weights, rows_type: str = "FP32", output_type: str = "FP32",
        device: torch.device = CPU, place: str = "HOST", **options: Any,
    ) -> None:  # fmt: skip
        from fbgemm_gpu.split_embedding_configs import SparseType

        self._features = len(space.features)
        types = {"weights_precision": getattr(SparseType, rows_type), "output_dtype": getattr(SparseType, output_type)}
        self.tables = fbgemm_tables(config, space, device, place, **types, **options)
        self.begin_with(weights, len(space.tables))
        self.row_wise = (rows_type, output_type) == ("FP32", "FP32")
        rule = FBGEMM_RULES[config.optimizer.embedding]
        self.about = f"SplitTableBatchedEmbeddingBagsCodegen, {place}, {rule}, rows {rows_type}, output {output_type}"

    def prepare(self, batch: Batch) -> Any:
        return joint(by_feature(batch, self._features, pin=False))

    def read(self, prepared: Any) -> Tensor:
        pooled: Tensor = self.tables(*prepared)
        return pooled

    def weight(self, table: int) -> Tensor:
        weight: Tensor = self.tables.split_embedding_weights()[table].detach()
        return weight


class TorchRec(Tables):
    """FusedEmbeddingBagCollection: keyed jagged tensors in, keyed tensors out, FBGEMM's table-batched embeddings inside."""

    def __init__(self, config: Config, space: RowSpace, weights: Weights, device: torch.device = CPU) -> None:
        self.collection = torchrec_collection(config, space, device)
        self._keys = [feature.name for feature in space.features]
        self.begin_with(weights, len(space.tables))
        inside = type(self.collection._emb_modules[0]._emb_module).__name__
        self.about = f"FusedEmbeddingBagCollection, HOST, RowWiseAdagrad: runs {inside} in float32"

    def weight(self, table: int) -> Tensor:
        weight: Tensor = self.collection.state_dict()[f"embedding_bags.t{table}.weight"].detach()
        return weight

    def prepare(self, batch: Batch) -> Any:
        import torchrec

        values, offsets = joint(by_feature(batch, len(self._keys), pin=False))
        return torchrec.KeyedJaggedTensor.from_offsets_sync(keys=self._keys, values=values, offsets=offsets)

    def read(self, prepared: Any) -> Tensor:
        pooled: Tensor = self.collection(prepared).values()
        return pooled

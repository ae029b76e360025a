"""The tables of others: torch's own bags with sparse gradients, FBGEMM's table-batched embeddings, TorchRec over those.

Each reads pooled vectors from a batch in its own form, made before the clock runs, and updates its rows from their gradients.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.batch import Batch
from adaptive_rec.config.tree import Config
from adaptive_rec.placement import RowSpace
from benchmarks.common.rivals import (
    FBGEMM_RULES,
    by_feature,
    fbgemm_tables,
    joint,
    sparse_optimizer,
    torch_bag,
    torchrec_collection,
    torchrec_rows,
)

CPU = torch.device("cpu")

Weights = Callable[[int], NDArray[Any]]
"""The rows (R, D) that a table begins with: those of our run."""


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

    def __init__(self, config: Config, space: RowSpace, weights: Weights, rule: str) -> None:
        self._features = len(space.features)
        self._bags = [torch_bag(torch.tensor(weights(table))) for table in range(len(space.tables))]
        options = config.optimizer.model_copy(update={"embedding": rule})
        parameters = [bag.weight for bag in self._bags]
        self._optimizer, note = sparse_optimizer(config.model_copy(update={"optimizer": options}), parameters)
        self.about = f"nn.EmbeddingBag(sparse=True) for each table, {note}"

    def prepare(self, batch: Batch) -> Any:
        found = by_feature(batch, self._features, pin=False)
        return list(zip(self._bags, found.ids_F, found.offsets_F, strict=True))

    def read(self, prepared: Any) -> Tensor:
        return torch.cat([bag(ids, offsets) for bag, ids, offsets in prepared], dim=1)

    def update(self, pooled: Tensor, gradient: Tensor) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        pooled.backward(gradient)
        self._optimizer.step()

    def weight(self, table: int) -> Tensor:
        return self._bags[table].weight.detach()


class Fbgemm(Tables):
    """SplitTableBatchedEmbeddingBagsCodegen on the CPU; its backward pass updates the rows."""

    def __init__(
        self, config: Config, space: RowSpace, weights: Weights, rows_type: str = "FP32", output_type: str = "FP32"
    ) -> None:
        from fbgemm_gpu.split_embedding_configs import SparseType

        self._features = len(space.features)
        types = {"weights_precision": getattr(SparseType, rows_type), "output_dtype": getattr(SparseType, output_type)}
        self._tables = fbgemm_tables(config, space, CPU, "HOST", **types)
        self.begin_with(weights, len(space.tables))
        self.row_wise = (rows_type, output_type) == ("FP32", "FP32")
        rule = FBGEMM_RULES[config.optimizer.embedding]
        self.about = f"SplitTableBatchedEmbeddingBagsCodegen, HOST, {rule}, rows {rows_type}, output {output_type}"

    def prepare(self, batch: Batch) -> Any:
        return joint(by_feature(batch, self._features, pin=False))

    def read(self, prepared: Any) -> Tensor:
        pooled: Tensor = self._tables(*prepared)
        return pooled

    def weight(self, table: int) -> Tensor:
        weight: Tensor = self._tables.split_embedding_weights()[table].detach()
        return weight


class TorchRec(Tables):
    """FusedEmbeddingBagCollection: keyed jagged tensors in, keyed tensors out, FBGEMM's table-batched embeddings inside."""

    def __init__(self, config: Config, space: RowSpace, weights: Weights) -> None:
        self.collection = torchrec_collection(config, space, CPU)
        self._keys = [feature.name for feature in space.features]
        self.begin_with(weights, len(space.tables))
        inside = type(self.collection._emb_modules[0]._emb_module).__name__
        self.about = f"FusedEmbeddingBagCollection, HOST, RowWiseAdagrad: runs {inside} in float32"

    def weight(self, table: int) -> Tensor:
        return torchrec_rows(self.collection, table)

    def prepare(self, batch: Batch) -> Any:
        import torchrec

        values, offsets = joint(by_feature(batch, len(self._keys), pin=False))
        return torchrec.KeyedJaggedTensor.from_offsets_sync(keys=self._keys, values=values, offsets=offsets)

    def read(self, prepared: Any) -> Tensor:
        pooled: Tensor = self.collection(prepared).values()
        return pooled


RIVALS: dict[str, tuple[str, Callable[[Config, RowSpace, Weights], Tables]]] = {
    "torch SGD": ("torch", partial(TorchSparse, rule="sgd")),
    "torch Adagrad": ("torch", partial(TorchSparse, rule="adagrad")),
    "FBGEMM": ("fbgemm_gpu", Fbgemm),
    "FBGEMM fp16 output": ("fbgemm_gpu", partial(Fbgemm, output_type="FP16")),
    "FBGEMM fp16 rows": ("fbgemm_gpu", partial(Fbgemm, rows_type="FP16")),
    "TorchRec": ("torchrec", TorchRec),
}
"""By their names: the module each needs, and how it is made. FBGEMM 1.8.0 has no bf16 on the CPU, neither rows nor output."""


def why_absent(name: str) -> str:
    """Why a rival cannot take part; empty where it can."""
    module = RIVALS[name][0]
    return "" if importlib.util.find_spec(module) else f"{module} is not installed (make bench installs it)"

"""FBGEMM's tables, all on the device or cached there, and TorchRec's over them.

Cached rows lie in host memory that the device reads (`uvm_host_mapped`), not in managed memory, which virtual machines lack and
which is slower; the cache is filled ahead by FBGEMM's own prefetch, as TorchRec's pipeline does it: after a batch's forward
pass, on a stream of its own. Batches are brought to the device one step ahead.
"""

from __future__ import annotations

import importlib.util
import logging
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adaptive_rec.batch import Batch
from adaptive_rec.config.tree import Config
from benchmarks.common.contestants import Where
from benchmarks.common.rivals import FBGEMM_RULES, by_feature
from benchmarks.gpu.rivals import Rival


@dataclass
class Joint:
    """A batch with the ids of one feature after the other in one tensor (N,), and the ends of all bags (T * B + 1,)."""

    dense_BX: Tensor
    labels_B: Tensor
    ids_N: Tensor
    offsets: Tensor


class Ahead(Rival):
    """A rival whose batches are on the device one step before they are trained."""

    def __init__(self, *of: Any) -> None:
        super().__init__(*of)
        self._next = self._bring(self.loader.take())
        self.look_ahead(self._next)

    def prepare(self, batch: Batch) -> Joint:
        found = by_feature(batch, len(self.space.features), self.on_cuda)
        first_F = np.cumsum([0, *(len(ids) for ids in found.ids_F)])
        parts = [offsets[:-1] + int(first) for offsets, first in zip(found.offsets_F, first_F[:-1], strict=True)]
        ids, offsets = torch.cat(found.ids_F).long(), torch.cat([*parts, torch.tensor([int(first_F[-1])])])
        if self.on_cuda:
            ids, offsets = ids.pin_memory(), offsets.pin_memory()
        return Joint(found.dense_BX, found.labels_B, ids, offsets)

    def make_tables(self) -> None:
        self.side = torch.cuda.Stream(self.device) if self.on_cuda else None

    def beside(self) -> Any:
        """The stream that brings what the next step needs."""
        return torch.cuda.stream(self.side) if self.side is not None else nullcontext()

    def _bring(self, batch: Joint) -> Joint:
        with self.beside():
            there = Joint(*(part.to(self.device, non_blocking=True) for part in vars(batch).values()))
        if self.on_cuda:
            for part in vars(there).values():
                part.record_stream(torch.cuda.current_stream(self.device))
        return there

    def step(self, batch: Joint) -> int:
        here, self._next = self._next, self._bring(batch)
        if self.side is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.side)
        loss = self.loss(here, self.pooled(here).view(len(here.labels_B), len(self.space.features), -1))
        self.look_ahead(self._next)
        self.dense_optimizer.zero_grad(set_to_none=True)
        loss.backward()  # the tables are updated in it
        self.dense_optimizer.step()
        return len(here.labels_B)

    def pooled(self, batch: Joint) -> Tensor:
        raise NotImplementedError

    def look_ahead(self, batch: Joint) -> None:
        """Called between a step's forward and backward passes, with the batch of the next one."""


class FbgemmDevice(Ahead):
    """FBGEMM's table-batched embeddings with all rows on the device."""

    cached_ratio = 0.0

    @staticmethod
    def why_not(where: Where, config: Config) -> str:
        if importlib.util.find_spec("fbgemm_gpu") is None:
            return "fbgemm_gpu is not installed"
        if config.optimizer.embedding == "lazy_adam" and where.device.type != "cuda":
            return "it has no Adam on the CPU"
        return "" if config.optimizer.embedding in FBGEMM_RULES else "it has no such update rule"

    def make_tables(self) -> None:
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        super().make_tables()
        options, there = self.config.optimizer, ComputeDevice.CUDA if self.on_cuda else ComputeDevice.CPU
        location = EmbeddingLocation.DEVICE if self.on_cuda else EmbeddingLocation.HOST
        if self.on_cuda and self.cached_ratio:
            location = EmbeddingLocation.MANAGED_CACHING
        self.tables = SplitTableBatchedEmbeddingBagsCodegen(
            [(table.rows, table.dim, location, there) for table in self.space.tables],
            optimizer=getattr(EmbOptimType, FBGEMM_RULES[options.embedding]),
            learning_rate=options.embedding_lr,
            eps=options.eps,
            beta1=options.betas[0],
            beta2=options.betas[1],
            pooling_mode=PoolingMode.SUM,
            device=self.device,
            **self.cache_options(),
        )
        for table, weights in enumerate(self.tables.split_embedding_weights()):
            weights.copy_(self.weights(table))
        kept = f"LRU cache of {self.cached_ratio:.0%}, host-mapped, prefetched" if self.cached_ratio else "all rows"
        self.about = f"FBGEMM {location.name}, {kept}, {FBGEMM_RULES[options.embedding]}"

    def cache_options(self) -> dict[str, Any]:
        return {}

    def pooled(self, batch: Joint) -> Tensor:
        pooled: Tensor = self.tables(batch.ids_N, batch.offsets)
        return pooled

    def rows(self, table: int) -> Tensor:
        if self.cached_ratio and self.on_cuda:
            self.tables.flush()
        rows: Tensor = self.tables.split_embedding_weights()[table].detach().cpu()
        return rows


class FbgemmCaching(FbgemmDevice):
    """The same with all rows in host memory and a cache of some on the device."""

    def __init__(self, *of: Any, cached_ratio: float) -> None:
        self.cached_ratio = cached_ratio
        super().__init__(*of)

    def cache_options(self) -> dict[str, Any]:
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import CacheAlgorithm

        if not self.on_cuda:
            return {}
        return {
            "cache_algorithm": CacheAlgorithm.LRU,
            "cache_load_factor": self.cached_ratio,
            "uvm_host_mapped": True,
            "prefetch_pipeline": True,
        }

    def look_ahead(self, batch: Joint) -> None:
        if self.on_cuda:
            compute = torch.cuda.current_stream(self.device)
            with self.beside():
                self.tables.prefetch(batch.ids_N, batch.offsets, forward_stream=compute)


class TorchRecDevice(Ahead):
    """TorchRec's FusedEmbeddingBagCollection with all rows on the device: keyed jagged tensors over FBGEMM's tables."""

    @staticmethod
    def why_not(where: Where, config: Config) -> str:
        missing = [name for name in ("torchrec", "fbgemm_gpu") if importlib.util.find_spec(name) is None]
        if missing:
            return f"{', '.join(missing)} is not installed"
        return "" if config.optimizer.embedding == "rowwise_adagrad" else "measured with row-wise Adagrad only"

    def make_tables(self) -> None:
        logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)  # it warns when TorchRec is imported
        import torchrec
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
        from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection

        super().make_tables()
        options = self.config.optimizer
        self._jagged, self._keys = torchrec.KeyedJaggedTensor, [feature.name for feature in self.space.features]
        self.collection = FusedEmbeddingBagCollection(
            tables=[
                torchrec.EmbeddingBagConfig(
                    name=f"t{number}", embedding_dim=table.dim, num_embeddings=table.rows, feature_names=[key]
                )
                for number, (table, key) in enumerate(zip(self.space.tables, self._keys, strict=True))
            ],
            optimizer_type=torchrec.optim.RowWiseAdagrad,
            optimizer_kwargs={"lr": options.embedding_lr, "eps": options.eps},
            device=self.device,
            location=EmbeddingLocation.DEVICE if self.on_cuda else EmbeddingLocation.HOST,
        )
        for table in range(len(self.space.tables)):
            self._weight(table).copy_(self.weights(table))
        self.about = "TorchRec FusedEmbeddingBagCollection, all rows on the device, RowWiseAdagrad"

    def _weight(self, table: int) -> Tensor:
        weight: Tensor = self.collection.state_dict()[f"embedding_bags.t{table}.weight"].detach()
        return weight

    def pooled(self, batch: Joint) -> Tensor:
        jagged = self._jagged(keys=self._keys, values=batch.ids_N, offsets=batch.offsets, stride=len(batch.labels_B))
        pooled: Tensor = self.collection(jagged).values()
        return pooled

    def rows(self, table: int) -> Tensor:
        return self._weight(table).cpu()

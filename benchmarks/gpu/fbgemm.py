"""FBGEMM's tables, all on the device or cached there, and TorchRec's over them.

Cached rows lie in host memory that the device reads (`uvm_host_mapped`), not in managed memory, which virtual machines lack and
which is slower; the cache is filled ahead by FBGEMM's own prefetch, as TorchRec's pipeline does it: after a batch's forward
pass, on a stream of its own. Batches are brought to the device one step ahead.
"""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from adaptive_rec.batch import Batch
from adaptive_rec.config.tree import Config
from benchmarks.common.contestants import Where
from benchmarks.common.rivals import FBGEMM_RULES, Fbgemm, TorchRec, by_feature, joint
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
        ids, offsets = joint(found)
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
        super().make_tables()
        where = "MANAGED_CACHING" if self.on_cuda and self.cached_ratio else "DEVICE" if self.on_cuda else "HOST"
        options = self.cache_options()
        self.tables = Fbgemm(self.config, self.space, self.weights, device=self.device, place=where, **options)
        kept = f"LRU cache of {self.cached_ratio:.0%}, host-mapped, prefetched" if self.cached_ratio else "all rows"
        self.about = f"FBGEMM {where}, {kept}, {FBGEMM_RULES[self.config.optimizer.embedding]}"

    def cache_options(self) -> dict[str, Any]:
        return {}

    def pooled(self, batch: Joint) -> Tensor:
        pooled: Tensor = self.tables.read((batch.ids_N, batch.offsets))
        return pooled


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
                self.tables.tables.prefetch(batch.ids_N, batch.offsets, forward_stream=compute)

    def rows(self, table: int) -> Tensor:
        if self.on_cuda:
            self.tables.tables.flush()
        return super().rows(table)


class TorchRecDevice(Ahead):
    """TorchRec's FusedEmbeddingBagCollection with all rows on the device: keyed jagged tensors over FBGEMM's tables."""

    @staticmethod
    def why_not(where: Where, config: Config) -> str:
        missing = [name for name in ("torchrec", "fbgemm_gpu") if importlib.util.find_spec(name) is None]
        if missing:
            return f"{', '.join(missing)} is not installed"
        return "" if config.optimizer.embedding == "rowwise_adagrad" else "measured with row-wise Adagrad only"

    def make_tables(self) -> None:
        import torchrec

        super().make_tables()
        self._jagged, self._keys = torchrec.KeyedJaggedTensor, [feature.name for feature in self.space.features]
        self.tables = TorchRec(self.config, self.space, self.weights, self.device)
        self.about = "TorchRec FusedEmbeddingBagCollection, all rows on the device, RowWiseAdagrad"

    def pooled(self, batch: Joint) -> Tensor:
        jagged = self._jagged(keys=self._keys, values=batch.ids_N, offsets=batch.offsets, stride=len(batch.labels_B))
        pooled: Tensor = self.tables.read(jagged)
        return pooled

"""What people use today: the plain-PyTorch hybrid of the DLRM scripts, and FBGEMM's tables with a cache on the device.

Both get the same batches, model, loss and dense optimizer as ours. Their batches are read and brought into the form they
need by a thread of their own, as a data loader's worker would.
"""

from __future__ import annotations

import importlib.util
import queue
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from adaptive_rec.batch import Position
from adaptive_rec.config.tree import Config
from adaptive_rec.data.source import Source
from adaptive_rec.dense.models.dlrm import DLRM
from adaptive_rec.embedding.host import _initialise
from adaptive_rec.placement import RowSpace
from adaptive_rec.runtime.assemble import build_dense_optimizer
from benchmarks.common.contestants import Where
from benchmarks.common.rivals import FBGEMM_RULES, ByFeature, by_feature, sparse_optimizer
from benchmarks.common.shapes import cores

AHEAD_BATCHES = 2


class Loader:
    """Reads batches and reforms them on a thread of its own."""

    def __init__(self, source: Source, config: Config, features: int, pin: bool) -> None:
        self._ready: queue.Queue[ByFeature | BaseException] = queue.Queue(AHEAD_BATCHES)
        self._ended = threading.Event()
        self._batches = source.train_batches(Position(seed=config.run.seed), config.run.batch_size)
        self._features, self._pin = features, pin
        self.wait_seconds = 0.0
        self._thread = threading.Thread(target=self._read, name="loader", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for batch in self._batches:
                self._put(by_feature(batch, self._features, self._pin))
                if self._ended.is_set():
                    return
        except BaseException as error:
            self._put(error)

    def _put(self, item: ByFeature | BaseException) -> None:
        while not self._ended.is_set():
            try:
                return self._ready.put(item, timeout=0.1)
            except queue.Full:
                continue

    def take(self) -> ByFeature:
        began = time.perf_counter()
        item = self._ready.get(timeout=120)
        self.wait_seconds += time.perf_counter() - began
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        self._ended.set()
        self._thread.join(10)


class Rival(ABC):
    """What both rivals share: loader, dense part, counting."""

    about = ""

    def __init__(self, name: str, config: Config, source: Source, where: Where) -> None:
        began = time.perf_counter()
        torch.set_num_threads(config.run.threads or cores())
        self.name, self.window_steps, self.steps, self._samples = name, 1, 0, 0
        self.config, self.device, self._where = config, where.device, where
        self.space = RowSpace.of(source.tables, source.features)
        assert len(self.space.pools) == 1
        assert len(source.features) == len(source.tables)
        model = DLRM(
            self.space, source.dense_features, config.model.embedding_dim, config.model.bottom_mlp, config.model.top_mlp,
            config.run.seed,
        )  # fmt: skip
        self.model = model.to(self.device)
        self.dense_optimizer = build_dense_optimizer(config, self.model)
        self.make_tables()
        self._loader = Loader(source, config, len(source.features), self.device.type == "cuda")
        self._setup_seconds = time.perf_counter() - began

    @abstractmethod
    def make_tables(self) -> None: ...

    @abstractmethod
    def step(self, batch: ByFeature) -> None: ...

    def weights(self, table: int) -> Tensor:
        spec = self.space.tables[table]
        rows_RD = np.empty((spec.rows, spec.dim), dtype=np.float32)
        _initialise(rows_RD, self.config.run.seed, table)  # as ours begin
        return torch.from_numpy(rows_RD)

    def loss(self, batch: ByFeature, pooled_BTD: Tensor) -> Tensor:
        dense = batch.dense_BX.to(self.device, non_blocking=True)
        labels = batch.labels_B.to(self.device, non_blocking=True)
        loss: Tensor = binary_cross_entropy_with_logits(self.model(dense, [pooled_BTD]), labels)
        return loss

    def drive(self, steps: int) -> int:
        for _ in range(steps):
            batch = self._loader.take()
            self.step(batch)
            self.steps += 1
            self._samples += len(batch.labels_B)
        self._where.sync()
        return steps

    def counters(self) -> dict[str, float]:
        return {"samples": self._samples, "wait_seconds": self._loader.wait_seconds}

    def settle(self) -> None:
        self._where.sync()

    def facts(self) -> dict[str, Any]:
        return {"about": self.about, "setup_seconds": self._setup_seconds, "steps": self.steps}

    def close(self) -> None:
        self._loader.close()
        self._where.sync()


class PlainHybrid(Rival):
    """One `nn.EmbeddingBag(sparse=True)` for each table on the CPU, the MLPs on the device, as in the DLRM scripts.

    As good as its users have it: all cores, pinned memory for the pooled vectors and their gradients, the dense
    optimizer's step queued before the host waits for the gradients.
    """

    def make_tables(self) -> None:
        self._bags = [
            nn.EmbeddingBag.from_pretrained(
                self.weights(table), freeze=False, mode="sum", sparse=True, include_last_offset=True
            )
            for table in range(len(self.space.tables))
        ]
        warnings.filterwarnings("ignore", message="Sparse invariant checks")
        self._optimizer, note = sparse_optimizer(self.config, list(self._parameters()))
        self.about = f"plain PyTorch {torch.__version__}: {note}, {torch.get_num_threads()} threads"
        shape = (self.config.run.batch_size, len(self._bags), self.space.pools[0].dim)
        pin = self.device.type == "cuda"
        self._pooled = torch.empty(shape, pin_memory=pin)
        self._gradient = torch.empty(shape, pin_memory=pin)

    def _parameters(self) -> Iterator[nn.Parameter]:
        for bag in self._bags:
            yield from bag.parameters()

    def step(self, batch: ByFeature) -> None:
        rows = zip(self._bags, batch.ids_F, batch.offsets_F, strict=True)
        pooled = torch.stack([bag(ids, offsets) for bag, ids, offsets in rows], dim=1)
        staged = self._pooled[: len(pooled)].copy_(pooled.detach())
        on_device = staged.to(self.device, non_blocking=True, copy=True).requires_grad_()
        loss = self.loss(batch, on_device)
        self.dense_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        assert on_device.grad is not None
        gradient = self._gradient[: len(pooled)].copy_(on_device.grad, non_blocking=True)
        copied = torch.cuda.current_stream().record_event() if self.device.type == "cuda" else None
        self.dense_optimizer.step()
        if copied is not None:
            copied.synchronize()
        self._optimizer.zero_grad(set_to_none=True)
        pooled.backward(gradient)
        self._optimizer.step()


class FbgemmCaching(Rival):
    """FBGEMM's table-batched embeddings with UVM caching: all rows in managed memory, an LRU cache of them on the device."""

    def __init__(self, name: str, config: Config, source: Source, where: Where, rows_ratio: float) -> None:
        self._rows_ratio = rows_ratio
        super().__init__(name, config, source, where)

    @staticmethod
    def why_not(where: Where, config: Config) -> str:
        """Why it cannot take part; empty where it can."""
        if importlib.util.find_spec("fbgemm_gpu") is None:
            return "fbgemm_gpu is not installed"
        if where.device.type != "cuda":
            return "its cache needs CUDA"
        return "" if config.optimizer.embedding in FBGEMM_RULES else "it has no such update rule"

    def make_tables(self) -> None:
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import CacheAlgorithm, EmbeddingLocation, PoolingMode
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        options = self.config.optimizer
        specs = [
            (table.rows, table.dim, EmbeddingLocation.MANAGED_CACHING, ComputeDevice.CUDA)
            for table in self.space.tables
        ]
        self._tables = SplitTableBatchedEmbeddingBagsCodegen(
            specs,
            optimizer=getattr(EmbOptimType, FBGEMM_RULES[options.embedding]),
            learning_rate=options.embedding_lr,
            eps=options.eps,
            beta1=options.betas[0],
            beta2=options.betas[1],
            cache_algorithm=CacheAlgorithm.LRU,
            cache_load_factor=self._rows_ratio,
            pooling_mode=PoolingMode.SUM,
            device=self.device,
        )
        for table, weights in enumerate(self._tables.split_embedding_weights()):
            weights.copy_(self.weights(table))
        self.about = f"FBGEMM UVM caching, LRU, load factor {self._rows_ratio}, {FBGEMM_RULES[options.embedding]}"

    def step(self, batch: ByFeature) -> None:
        ends = np.cumsum([0, *(len(ids) for ids in batch.ids_F)])
        parts = [offsets[:-1] + int(end) for offsets, end in zip(batch.offsets_F, ends[:-1], strict=True)]
        offsets = torch.cat([*parts, torch.tensor([int(ends[-1])])]).pin_memory().to(self.device, non_blocking=True)
        ids = torch.cat(batch.ids_F).pin_memory().to(self.device, non_blocking=True)
        flat = self._tables(ids, offsets)
        loss = self.loss(batch, flat.view(len(batch.labels_B), len(batch.ids_F), -1))
        self.dense_optimizer.zero_grad(set_to_none=True)
        loss.backward()  # the tables are updated in it
        self.dense_optimizer.step()

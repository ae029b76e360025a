"""What people use today without a library: torch's own tables, in host memory as in the DLRM scripts, or on the device.

All rivals, `fbgemm.py`'s too, get the same batches, model, loss and dense optimizer as ours.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from adaptive_rec.batch import Batch
from adaptive_rec.config.tree import Config
from adaptive_rec.data.source import Source
from adaptive_rec.dense.models.dlrm import DLRM
from adaptive_rec.dense.tf32 import use_tf32
from adaptive_rec.embedding.first_values import FreshRows
from adaptive_rec.placement import RowSpace
from adaptive_rec.runtime.dense_optimizer import build_dense_optimizer
from benchmarks.common.contestants import Where
from benchmarks.common.loader import Loader
from benchmarks.common.rivals import CPU, TorchSparse, by_feature
from benchmarks.common.shapes import cores


class Rival(ABC):
    """What rivals share: loader, dense part, counting."""

    about = ""
    tables: Any
    """Its `Tables` of common/rivals.py."""

    @staticmethod
    def why_not(where: Where, config: Config) -> str:
        """Why it cannot take part; empty where it can."""
        return ""

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
        self.on_cuda = self.device.type == "cuda"
        use_tf32(config.run.precision == "tf32")
        self.make_tables()
        self.loader = Loader(source, config, self.prepare)
        self._setup_seconds = time.perf_counter() - began

    @abstractmethod
    def make_tables(self) -> None: ...

    @abstractmethod
    def step(self, batch: Any) -> int:
        """Train on a batch that `prepare` returned, or, where batches are brought ahead, on the last one; return its samples."""

    def rows(self, table: int) -> Tensor:
        """All rows of a table as they are now."""
        rows: Tensor = self.tables.weight(table).cpu()
        return rows

    def prepare(self, batch: Batch) -> Any:
        """Bring a batch into the form that `step` wants, in pinned memory. Runs on other threads."""
        return by_feature(batch, len(self.space.features), self.on_cuda)

    def weights(self, table: int) -> NDArray[Any]:
        spec = self.space.tables[table]
        rows_RD = np.empty((spec.rows, spec.dim), dtype=np.float32)
        FreshRows(self.config.run.seed, self.space.tables).fill(table, rows_RD)  # as ours begin
        return rows_RD

    def loss(self, batch: Any, pooled_BTD: Tensor) -> Tensor:
        """`batch` has `dense_BX` and `labels_B`."""
        dense = batch.dense_BX.to(self.device, non_blocking=True)
        labels = batch.labels_B.to(self.device, non_blocking=True)
        loss: Tensor = binary_cross_entropy_with_logits(self.model(dense, [pooled_BTD]), labels)
        return loss

    def drive(self, steps: int) -> int:
        for _ in range(steps):
            self._samples += self.step(self.loader.take())
            self.steps += 1
        self._where.sync()
        return steps

    def counters(self) -> dict[str, float]:
        return {"samples": self._samples, "wait_seconds": self.loader.wait_seconds}

    def settle(self) -> None:
        self._where.sync()

    def facts(self) -> dict[str, Any]:
        return {"about": self.about, "setup_seconds": self._setup_seconds, "steps": self.steps}

    def close(self) -> None:
        self.loader.close()
        self._where.sync()


class TorchTables(Rival):
    """One `nn.EmbeddingBag(sparse=True)` for each table, with torch's own sparse optimizer."""

    place = CPU

    def make_tables(self) -> None:
        self.tables = TorchSparse(self.config, self.space, self.weights, device=self.place)
        threads = f"{torch.get_num_threads()} threads, tables on {self.place}"
        self.about = f"plain PyTorch {torch.__version__}: {self.tables.about}, {threads}"


class PlainDevice(TorchTables):
    """All tables on the device: what one does where they fit."""

    def make_tables(self) -> None:
        self.place = self.device
        super().make_tables()

    def step(self, batch: Any) -> int:
        ids, offsets = ([part.to(self.device, non_blocking=True) for part in parts] for parts in (batch.ids_F, batch.offsets_F))
        pooled = torch.stack([bag(*of) for bag, *of in zip(self.tables.bags, ids, offsets, strict=True)], dim=1)
        loss = self.loss(batch, pooled)
        self.dense_optimizer.zero_grad(set_to_none=True)
        self.tables.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.dense_optimizer.step()
        self.tables.optimizer.step()
        return len(batch.labels_B)


class PlainHybrid(TorchTables):
    """Tables on the CPU, the MLPs on the device, as in the DLRM scripts.

    As good as its users have it: all cores, pinned memory for the pooled vectors and their gradients, the dense
    optimizer's step queued before the host waits for the gradients.
    """

    def make_tables(self) -> None:
        super().make_tables()
        shape = (self.config.run.batch_size, len(self.tables.bags), self.space.pools[0].dim)
        self._pooled = torch.empty(shape, pin_memory=self.on_cuda)
        self._gradient = torch.empty(shape, pin_memory=self.on_cuda)

    def step(self, batch: Any) -> int:
        rows = zip(self.tables.bags, batch.ids_F, batch.offsets_F, strict=True)
        pooled = torch.stack([bag(ids, offsets) for bag, ids, offsets in rows], dim=1)
        staged = self._pooled[: len(pooled)].copy_(pooled.detach())
        on_device = staged.to(self.device, non_blocking=True, copy=True).requires_grad_()
        loss = self.loss(batch, on_device)
        self.dense_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        assert on_device.grad is not None
        gradient = self._gradient[: len(pooled)].copy_(on_device.grad, non_blocking=True)
        copied = torch.cuda.current_stream().record_event() if self.on_cuda else None
        self.dense_optimizer.step()
        if copied is not None:
            copied.synchronize()
        self.tables.optimizer.zero_grad(set_to_none=True)
        pooled.backward(gradient)
        self.tables.optimizer.step()
        return len(batch.labels_B)

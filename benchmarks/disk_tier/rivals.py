"""Rows of others on the disk, with our dense part, on our batches, under row-wise Adagrad, every bag of one id.

Samples are read and classified ahead by a thread, with the kernels of our runs: distinct rows and their segments cost rivals what
they cost us.
"""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adaptive_rec.batch import Batch
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.tree import Config
from adaptive_rec.data.source import Source
from adaptive_rec.dense.eager import DensePart
from adaptive_rec.dense.models.build import build_model
from adaptive_rec.placement import RowSpace
from adaptive_rec.runtime.dense_optimizer import build_dense_optimizer
from benchmarks.common.loader import Loader
from benchmarks.disk_tier.first_rows import first_rows, sync_files

CPU = torch.device("cpu")


class Rival(ABC):
    """A training loop over rows of one dim, numbered as in our joint row space."""

    def __init__(self, config: Config, source: Source, folder: Path) -> None:
        torch.set_num_threads(config.run.thread_budget(False).dense)
        assert config.optimizer.embedding == "rowwise_adagrad", config.optimizer.embedding
        self.space = RowSpace.of(source.tables, source.features)
        assert len(self.space.pools) == 1, "all tables must have one dim"
        self.folder, self.dim = folder, self.space.pools[0].dim
        self.lr, self.eps = config.optimizer.embedding_lr, config.optimizer.eps
        folder.mkdir(parents=True)
        model = build_model(config, self.space, source.dense_features)
        optimizer = build_dense_optimizer(config, model)
        parts = (config.run.precision, torch.float32, CPU, self.space, source.dense_features)
        self._dense = DensePart(model, optimizer, *parts)
        self._loader = Loader(source, config, self._prepare, config.knobs.prefetch_depth)
        self._samples = 0

    def begin(self, config: Config, source: Source) -> None:
        """Write the first values of all rows."""
        for table, spec in enumerate(source.tables):
            for first, weights in first_rows(config.run.seed, table, spec):
                self.write_first(int(self.space.table_first_row[table]) + first, weights)
        self.settle()

    @abstractmethod
    def write_first(self, first: int, weights: NDArray[np.float32]) -> None:
        """Write some rows' first values, and zeros as their optimizer state."""

    @abstractmethod
    def pooled(self, work: ClassifiedBatch, ahead: Any) -> NDArray[np.float32]:
        """Return a batch's vectors (B, T, D)."""

    @abstractmethod
    def update(self, work: ClassifiedBatch, gradient_BTD: NDArray[np.float32]) -> None:
        """Update a batch's rows."""

    @abstractmethod
    def rows(self, table: int, ids: NDArray[np.int64]) -> NDArray[Any]:
        """Return some rows of a table."""

    def read_ahead(self, work: ClassifiedBatch) -> Any:
        """Read what a batch needs, on the thread that classifies ahead; most rivals read nothing there."""
        return None

    # A step ----------------------------------------------------------------------------------------------------------

    def drive(self, steps: int) -> None:
        """Make so many steps, with all that they leave to other threads."""
        for _ in range(steps):
            self._step(*self._loader.take())
        self._loader.settle()

    def _prepare(self, batch: Batch) -> tuple[ClassifiedBatch, Any]:
        work = ClassifiedBatch(batch, self.space)
        return work, self.read_ahead(work)

    def _step(self, work: ClassifiedBatch, ahead: Any) -> None:
        dense, batch = self._dense, work.batch
        dense.begin_step()
        micro = dense.inputs(batch.size)
        micro.dense_SX.numpy()[:], micro.labels_S.numpy()[:] = batch.dense_BX, batch.labels_B
        micro.scale_S.fill_(1 / batch.size)
        micro.pooled[0].detach().numpy()[:] = self.pooled(work, ahead)
        dense.run(micro)
        self.update(work, dense.gradients()[0].numpy())
        dense.step(1.0)
        self._samples += batch.size

    def counters(self) -> dict[str, float]:
        return {"loss_sum": float(self._dense.loss_sum), "samples": self._samples}

    def facts(self) -> dict[str, Any]:
        return {}

    def settle(self) -> None:
        """Have its rows on the disk, outside of the clock, so that the next one finds the disk idle."""
        sync_files(self.folder)

    def close(self) -> None:
        self._loader.close()


def adagrad(lr: float, eps: float, gradient_UD: NDArray[np.float32], rows_UK: NDArray[np.float32]) -> None:
    """Update rows whose last column is their optimizer state."""
    rows_UK[:, -1] += np.square(gradient_UD).mean(axis=1)
    rows_UK[:, :-1] -= gradient_UD * (lr / (np.sqrt(rows_UK[:, -1]) + eps))[:, None]


class RivalRows(Rival):
    """Distinct rows with their state are read, updated as an array, and written back."""

    @abstractmethod
    def read(self, work: ClassifiedBatch, ahead: Any) -> NDArray[np.float32]:
        """Return a batch's distinct rows, with their state in the last column."""

    @abstractmethod
    def write(self, work: ClassifiedBatch, rows_UK: NDArray[np.float32]) -> None:
        """Write a batch's distinct rows."""

    def pooled(self, work: ClassifiedBatch, ahead: Any) -> NDArray[np.float32]:
        self._rows_UK = self.read(work, ahead)
        return self._rows_UK[work.inverse_N, :-1].reshape(work.batch.size, -1, self.dim)

    def update(self, work: ClassifiedBatch, gradient_BTD: NDArray[np.float32]) -> None:
        of_bags = gradient_BTD.reshape(-1, self.dim)[work.segment_bag_N]
        adagrad(self.lr, self.eps, np.add.reduceat(of_bags, work.segments_U1[:-1]), self._rows_UK)
        self.write(work, self._rows_UK)


def mapped(path: Path, advised: bool, *shape: int) -> NDArray[np.float32]:
    """Return a mapped file. `advised`: the system is to read no neighbours of the pages in use."""
    found = np.memmap(path, np.float32, "w+", shape=shape)
    if advised:
        found.base.madvise(mmap.MADV_RANDOM)  # type: ignore[union-attr]
    return found


class MappedArrays(RivalRows):
    """NumPy reads and writes rows of a mapped file, each beside its state."""

    def __init__(self, config: Config, source: Source, folder: Path, advised: bool) -> None:
        super().__init__(config, source, folder)
        self._map = mapped(folder / "rows", advised, self.space.rows, self.dim + 1)
        self.begin(config, source)

    def write_first(self, first: int, weights: NDArray[np.float32]) -> None:
        self._map[first : first + len(weights), :-1] = weights

    def read(self, work: ClassifiedBatch, ahead: Any) -> NDArray[np.float32]:
        found: NDArray[np.float32] = np.asarray(self._map[work.distinct_U])
        return found

    def write(self, work: ClassifiedBatch, rows_UK: NDArray[np.float32]) -> None:
        self._map[work.distinct_U] = rows_UK

    def rows(self, table: int, ids: NDArray[np.int64]) -> NDArray[Any]:
        return np.asarray(self._map[self.space.table_first_row[table] + ids, :-1])


class MappedBags(Rival):
    """One `nn.EmbeddingBag(sparse=True)` of all tables, whose weight is a tensor over a mapped file; its state is another one."""

    def __init__(self, config: Config, source: Source, folder: Path, advised: bool) -> None:
        super().__init__(config, source, folder)
        self._weight = torch.from_numpy(mapped(folder / "rows", advised, self.space.rows, self.dim))
        self._state = torch.from_numpy(mapped(folder / "state", advised, self.space.rows))
        self._bag = nn.EmbeddingBag.from_pretrained(self._weight, freeze=False, mode="sum", sparse=True)
        self.begin(config, source)

    def write_first(self, first: int, weights: NDArray[np.float32]) -> None:
        self._weight[first : first + len(weights)] = torch.from_numpy(weights)
        self._state[first : first + len(weights)] = 0

    def pooled(self, work: ClassifiedBatch, ahead: Any) -> NDArray[np.float32]:
        rows_N = torch.from_numpy(work.distinct_U[work.inverse_N])
        self._vectors: Tensor = self._bag(rows_N, torch.from_numpy(work.batch.offsets[:-1]))
        return self._vectors.detach().numpy().reshape(work.batch.size, -1, self.dim)

    @torch.no_grad()
    def update(self, work: ClassifiedBatch, gradient_BTD: NDArray[np.float32]) -> None:
        self._vectors.backward(torch.from_numpy(gradient_BTD).reshape(self._vectors.shape))
        assert self._bag.weight.grad is not None
        gradient = self._bag.weight.grad.coalesce()
        rows_U, gradient_UD = gradient.indices()[0], gradient.values()
        state_U = self._state[rows_U] + gradient_UD.square().mean(dim=1)
        self._state[rows_U] = state_U
        self._weight.index_add_(0, rows_U, gradient_UD * (-self.lr / (state_U.sqrt() + self.eps))[:, None])
        self._bag.weight.grad = None

    def rows(self, table: int, ids: NDArray[np.int64]) -> NDArray[Any]:
        found: NDArray[Any] = self._weight[torch.from_numpy(self.space.table_first_row[table] + ids)].numpy()
        return found

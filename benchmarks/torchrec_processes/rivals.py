"""TorchRec's DLRM over tables that it shards by a given plan, trained as its users do: with gloo, on CPUs.

Tables under a plan other than `data_parallel` are updated in the backward pass; tables under it by an optimizer of their own.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from adaptive_rec.batch import Batch, TableSpec
from adaptive_rec.config.tree import Config
from adaptive_rec.data.source import Source
from adaptive_rec.dense.linear import linear_layers
from adaptive_rec.dense.models.build import build_model
from adaptive_rec.embedding.host import first_bound
from adaptive_rec.kernels.fill import fill_rows
from adaptive_rec.placement import RowSpace
from benchmarks.common.rivals import by_feature

for name in ("torch.fx._symbolic_trace", "torchrec.distributed.utils"):  # they warn of what is as it should be
    logging.getLogger(name).setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="torchrec")

import torchrec  # noqa: E402
from torchrec.datasets.utils import Batch as TheirBatch  # noqa: E402
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist  # noqa: E402
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder  # noqa: E402
from torchrec.distributed.sharding_plan import (  # noqa: E402
    construct_module_sharding_plan,
    data_parallel,
    row_wise,
    table_wise,
)
from torchrec.distributed.types import ShardingEnv, ShardingPlan  # noqa: E402
from torchrec.models.dlrm import DLRM, DLRMTrain  # noqa: E402
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward  # noqa: E402
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper  # noqa: E402
from torchrec.optim.optimizers import in_backward_optimizer_filter  # noqa: E402

CPU = torch.device("cpu")
EBC = "embedding_bag_collection"


def is_small(rows: int, samples: int) -> bool:
    """Whether the gradient of a whole table has fewer bytes than the pooled vectors of a rank's samples."""
    return rows < samples


def ways_of(plan: str, rows_T: list[int], samples: int) -> list[str]:
    """Return how each table is sharded. `mixed`: small tables data parallel, the others table-wise."""
    if plan == "mixed":
        return ["data_parallel" if is_small(rows, samples) else "table_wise" for rows in rows_T]
    return [plan] * len(rows_T)


def generators(ways_T: list[str], rows_T: list[int], ranks: int) -> dict[str, Any]:
    """Return TorchRec's plan of each table. Table-wise, the next largest table goes to the rank with the fewest tables so far."""
    places = {table: place % ranks for place, table in enumerate(np.argsort(rows_T)[::-1].tolist())}
    made = {"row_wise": lambda _: row_wise(), "data_parallel": lambda _: data_parallel()}
    made["table_wise"] = lambda table: table_wise(rank=places[table])
    return {f"t{table}": made[way](table) for table, way in enumerate(ways_T)}


class OverOurDense(nn.Module):
    """Our dense part over TorchRec's tables, in the place of `DLRMTrain`."""

    def __init__(self, collection: nn.Module, dense: nn.Module, keys: list[str], config: Config) -> None:
        super().__init__()
        setattr(self, EBC, collection)
        self.dense, self.keys, self.dim, self.loss = dense, keys, config.model.embedding_dim, nn.BCEWithLogitsLoss()
        self.layers = linear_layers(config.run.linear, config.run.compile, config.run.batch_size)

    def forward(self, batch: Any) -> tuple[Tensor, tuple[Tensor]]:
        found = getattr(self, EBC)(batch.sparse_features).to_dict()
        pooled = torch.cat([found[key] for key in self.keys], dim=1)
        with self.layers:
            logits_B = self.dense(batch.dense_features, [pooled.reshape(-1, len(self.keys), self.dim)])
        loss = self.loss(logits_B, batch.labels)
        return loss, (loss.detach(),)


class TorchRecRank:
    """One rank of a TorchRec run; `plan` is row_wise, table_wise, data_parallel or mixed."""

    def __init__(
        self, config: Config, source: Source, batches: list[Batch], plan: str, pipelined: bool, our_dense: bool
    ) -> None:
        assert config.optimizer.embedding in ("rowwise_adagrad", "sgd"), config.optimizer.embedding
        self._space = RowSpace.of(source.tables, source.features)
        self._keys = [feature.name for feature in source.features]
        rows_T = [table.rows for table in source.tables]
        ways_T = ways_of(plan, rows_T, config.run.batch_size // dist.get_world_size())
        collection = self._collection(ways_T, config)
        if our_dense:
            dense = build_model(config, self._space, source.dense_features)
            model: nn.Module = OverOurDense(collection, dense, self._keys, config)
        else:
            shape = (source.dense_features, [*config.model.bottom_mlp, config.model.embedding_dim])
            model = DLRMTrain(DLRM(collection, *shape, [*config.model.top_mlp, 1]))
        self._model = self._sharded(model, generators(ways_T, rows_T, dist.get_world_size()))
        self._optimizer = self._dense_optimizer(config)
        self._batches: Iterator[Any] = cycle([self._prepare(batch) for batch in batches])
        self._pipeline = TrainPipelineSparseDist(self._model, self._optimizer, CPU) if pipelined else None

    def _collection(self, ways_T: list[str], config: Config) -> nn.Module:
        tables = [
            torchrec.EmbeddingBagConfig(
                name=f"t{number}", embedding_dim=table.dim, num_embeddings=table.rows,
                feature_names=[self._keys[number]], init_fn=partial(_draw, config.run.seed, number, table),
            )
            for number, table in enumerate(self._space.tables)
        ]  # fmt: skip
        collection = torchrec.EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
        rule, options = _rule(config)
        for number, way in enumerate(ways_T):
            if way != "data_parallel":
                weight = collection.embedding_bags[f"t{number}"].weight
                apply_optimizer_in_backward(rule, [weight], options)
        return collection

    @staticmethod
    def _sharded(model: nn.Module, plan: dict[str, Any]) -> nn.Module:
        sharder: Any = EmbeddingBagCollectionSharder()
        path, collection = next((name, part) for name, part in model.named_modules() if name.endswith(EBC))
        ranks = dist.get_world_size()
        of_module = construct_module_sharding_plan(
            collection, plan, sharder, local_size=ranks, world_size=ranks, device_type="cpu"
        )
        return DistributedModelParallel(
            model, env=ShardingEnv.from_process_group(dist.group.WORLD), device=CPU,
            plan=ShardingPlan({path: of_module}), sharders=[sharder],
        )  # fmt: skip

    def _dense_optimizer(self, config: Config) -> CombinedOptimizer:
        """Return the optimizer of what is not updated in the backward pass: the dense part and whole tables."""
        options, left = config.optimizer, dict(in_backward_optimizer_filter(self._model.named_parameters()))
        whole = {name: weight for name, weight in left.items() if EBC in name}
        dense = {name: weight for name, weight in left.items() if name not in whole}
        make = partial(getattr(torch.optim, options.dense), lr=options.dense_lr, **options.dense_options)
        made = [KeyedOptimizerWrapper(dense, make)]
        if whole:
            rule, values = _rule(config)
            made.append(KeyedOptimizerWrapper(whole, partial(rule, **values)))
        return CombinedOptimizer(made)

    def _prepare(self, batch: Batch) -> TheirBatch:
        found = by_feature(batch, len(self._keys), pin=False)
        lengths = torch.cat([offsets.diff() for offsets in found.offsets_F]).int()
        jagged = torchrec.KeyedJaggedTensor(self._keys, torch.cat(found.ids_F).int(), lengths=lengths)
        return TheirBatch(found.dense_BX, jagged, found.labels_B)

    def train(self, steps: int) -> float:
        """Make so many steps. Returns the mean loss of this rank's samples."""
        losses = [self._pipelined_step() if self._pipeline is not None else self._step() for _ in range(steps)]
        return float(sum(losses)) / steps

    def _pipelined_step(self) -> Tensor:
        assert self._pipeline is not None
        loss: Tensor = self._pipeline.progress(self._batches)[0]
        return loss

    def _step(self) -> Tensor:
        self._optimizer.zero_grad()
        loss, (seen, *_) = self._model(next(self._batches))
        loss.backward()
        self._optimizer.step()
        return seen

    def close(self) -> None: ...

    def rows(self) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.float32]]]:
        for name, weight in self._model.state_dict().items():
            if EBC in name:
                table, parts = int(name.split(".")[-2][1:]), [(0, weight)]
                if hasattr(weight, "local_shards"):
                    parts = [(shard.metadata.shard_offsets[0], shard.tensor) for shard in weight.local_shards()]
                for start, rows_RD in parts:
                    yield table, np.arange(start, start + len(rows_RD)), rows_RD.detach().numpy()


def _rule(config: Config) -> tuple[Any, dict[str, float]]:
    """Return the class of the update rule of rows, and its options."""
    lr, eps = config.optimizer.embedding_lr, config.optimizer.eps
    if config.optimizer.embedding == "sgd":
        return torch.optim.SGD, {"lr": lr}
    return torchrec.optim.RowWiseAdagrad, {"lr": lr, "eps": eps}


def _draw(seed: int, number: int, table: TableSpec, weight: Tensor) -> None:
    """Draw the first values of a table, or of this rank's shard of it, as a run of ours does. A table of other ranks is empty."""
    shard = weight.detach().view(weight.numel() // table.dim, table.dim).numpy()
    first = dist.get_rank() * -(-table.rows // dist.get_world_size()) if len(shard) < table.rows else 0
    fill_rows(np.uint64(seed), number, first_bound(table.rows), np.arange(first, first + len(shard)), shard)

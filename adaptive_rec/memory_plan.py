"""What a run will hold in memory, worked out before its tables are made: by the functions that make them, byte for byte.

What depends on the data met while it trains (candidates, staging) is counted at the most it comes to, by the first batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from adaptive_rec.batch import Batch, Position
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config import Config
from adaptive_rec.config_model import ModelConfig
from adaptive_rec.data.prepared import BLOCK_ROWS, GROUP_BLOCKS, PreparedSource
from adaptive_rec.data.source import Source
from adaptive_rec.embedding.device import SLOT_RECORD_BYTES, all_rows_bytes, row_bytes, split_budget
from adaptive_rec.embedding.homing import RETURNING_LIMIT
from adaptive_rec.embedding.host import SLOT_BYTES
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.staged import HEADROOM_BYTES
from adaptive_rec.errors import MemoryPlanError
from adaptive_rec.observe import SKETCH_LIMIT_BYTES
from adaptive_rec.placement import RowSpace
from adaptive_rec.policy import Policy
from adaptive_rec.tracking.count_min import DEPTH, width_for
from adaptive_rec.tracking.memory import MemoryTrials
from adaptive_rec.tracking.popularity import MIN_BUFFER_ROWS

Place = Literal["host", "device"]

TABLES = "data.max_table_rows, model.embedding_dim or run.row_precision"
BUDGET = "knobs.hot_budget_bytes"
BATCH = "run.batch_size"
BATCHES = "run.batch_size or knobs.prefetch_depth"
DENSE = "the widths under model, or optimizer.dense"
DATA = "data.ids=hash, which reads a file as it goes"

WORTH_NAMING = 0.1
"""Share of a place's bytes from which on a part is worth changing."""


@dataclass(frozen=True)
class TableBytes:
    """A table in host memory, all its rows cold."""

    name: str
    rows: int
    dim: int
    weights_bytes: int
    state_bytes: int
    placement_bytes: int


@dataclass(frozen=True)
class HotBytes:
    """The slots of one pool: rows that are hot, wherever that is."""

    dim: int
    rows: int
    slots: int
    weights_bytes: int
    state_bytes: int
    movement_bytes: int

    @property
    def bytes(self) -> int:
        return self.weights_bytes + self.state_bytes + self.movement_bytes


@dataclass(frozen=True)
class Part:
    """One kind of thing that takes memory."""

    name: str
    place: Place
    bytes: int
    keys: str
    """What makes it smaller."""
    held: bool = False
    """Whether it is in memory already, where the plan is made."""


@dataclass(frozen=True)
class MemoryPlan:
    device: str
    policy: str
    tables: list[TableBytes]
    hot: list[HotBytes]
    parts: list[Part]
    available_bytes: dict[Place, int]
    """Of a place that is not there, nothing."""

    def needed(self, place: Place) -> int:
        """Bytes of all parts in a place."""
        return sum(part.bytes for part in self.parts if part.place == place)

    def problem(self, place: Place) -> str:
        """What is to be changed where it does not fit, empty where it does."""
        needed, available = self.needed(place), self.available_bytes.get(place, 0)
        held = sum(part.bytes for part in self.parts if part.place == place and part.held)
        if needed - held <= available:
            return ""
        large = sorted((p for p in self.parts if p.place == place), key=lambda part: -part.bytes)
        keys = [part.keys for part in large if part.bytes >= WORTH_NAMING * needed]
        return (
            f"the run will need {_gib(needed)} of {place} memory, {_gib(available + held)} are available; "
            f"lower {', then '.join(dict.fromkeys(keys))}"
        )

    @property
    def problems(self) -> list[str]:
        return [text for place in self.available_bytes if (text := self.problem(place))]

    def check_host(self) -> None:
        """Raise MemoryPlanError where host memory will not do. A device's is asked for when it is taken: less hot rows may do."""
        if text := self.problem("host"):
            raise MemoryPlanError(text)

    def as_dict(self) -> dict[str, Any]:
        needed = {place: self.needed(place) for place in self.available_bytes}
        hot = [{**asdict(pool), "bytes": pool.bytes} for pool in self.hot]
        return {
            **asdict(self),
            "hot": hot,
            "needed_bytes": needed,
            "fits": not self.problems,
            "problems": self.problems,
        }


def plan_memory(
    config: Config,
    source: Source,
    policy: Policy,
    model: nn.Module,
    make_optimizer: Callable[[Config, nn.Module], torch.optim.Optimizer],
    device: torch.device,
    available_bytes: dict[Place, int],
    first_batch: bool = False,
) -> MemoryPlan:
    """The plan of a run on a device where `available_bytes` has one, else on the CPU, whose hot rows are in host memory.

    `model` is only measured. `first_batch`: read one, for what depends on how large a batch is; else that is left out.
    """
    fast: Place = "device" if "device" in available_bytes else "host"
    dtype = torch.float64 if config.run.precision == "float64" else torch.float32
    space = RowSpace.of(source.tables, source.features, policy.request_per_table)
    rule = RowRule.of(config.optimizer, config.run.row_precision)
    sizes = row_bytes(space, rule, dtype.itemsize, policy.tracks_movement)
    budget = policy.budget_bytes(config.knobs, all_rows_bytes(space, sizes))
    slots = split_budget(space, sizes, budget)
    batches = source.train_batches(Position(seed=config.run.seed), config.run.batch_size) if first_batch else iter(())
    batch = next(batches, None)
    tables = list(_tables(space, rule, dtype.itemsize))
    hot = list(_hot_rows(space, rule, dtype.itemsize, sizes, slots))
    parts = [
        Part("tables", "host", sum(t.weights_bytes + t.state_bytes + t.placement_bytes for t in tables), TABLES),
        Part("hot rows", fast, sum(pool.bytes for pool in hot), BUDGET),
        Part("records of slots", "host", sum(slots) * SLOT_RECORD_BYTES, BUDGET),
        Part("dense optimizer", fast, optimizer_bytes(config, model, make_optimizer, device, dtype), DENSE),
        *_dense_parts(config, space, source.dense_features, model, dtype, fast),
        *_trackers(config, space, policy, sum(slots), batch),
        *_data_parts(config, source, batch),
    ]
    if fast == "device" and batch is not None:
        staging = _staging_bytes(config, space, rule, dtype.itemsize, batch)
        parts += [Part("staging", place, staging, BATCHES) for place in available_bytes]
    if fast == "device":
        used = sum(part.bytes for part in parts if part.place == fast and part.keys in (BATCHES, BATCH))
        parts.append(Part("kept free for graphs and libraries", fast, max(0, HEADROOM_BYTES - used), BUDGET))
    return MemoryPlan(str(device), config.knobs.policy, tables, hot, parts, available_bytes)


def least_parameters(model: ModelConfig, dense_features: int) -> int:
    """Parameters of the dense part, at the least: known before it is built, which takes as much memory."""
    dim = model.embedding_dim
    chains: list[Sequence[int]] = [[dense_features, *model.bottom_mlp, dim], [dim, *model.top_mlp, 1]]
    chains += [[other, dim] for other in {*model.table_dims} - {dim}]
    if model.name == "tbsm":
        chains += [model.attention_mlp, model.final_mlp]
    crossed = model.cross_layers * model.cross_rank * model.embedding_dim if model.interaction == "dcnv2" else 0
    return crossed + sum(one * following for chain in chains for one, following in pairwise(chain))


def array_bytes(thing: Any) -> int:
    """Bytes of the arrays that an object holds itself, those mapped from files left out."""
    arrays = [value for value in vars(thing).values() if isinstance(value, np.ndarray)]
    return sum(array.nbytes for array in arrays if not isinstance(array, np.memmap))


def _tables(space: RowSpace, rule: RowRule, itemsize: int) -> Iterator[TableBytes]:
    for table in space.tables:
        state = rule.state_width(table.dim) * itemsize
        weights = rule.bytes_per_row(table.dim, itemsize) - state
        sizes = (table.rows * size for size in (weights, state, SLOT_BYTES))
        yield TableBytes(table.name, table.rows, table.dim, *sizes)


def _hot_rows(space: RowSpace, rule: RowRule, itemsize: int, sizes: list[int], slots: list[int]) -> Iterator[HotBytes]:
    for pool, size, count in zip(space.pools, sizes, slots, strict=True):
        state, row = rule.state_width(pool.dim) * itemsize, rule.bytes_per_row(pool.dim, itemsize)
        yield HotBytes(
            pool.dim, pool.rows, count, count * (row - state), count * state, movement_bytes=count * (size - row)
        )


def _dense_parts(
    config: Config,
    space: RowSpace,
    dense_features: int,
    model: nn.Module,
    dtype: torch.dtype,
    place: Place,
) -> Iterator[Part]:
    """Parameters, their gradients, and the largest buffers of a step; what layers keep in between is not known here."""
    numbers = sum(parameter.numel() for parameter in model.parameters())
    yield Part("dense parameters", place, numbers * dtype.itemsize, DENSE)
    yield Part("dense gradients", place, numbers * dtype.itemsize, DENSE)
    pooled = sum(len(pool.features) * pool.dim for pool in space.pools)
    line = (dense_features + 2 + 2 * pooled) * dtype.itemsize
    yield Part("a step's inputs and their gradients", place, config.run.batch_size * line, BATCH)


def optimizer_bytes(
    config: Config,
    model: nn.Module,
    make: Callable[[Config, nn.Module], torch.optim.Optimizer],
    device: torch.device,
    dtype: torch.dtype,
) -> int:
    """Bytes of the state that the dense optimizer keeps: found out by one step of it on parameters of the same shapes.

    They have no memory, unless it is an optimizer that reads values (Adafactor, ASGD) or asks for a real device (fused).
    """

    def kept_bytes(place: torch.device) -> int:
        copies = nn.ParameterList(torch.zeros_like(one, dtype=dtype, device=place) for one in model.parameters())
        optimizer = make(config, copies)
        for copy in copies:
            copy.grad = torch.zeros_like(copy)
        optimizer.step()
        kept = [value for state in optimizer.state.values() for value in state.values()]
        return sum(value.nbytes for value in kept if isinstance(value, torch.Tensor))

    try:
        return kept_bytes(torch.device("meta"))
    except (RuntimeError, AssertionError):  # by which torch says so
        return kept_bytes(device)


def _trackers(config: Config, space: RowSpace, policy: Policy, hot_rows: int, batch: Batch | None) -> Iterator[Part]:
    yield Part("sketch", "host", 4 * DEPTH * width_for(hot_rows, space.rows, SKETCH_LIMIT_BYTES), BUDGET)
    if policy.tracks_popularity:
        rows = max(4 * hot_rows, MIN_BUFFER_ROWS) + (batch.lookups if batch else 0)
        yield Part("candidates", "host", rows * np.dtype(np.int64).itemsize, BUDGET)
    if policy.adapts_memory:
        yield Part("trials of memories", "host", array_bytes(MemoryTrials(hot_rows)), "knobs.policy")


def _data_parts(config: Config, source: Source, batch: Batch | None) -> Iterator[Part]:
    origin = getattr(source, "_source", source)
    if config.data.source != "synthetic" and (held := array_bytes(origin)):
        yield Part("data", "host", held, DATA, held=True)
    if batch is None:
        return
    if isinstance(origin, PreparedSource) and config.data.shuffle:
        rows = 2 * min(GROUP_BLOCKS * BLOCK_ROWS, source.train_samples)
        samples = batch.dense_BX.nbytes + batch.labels_B.nbytes + batch.ids_N.nbytes // 2  # of 32 bits in the folder
        yield Part("data being shuffled", "host", rows * samples // max(1, batch.size), "data.shuffle=false")
    ahead = (config.knobs.prefetch_depth + 1) * (
        array_bytes(batch) + 5 * batch.lookups * np.dtype(np.int64).itemsize  # what classifying adds, at the most
    )
    yield Part("batches ahead", "host", ahead, BATCHES)


def _staging_bytes(config: Config, space: RowSpace, rule: RowRule, itemsize: int, batch: Batch) -> int:
    """Slots of batches ahead, of the one that trains, and of those whose rows are on their way home; all rows cold."""
    work = ClassifiedBatch(batch, space)
    rows_bytes = 0
    for pool, spec in enumerate(space.pools):
        span = work.pool_range(pool)
        rows_bytes += (span.stop - span.start) * (spec.dim + rule.state_width(spec.dim)) * itemsize
    integers = len(batch.offsets) + 2 * batch.lookups + 5 * len(work.distinct_U)
    one = 4 * integers + (batch.dense_BX.size + batch.size) * itemsize + rows_bytes
    return (config.knobs.prefetch_depth + RETURNING_LIMIT + 1) * (
        one + one // 4
    )  # a slot has a quarter more than asked for


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"

"""Memory of the dense part: its optimizer's state and what a step keeps alive, measured on tensors without memory.

`FakeTensorMode` is a part of torch that may change; a test compares it with real tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from adaptive_rec.config.model import ModelConfig
from adaptive_rec.config.tree import Config
from adaptive_rec.dense.eager import DensePart
from adaptive_rec.memory.rows import row_type
from adaptive_rec.placement import RowSpace

MakeOptimizer = Callable[[Config, nn.Module], torch.optim.Optimizer]


def least_parameters(model: ModelConfig, dense_features: int) -> int:
    """Return the least number of parameters of the dense part, before it is built and takes that memory."""
    dim = model.embedding_dim
    chains: list[Sequence[int]] = [[dense_features, *model.bottom_mlp, dim], [dim, *model.top_mlp, 1]]
    chains += [[other, dim] for other in {*model.table_dims} - {dim}]
    if model.name == "tbsm":
        chains += [model.attention_mlp, model.final_mlp]
    crossed = model.cross_layers * model.cross_rank * model.embedding_dim if model.interaction == "dcnv2" else 0
    return crossed + sum(one * following for chain in chains for one, following in pairwise(chain))


def optimizer_bytes(config: Config, model: nn.Module, make: MakeOptimizer, dtype: torch.dtype) -> int:
    """Return the bytes of state that the dense optimizer keeps, measured in one step on parameters of the same shapes.

    The parameters have no memory, unless the optimizer reads values (Adafactor, ASGD) or needs a real device (fused).
    """
    shapes = [parameter.shape for parameter in model.parameters()]

    def kept_bytes(place: str) -> int:
        copies = nn.ParameterList(torch.zeros(shape, dtype=dtype, device=place) for shape in shapes)
        optimizer = make(config, copies)
        for one in copies:
            one.grad = torch.zeros_like(one)
        optimizer.step()
        kept = [value for state in optimizer.state.values() for value in state.values()]
        return sum(value.nbytes for value in kept if isinstance(value, torch.Tensor))

    try:
        return kept_bytes("meta")
    except (RuntimeError, AssertionError):  # torch cannot do it without memory
        return kept_bytes("cpu")


def parameter_bytes(config: Config, model: nn.Module) -> int:
    """Return the bytes of a model's parameters in the run's type, whatever their present type."""
    return sum(parameter.numel() for parameter in model.parameters()) * row_type(config).itemsize


def living_bytes(config: Config, space: RowSpace, dense_features: int, model: nn.Module) -> tuple[int, int]:
    """Return the most bytes that a step and an evaluation's batch keep alive, parameters and their gradients left out.

    Converts the model to the run's type. Both run on a copy without memory.
    """
    dtype = row_type(config)
    fake = FakeTensorMode()
    with FakeCopyMode(fake):
        copied = copy.deepcopy(model.to(dtype))
    with fake:
        plain = torch.optim.SGD(copied.parameters(), lr=0.0)  # keeps no state; the real one may read values
        with Living() as living:
            dense = DensePart(
                copied, plain, config.run.precision, dtype, torch.device("cpu"), space, dense_features
            )  # fmt: skip
            for _ in range(2):  # the second step starts with gradients in place
                dense.begin_step()
                dense.run(dense.inputs(config.run.batch_size))
            step = living.most_bytes - parameter_bytes(config, model)
            dense.begin_step()
            living.most_bytes = 0
            micro = dense.evaluation_inputs(config.eval.batch_size)
            dense.logits(micro.dense_SX, micro.pooled)
    return max(0, step), living.most_bytes


class Living(TorchDispatchMode):
    """Tracks which of the tensors created within it are alive, and the memory they would take."""

    def __init__(self) -> None:
        super().__init__()
        self.most_bytes = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self._alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._alive = {key: kept for key, kept in self._alive.items() if not kept[0].expired()}
        self.most_bytes = max(self.most_bytes, sum(size for _, size in self._alive.values()))
        return made

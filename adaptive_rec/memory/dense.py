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
    """Return the bytes of state that the dense optimizer keeps for the parameters of a model."""
    parameters = list(model.parameters())
    if (bytes_each := _bytes_each(config, make, dtype)) is None:
        return _measured_bytes(config, parameters, make, dtype)
    a_parameter, a_number = bytes_each
    return a_parameter * len(parameters) + a_number * sum(parameter.numel() for parameter in parameters)


def _bytes_each(config: Config, make: MakeOptimizer, dtype: torch.dtype) -> tuple[int, int] | None:
    """Return the bytes of state for a parameter and for each of its numbers, found in a step on a matrix and a vector of a few
    numbers. None where state has other shapes than parameters, or not the same of all.

    A step on large parameters without memory would say the same, but loads torch's compiler.
    """
    small = nn.ParameterList(torch.zeros(shape, dtype=dtype) for shape in ((3, 5), (7,)))
    found = set()
    for parameter, state in zip(small, _state_after_a_step(config, small, make), strict=True):
        like = [value for value in state if value.shape == parameter.shape]
        single = [value for value in state if value.numel() == 1]
        if len(like) + len(single) < len(state):
            return None
        found.add((sum(value.nbytes for value in single), sum(value.itemsize for value in like)))
    return found.pop() if len(found) == 1 else None


def _state_after_a_step(config: Config, parameters: nn.ParameterList, make: MakeOptimizer) -> list[list[torch.Tensor]]:
    """Return what the dense optimizer keeps for each parameter once it has made a step."""
    optimizer = make(config, parameters)
    for one in parameters:
        one.grad = torch.zeros_like(one)
    optimizer.step()
    states = (optimizer.state[one] for one in parameters)
    return [[value for value in state.values() if isinstance(value, torch.Tensor)] for state in states]


def _measured_bytes(config: Config, parameters: list[nn.Parameter], make: MakeOptimizer, dtype: torch.dtype) -> int:
    """Return the bytes of state after a step on parameters of the same shapes. They have no memory, unless the optimizer reads
    values (Adafactor) or needs a real device."""

    def kept_bytes(place: str) -> int:
        copies = nn.ParameterList(torch.zeros(one.shape, dtype=dtype, device=place) for one in parameters)
        return sum(value.nbytes for state in _state_after_a_step(config, copies, make) for value in state)

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
    from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode

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

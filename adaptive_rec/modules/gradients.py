"""Embedding rows under autograd: pooled vectors go out, their gradients are kept until the backward pass ends.

A backward pass is a step: however many calls looked rows up, each distinct row is updated once, when the pass is over. A callback
of autograd's engine reports that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from adaptive_rec.kernels.pooling import gather_bags
from adaptive_rec.modules.bags import Bags
from adaptive_rec.modules.lookahead import PoolCall

MOST_OPEN_PASSES = 8
"""Limit of backward passes that never ended, because an error was raised in them; beyond it the oldest is dropped."""

Gradient = tuple[PoolCall, Tensor]
"""A call and the gradient (L, D) of its pooled vectors."""


class Passes:
    """Gradients of the backward passes under way. `ended` is called with those of a pass when it is over."""

    def __init__(self, ended: Callable[[list[Gradient]], None]) -> None:
        self._ended = ended
        self._open: dict[int, list[Gradient]] = {}

    def add(self, call: PoolCall, gradient_LD: Tensor) -> None:
        """Keep a gradient; called within a backward pass."""
        task = torch._C._current_graph_task_id()
        if task not in self._open:
            while len(self._open) >= MOST_OPEN_PASSES:
                del self._open[min(self._open)]
            self._open[task] = []
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: self._ended(self._open.pop(task, [])))
        self._open[task].append((call, gradient_LD))


class PooledRows(torch.autograd.Function):
    """Pooled vectors of a call. `anchor` requires a gradient, so that autograd runs `backward`; it gets none."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, call: PoolCall, gather: Callable[[PoolCall], Tensor], passes: Passes
    ) -> Tensor:
        ctx.call, ctx.passes = call, passes
        return gather(call)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_LD: Tensor) -> tuple[None, ...]:
        ctx.passes.add(ctx.call, gradient_LD)
        return None, None, None, None


class HostRows(torch.autograd.Function):
    """Pooled vectors of a table that is a parameter in host memory; its gradient is dense or sparse, for a torch optimizer."""

    @staticmethod
    def forward(ctx: Any, weight_RD: Tensor, bags: Bags, sparse: bool) -> Tensor:
        ctx.bags, ctx.sparse, ctx.shape = bags, sparse, weight_RD.shape
        pooled_LD = torch.empty((len(bags), weight_RD.shape[1]), dtype=weight_RD.dtype)
        rows = weight_RD.detach().contiguous().numpy()
        gather_bags(0, 1, 0, bags.offsets, ~bags.row_N, rows[:0], rows, pooled_LD.unsqueeze(1).numpy())
        return pooled_LD if bags.divisor_L1 is None else pooled_LD / bags.divisor_L1

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_LD: Tensor) -> tuple[Tensor, None, None]:
        bags: Bags = ctx.bags
        if bags.divisor_L1 is not None:
            gradient_LD = gradient_LD / bags.divisor_L1
        gradient_ND = gradient_LD.repeat_interleave(torch.from_numpy(np.diff(bags.offsets)), dim=0)
        row_N = torch.from_numpy(bags.row_N)
        if ctx.sparse:
            return torch.sparse_coo_tensor(row_N.unsqueeze(0), gradient_ND, ctx.shape), None, None
        return gradient_ND.new_zeros(ctx.shape).index_add_(0, row_N, gradient_ND), None, None

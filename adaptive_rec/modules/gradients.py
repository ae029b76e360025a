"""Rows under autograd: pooled vectors out, their gradients kept until the backward pass ends.

A backward pass is a step: whatever was looked up, in however many calls, each distinct row is updated once when the pass is over.
The engine of autograd tells when that is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from adaptive_rec.kernels.pooling import gather_bags
from adaptive_rec.modules.bags import Bags

if TYPE_CHECKING:
    from adaptive_rec.modules.lookahead import Ahead

MOST_OPEN_PASSES = 8
"""Of more that never came to their end, because something raised in them, the oldest is forgotten."""


class Lookup:
    """One call's bags, and what was made ready for them, if anything was."""

    __slots__ = ("_ahead", "bags", "first")

    def __init__(self, bags: Bags, ahead: Ahead | None = None, first: int = 0) -> None:
        self.bags = bags
        self.first = first
        """Number of the first of these bags in the batch that was made ready."""
        self._ahead = ahead

    @property
    def ready(self) -> Ahead | None:
        """What was made ready, as long as it is not over."""
        return self._ahead if self._ahead is not None and not self._ahead.over else None


Gradient = tuple[Lookup, Tensor]
"""Of a lookup's pooled vectors (L, D)."""


class Passes:
    """The gradients of backward passes that are under way. `ended` gets those of each when it is over."""

    def __init__(self, ended: Callable[[list[Gradient]], None]) -> None:
        self._ended = ended
        self._open: dict[int, list[Gradient]] = {}

    def add(self, lookup: Lookup, gradient_LD: Tensor) -> None:
        """Keep a gradient; called within a backward pass."""
        task = torch._C._current_graph_task_id()
        if task not in self._open:
            while len(self._open) >= MOST_OPEN_PASSES:
                del self._open[min(self._open)]
            self._open[task] = []
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: self._ended(self._open.pop(task, [])))
        self._open[task].append((lookup, gradient_LD))


class PooledRows(torch.autograd.Function):
    """Pooled vectors of a lookup. `anchor` requires a gradient, so that autograd comes by; it gets none."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, lookup: Lookup, gather: Callable[[Lookup], Tensor], passes: Passes) -> Tensor:
        ctx.lookup, ctx.passes = lookup, passes
        return gather(lookup)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_LD: Tensor) -> tuple[None, ...]:
        ctx.passes.add(ctx.lookup, gradient_LD)
        return None, None, None, None


class HostRows(torch.autograd.Function):
    """Pooled rows of a table in host memory that is a parameter: its gradient is torch's to apply, dense or sparse."""

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

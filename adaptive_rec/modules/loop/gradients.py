"""Embedding rows under autograd: pooled vectors go out, their gradients are kept until the backward pass ends.

A backward pass is a step: however many calls looked rows up, each distinct row is updated once, when the pass is over. A callback
of autograd's engine reports that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from adaptive_rec.modules.loop.lookahead import PoolCall
from adaptive_rec.modules.loop.row_gradient import CallGradient

MOST_OPEN_PASSES = 8
"""Limit of backward passes that never ended, because an error was raised in them; beyond it the oldest is dropped."""


class Passes:
    """Gradients of the backward passes under way. `ended` is called with those of a pass when it is over."""

    def __init__(self, ended: Callable[[list[CallGradient]], None]) -> None:
        self._ended = ended
        self._open: dict[int, list[CallGradient]] = {}

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
    """Pooled vectors of a call, which come in a list, as autograd would take an input that is returned for a view. `weight`
    requires a gradient, so that autograd runs `backward`; it gets what `keep` returns."""

    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        found: list[Tensor],
        call: PoolCall,
        keep: Callable[[PoolCall, Tensor], Tensor | None],
    ) -> Tensor:
        ctx.call, ctx.keep = call, keep
        return found.pop()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_LD: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.keep(ctx.call, gradient_LD), None, None, None

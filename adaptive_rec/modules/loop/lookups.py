"""Forward calls of a user's loop: rows are looked up under autograd, and their gradients kept until a step updates them.

Where a backward pass is a step, each distinct row is updated once when the pass is over, however many calls looked rows up. A
callback of autograd's engine reports that.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from adaptive_rec.modules.loop.bags import Bags, CallKey
from adaptive_rec.modules.loop.lookahead import PoolCall
from adaptive_rec.modules.loop.row_gradient import CallGradient
from adaptive_rec.modules.loop.tables_in_tiers import TablesInTiers

MOST_READS = 64
"""Limit of the lookups of a table that are counted in a step with a dense gradient."""
MOST_PASSES = 1024
"""Backward passes without a step that are warned of."""
MOST_OPEN_PASSES = 8
"""Limit of backward passes that never ended, because an error was raised in them; beyond it the oldest is dropped."""


class Reads:
    """Lookups of each table since its last step, and the backward passes through them, where an optimizer makes the steps."""

    def __init__(self) -> None:
        self._reads: dict[int, deque[Bags]] = defaultdict(lambda: deque(maxlen=MOST_READS))
        self._passes_of: dict[int, tuple[int, int]] = {}
        """Number of backward passes through each table since then, and the newest of them."""

    def of(self, table: int) -> tuple[Bags, ...]:
        """Return the lookups of a table."""
        return tuple(self._reads[table])

    def add(self, table: int, bags: Bags) -> bool:
        """Keep a lookup that a backward pass went through. Returns whether too many passes have gone by without a step."""
        self._reads[table].append(bags)
        task = torch._C._current_graph_task_id()
        passes, newest = self._passes_of.get(table, (0, -1))
        self._passes_of[table] = passes + (task != newest), task
        return passes + 1 == MOST_PASSES and task != newest

    def clear(self, table: int) -> None:
        """Begin anew, after a step."""
        self._reads[table].clear()
        self._passes_of.pop(table, None)


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
    def backward(ctx: Any, gradient_LD: Tensor) -> tuple[Tensor | None, ...]:
        return (_differentiable_once if torch.is_grad_enabled() else _kept)(ctx, gradient_LD)


def _kept(ctx: Any, gradient_LD: Tensor) -> tuple[Tensor | None, ...]:
    return ctx.keep(ctx.call, gradient_LD), None, None, None


_differentiable_once = once_differentiable(_kept)
"""For backward passes that are to be differentiated themselves, which raises torch's error; others need no such care."""


class RowLookups:
    """Reads rows from both tiers for forward calls. Gradients wait in the weight for an optimizer's step, or for the end of the
    backward pass where that is a step."""

    def __init__(self, tables: TablesInTiers, reads: Reads, passes: Passes, start: Callable[[], None]) -> None:
        """`passes`: gradients of backward passes that are steps. `start` starts training, before the first lookup."""
        self._tables, self._reads, self._passes, self._start = tables, reads, passes, start
        self._anchor = torch.zeros((), requires_grad=True)

    def pooled(
        self,
        key: Callable[[], CallKey] | None,
        make: Callable[[], list[Bags]],
        weight: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> list[Tensor]:
        """Return the pooled vectors (L, D) of a forward call's bags. `make` makes the bags where none with this `key` were looked
        up ahead. `weight` is the parameter that gets the gradient where rows are not updated in the backward pass. `dtype`: type
        of the vectors, by default that of the tables."""
        tables = self._tables
        tables.life.check()
        if not tables.state.rows_placed:
            self._start()
        ahead, times = tables.ahead.batch, tables.state.times
        calls = ahead.calls(key()) if ahead is not None and key is not None else []
        if not calls:
            with times("classify"):
                calls = [PoolCall(bags) for bags in make()]
        found: list[Tensor] = []
        with tables.turn, times("gather"):
            for call in calls:
                found.append(tables.rows.gather(call, tables.state.step))
        source = self._anchor if weight is None else weight
        if torch.is_grad_enabled():
            keep = self._passes.add if weight is None or tables.updates_in_backward else partial(self._keep, weight)
            found = [PooledRows.apply(source, [vectors], call, keep) for vectors, call in zip(found, calls, strict=True)]
        wanted = dtype or tables.weight_dtype
        return [vectors_LD if vectors_LD.dtype == wanted else vectors_LD.to(wanted) for vectors_LD in found]

    def _keep(self, weight: Tensor, call: PoolCall, gradient_LD: Tensor) -> Tensor:
        """Return the gradient of a weight, for autograd to add to its ``grad``."""
        table = call.bags.tables[0]
        if self._reads.add(table, call.bags):
            self._tables.state.warn(
                f"rows of {self._tables.space.tables[table].name} were read in {MOST_PASSES} backward passes since the last step "
                "of an optimizer that holds its weight; without steps they are not updated"
            )
        return self._tables.rows.gradient_type(weight, [(call, gradient_LD)], call.bags.ranges[0][2])

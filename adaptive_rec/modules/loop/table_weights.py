"""Whole tables of a user's loop: their rows, in and out, and the parameters that a model holds of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.embedding.row_types import as_array, as_tensor
from adaptive_rec.errors import ConfigError, ConflictError
from adaptive_rec.modules.loop.handed_out import HandedOut
from adaptive_rec.modules.loop.lookups import Reads
from adaptive_rec.modules.loop.row_gradient import RowGradient
from adaptive_rec.modules.loop.tables_in_tiers import TablesInTiers


class TableWeights:
    """The weights of tables in tiers."""

    def __init__(self, tables: TablesInTiers, reads: Reads) -> None:
        self._tables, self._store, self._reads = tables, tables.store, reads
        self._weights: dict[int, Tensor] = {}
        """Weights of the tables that a model holds as parameters."""
        self.copies = [HandedOut() for _ in tables.space.tables]
        """Copies of the rows of each table that state dictionaries of the model hold."""

    # Parameters ------------------------------------------------------------------------------------------------------

    def hold(self, number: int, weight: Tensor) -> None:
        """Know the parameter that is a table's weight."""
        self._weights[number] = weight
        if self._tables.updates_in_backward:
            weight.register_post_accumulate_grad_hook(self._refuse_gradient)
        elif not self._tables.rows.group.is_alone:
            weight.register_post_accumulate_grad_hook(self._take_gradient)

    def held(self) -> list[tuple[int, Tensor]]:
        """Return the parameters that are tables' weights, with the numbers of the tables."""
        return list(self._weights.items())

    @contextmanager
    def written(self, numbers: Collection[int]) -> Iterator[None]:
        """Update rows of tables, and count it as a write to the weights: a backward pass over values read before is an error."""
        for number in numbers:
            self.check_no_lost_writes(number, "the next step")
        try:
            yield
        finally:
            torch.autograd.graph.increment_version([self._weights[each] for each in numbers if each in self._weights])

    def check_no_lost_writes(self, number: int, before: str) -> None:
        """Raise ConflictError where a copy of a table's rows was written to and not loaded."""
        if self.copies[number].has_lost_writes():
            raise ConflictError(
                f"the rows of {self._tables.space.tables[number].name} in a state dictionary are a copy, and were written "
                f"to: in torch that would have changed the model; give the dictionary to load_state_dict before {before}, or "
                "write to a copy of it (copy.deepcopy)",
                faq="live-state-dict",
            )

    def _refuse_gradient(self, weight: Tensor) -> None:
        if weight.grad is None:  # the pass read rows only
            return
        weight.grad = None
        raise ConfigError(
            "a loss must not use the weight of a table as a whole where rows are updated in the backward pass, as its gradient "
            "would be lost: hand wrap the optimizer that holds the weight (update=\"step\")"
        )

    def _take_gradient(self, weight: Tensor) -> None:
        """Convert a dense gradient, of a loss that uses a weight as a whole, into one of this rank's part of the batch."""
        with torch._C.DisableTorchFunctionSubclass():
            dense = weight.grad
            if dense is None or isinstance(dense, RowGradient):
                return
            (number,) = (number for number, one in self._weights.items() if one is weight)
            summed = torch.arange(len(dense), device=dense.device), dense
            first_row = self._tables.space.table_range(number)[1]
            weight.grad = self._tables.rows.gradient_type(weight, None, first_row, summed, self._reads.of(number))

    def gradients(self) -> dict[str, RowGradient]:
        """Return the gradients that wait for the optimizer's step, by the names of their tables."""
        names = [table.name for table in self._tables.space.tables]
        return {names[number]: one.grad for number, one in self._weights.items() if isinstance(one.grad, RowGradient)}

    # Rows ------------------------------------------------------------------------------------------------------------

    def table(self, number: int) -> Tensor:
        """Return a copy of a table's rows (rows, dim), in host memory."""
        tables = self._tables
        tables.life.check()
        with tables.turn:
            tables.sums.settle()
            tables.dense_steps.settle(number)
            return as_tensor(tables.rows.whole(number, self._store.contents.export(number)[0], tables.state.step))

    def set_table(self, number: int, rows: Tensor) -> None:
        """Set all rows of a table, in both tiers; their optimizer state stays."""
        tables = self._tables
        tables.life.check()
        tables.ahead.drop()
        tables.dense_steps.catch_up(number)
        given = as_array(rows.detach().cpu().to(tables.weight_dtype))
        self._store.contents.replace_table(number, tables.rows.own(number, given, tables.state.step), None)

    def set_rows(self, number: int, row_N: NDArray[np.int64], values: Tensor) -> None:
        """Set some rows of a table, by their numbers in the table; of a row that is given twice the last value counts."""
        tables = self._tables
        tables.life.check()
        tables.ahead.drop()
        last = dict(zip(row_N.tolist(), range(len(row_N)), strict=True))
        given = as_array(values.detach().cpu().to(tables.weight_dtype))
        values_ND, given_N = given[np.fromiter(last.values(), np.int64, len(last))], np.fromiter(last, np.int64, len(last))
        some, own_N = tables.rows.own_ids(number, given_N, values_ND, tables.state.step)
        tables.dense_steps.catch_up(number, self._store.space.table_range(number)[1] + own_N)
        self._store.contents.replace_rows(number, own_N, values_ND[some])

    def set_first_rows(self, number: int, fill: Callable[[Tensor], object]) -> None:
        """Set a table's rows before the first step: `fill` gets a tensor (R, D) that it sets in place."""
        assert not self._tables.state.rows_placed, "rows are set in place before the first step only"
        with torch.no_grad():
            self._tables.rows.set_first(number, fill)

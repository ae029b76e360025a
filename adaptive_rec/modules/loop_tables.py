"""Whole tables of a user's loop: rows, optimizer state and gradients, in and out."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.batch import TableSpec
from adaptive_rec.embedding.row_types import as_array, as_tensor
from adaptive_rec.errors import ConfigError, ConflictError
from adaptive_rec.modules.autograd import AutogradSession
from adaptive_rec.modules.bags import Bags
from adaptive_rec.modules.data_parallel import leave_out_tables
from adaptive_rec.modules.finite_sums import check_gradient
from adaptive_rec.modules.handed_out import HandedOut
from adaptive_rec.modules.options import Setup
from adaptive_rec.modules.rates import Rates
from adaptive_rec.modules.row_gradient import RowGradient
from adaptive_rec.modules.row_state import RowState, with_states_shown
from adaptive_rec.modules.step_parts import StepPart


class LoopTables(AutogradSession):
    """A session in the user's loop, and the tables that its model holds as parameters."""

    def __init__(
        self, tables: Sequence[TableSpec], setup: Setup, rates: Rates | Sequence[Rates], dtype: torch.dtype
    ) -> None:
        super().__init__(tables, setup, rates, dtype)
        leave_out_tables()
        self._weights: dict[int, Tensor] = {}
        """Weights of the tables that a model holds as parameters."""
        self.row_copies = [HandedOut() for _ in tables]
        """Copies of the rows of each table that state dictionaries of the model hold."""
        self.state_copies = [HandedOut() for _ in tables]
        """Copies of the optimizer state of each table's rows that somebody has read."""
        self._row_states: dict[int, RowState] = {}
        self._shown: WeakSet[torch.optim.Optimizer] = WeakSet()
        """Optimizers whose ``state_dict()`` has of the state of tables what torch's would have."""

    def hold(self, number: int, weight: Tensor) -> None:
        """Know the parameter that is a table's weight."""
        self._weights[number] = weight
        if self.updates_in_backward:
            weight.register_post_accumulate_grad_hook(self._refuse_gradient)
        elif not self.rows.group.is_alone:
            weight.register_post_accumulate_grad_hook(self._take_gradient)

    def _step(self, parts: list[StepPart], seen: list[Bags], lr_of_table: Mapping[int, float]) -> None:
        """Update rows, and count it as a write to the weights: a backward pass over values read before is an error."""
        for table in lr_of_table:
            if self.row_copies[table].has_lost_writes():
                raise ConflictError(
                    f"the rows of {self.space.tables[table].name} in a state dictionary are a copy, and were written to: in "
                    "torch that would have changed the model; give the dictionary to load_state_dict before the next step, or "
                    "write to a copy of it (copy.deepcopy)"
                )
        try:
            super()._step(parts, seen, lr_of_table)
        finally:
            held = [self._weights[table] for table in lr_of_table if table in self._weights]
            torch.autograd.graph.increment_version(held)

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
            summed = torch.arange(len(dense)), dense
            first_row = self.space.table_range(number)[1]
            weight.grad = self.rows.gradient_type(weight, None, first_row, summed, tuple(self._reads[number]))

    def check_gradients(self, gradients: Sequence[tuple[int, Tensor]]) -> None:
        """Check the gradients of weights before `step_rows`, where other runtimes are to update rows in the same step."""
        for table, gradient in gradients if self.rows.group.is_alone else ():
            check_gradient(gradient, self.space.tables[table].name, self.step_number + 1)

    def settle_sums(self) -> None:
        """Wait until the gradients of all steps are checked. Raises TrainingError where those of one were not finite."""
        if self._late_sums is not None:
            self._late_sums.settle()

    def table(self, number: int) -> Tensor:
        """Return a copy of a table's rows (rows, dim), in host memory."""
        self.check_process()
        with self._turn:
            self.settle_sums()
            self.dense_steps.settle(number)
            return as_tensor(self.rows.whole(number, self.store.export_table(number)[0], self.step_number))

    def set_table(self, number: int, rows: Tensor) -> None:
        """Set all rows of a table, in both tiers; their optimizer state stays."""
        self.check_process()
        self.release_ahead()
        self.dense_steps.catch_up(number)
        given = as_array(rows.detach().cpu().to(self.weight_dtype))
        self.store.replace_table(number, self.rows.own(number, given, self.step_number), None)

    def set_rows(self, number: int, row_N: NDArray[np.int64], values: Tensor) -> None:
        """Set some rows of a table, by their numbers in the table; of a row that is given twice the last value counts."""
        self.check_process()
        self.release_ahead()
        last = dict(zip(row_N.tolist(), range(len(row_N)), strict=True))
        given = as_array(values.detach().cpu().to(self.weight_dtype))
        places = np.fromiter(last.values(), np.int64, len(last))
        values_ND = given[places]
        some, own_N = self.rows.own_ids(number, np.fromiter(last.keys(), np.int64, len(last)), values_ND, self.step_number)
        self.dense_steps.catch_up(number, self.store.space.table_range(number)[1] + own_N)
        self.store.replace_rows(number, own_N, values_ND[some])

    def row_state(self, number: int) -> RowState | None:
        """Return the entry of the optimizer whose state the tiers hold; None where no optimizer has it yet."""
        return self._row_states.get(number)

    @property
    def is_shared(self) -> bool:
        """Whether several processes have the rows."""
        return not self.rows.group.is_alone

    def has_begun(self, number: int) -> bool:
        """Whether an optimizer of torch would have a state for a table: Adagrad makes it at once, others in their first step."""
        like = self.rates.rule_of(number).like_torch
        return bool(self.steps_T[number]) or (like is not None and like.state_at_once)

    def new_row_state(self, number: int, weight: Tensor, optimizer: torch.optim.Optimizer) -> RowState:
        """Return the entry of an optimizer, whose state the tiers hold from now on."""
        if optimizer not in self._shown:
            optimizer.register_state_dict_post_hook(with_states_shown)
            self._shown.add(optimizer)
        self._row_states[number] = RowState(self, number, weight, optimizer)
        return self._row_states[number]

    def begin_states(self, numbers: Sequence[int]) -> None:
        """Have rows of tables that made no step have the optimizer state of one with a learning rate and gradients of 0, in which
        all rows make the step that they then catch up on. It is no step of the loop."""
        for number in () if self.updates_in_backward else numbers:
            rule = self.rates.rule_of(number)
            if rule.catches_up and rule.state_names and not self.steps_T[number]:
                self.dense_steps.announce(number, 0.0, ())
                self.steps_T[number] += 1
                self.dense_steps.complete(number)

    def show_states(self) -> None:
        """Have the optimizers that the runtime follows show the states in the tiers, where they have none: they were loaded."""
        for number, weight in () if self.updates_in_backward else self._weights.items():
            optimizer, names = self.rates.of(number).optimizer, self.rates.rule_of(number).state_names
            if optimizer is None or not names or not self.steps_T[number]:
                continue
            if self.row_state(number) is None and not optimizer.state.get(weight):
                optimizer.state[weight] = self.new_row_state(number, weight, optimizer)

    def displace_state(self, number: int) -> None:
        """Let go of the entry of the optimizer whose state the tiers hold: they are about to hold another state. Whoever else
        holds the entry, or what was read of it, goes on to have the state as it is, as in torch."""
        entry = self._row_states.pop(number)
        entry.leave()
        others = weakref.ref(entry)
        del entry
        if (held := others()) is not None:
            held.read()
        self.state_copies[number].settle(int(self.steps_T[number]))

    def clear_state(self, number: int) -> None:
        """Set the optimizer state of a table's rows to that of an optimizer that has made no step."""
        self.check_process()
        self.release_ahead()
        self.dense_steps.settle(number)
        table = self.store.space.tables[number]
        width = self.rates.rule_of(number).state_width(table.dim)
        self.store.replace_table(number, None, np.zeros((table.rows, width), dtype=self.store.host.dtype))
        self.steps_T[number] = 0

    def take_state(self, number: int, parts: Sequence[Tensor], step: int) -> None:
        """Set the optimizer state of a table's rows, from the parts that torch keeps, and its number of steps so far.

        Torch keeps a state of 16 bits for rows of 16 bits, the tiers one of 32: a number that is what theirs was exported as
        stays as exact as it is."""
        self.check_process()
        self.dense_steps.catch_up(number)
        columns = [part.detach().cpu().to(self.dtype) for part in parts]
        if self.rates.rule_of(number).catches_up:
            columns.append(torch.full((len(columns[0]), 1), float(step), dtype=self.dtype))
            self.dense_steps.begin_anew(number)  # it begins anew at this step
        state_RK = self.rows.own(number, torch.cat(columns, dim=1).numpy(), self.step_number)
        placed, rounded = self.state.rows_placed, self.weight_dtype.itemsize == 2
        held_RK = self.store.export_table(number)[1] if placed or rounded else None
        if held_RK is not None and rounded:
            exported_RK = torch.from_numpy(held_RK).to(self.weight_dtype).to(self.dtype).numpy()
            state_RK = np.where(state_RK == exported_RK, held_RK, state_RK)
        if held_RK is None or not placed or not np.array_equal(state_RK, held_RK):  # else hot rows stay as they are
            self.release_ahead()
            self.store.replace_table(number, None, state_RK)
        self.steps_T[number] = step

    def set_first_rows(self, number: int, fill: Callable[[Tensor], object]) -> None:
        """Set a table's rows before the first step: `fill` gets a tensor (R, D) that it sets in place."""
        assert not self.state.rows_placed, "rows are set in place before the first step only"
        with torch.no_grad():
            self.rows.set_first(number, fill)

    def optimizer_state(self, number: int) -> dict[str, Any]:
        """Return copies of the optimizer state of a table's rows as torch keeps it: parts (rows, dim) by name, and the step."""
        self.check_process()
        rule, steps = self.rates.rule_of(number), int(self.steps_T[number])
        names = rule.state_names
        step_kind = "none" if rule.like_torch is None else rule.like_torch.step
        if not names or (step_kind == "none" and not steps):
            return {}
        self.dense_steps.settle(number)
        own_RK = self.store.export_table(number)[1]
        state_RK = torch.from_numpy(self.rows.whole(number, own_RK, self.step_number)).to(self.device)
        parts = state_RK[:, : state_RK.shape[1] - rule.catches_up].chunk(len(names), dim=1)
        found: dict[str, Any] = {name: part.to(self.weight_dtype).contiguous() for name, part in zip(names, parts, strict=True)}
        for part in found.values():
            self.state_copies[number].add(part, steps)
        if step_kind == "none":
            return found
        is_number = step_kind == "number"
        return {"step": steps if is_number else torch.tensor(float(steps), dtype=torch.get_default_dtype()), **found}

    def gradients(self) -> dict[str, RowGradient]:
        """Return the gradients that wait for the optimizer's step, by the names of their tables."""
        names = [table.name for table in self.space.tables]
        return {names[number]: one.grad for number, one in self._weights.items() if isinstance(one.grad, RowGradient)}

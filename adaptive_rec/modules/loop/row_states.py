"""The optimizer state of whole tables of a user's loop: in and out of the tiers, and as an optimizer's ``state`` shows it."""

from __future__ import annotations

import copy
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import register_pytree_node

from adaptive_rec.modules.loop.handed_out import HandedOut
from adaptive_rec.modules.loop.table_weights import TableWeights
from adaptive_rec.modules.loop.tables_in_tiers import TablesInTiers


class RowStates:
    """The optimizer state of tables in tiers."""

    def __init__(self, tables: TablesInTiers, weights: TableWeights) -> None:
        self._tables, self._store, self._weights = tables, tables.store, weights
        self.copies = [HandedOut() for _ in tables.space.tables]
        """Copies of the optimizer state of each table's rows that somebody has read."""
        self._entries: dict[int, RowState] = {}
        self._shown: WeakSet[torch.optim.Optimizer] = WeakSet()
        """Optimizers whose ``state_dict()`` has of the state of tables what torch's would have."""

    # Entries of optimizers -------------------------------------------------------------------------------------------

    def entry(self, number: int) -> RowState | None:
        """Return the entry of the optimizer whose state the tiers hold; None where no optimizer has it yet."""
        return self._entries.get(number)

    def new_entry(self, number: int, weight: Tensor, optimizer: torch.optim.Optimizer) -> RowState:
        """Return the entry of an optimizer, whose state the tiers hold from now on."""
        if optimizer not in self._shown:
            optimizer.register_state_dict_post_hook(_with_states_shown)
            self._shown.add(optimizer)
        self._entries[number] = RowState(self, number, weight, optimizer)
        return self._entries[number]

    def withdraw(self, number: int, weight: Tensor, optimizer: torch.optim.Optimizer) -> None:
        """Take back an optimizer's entry of a table whose first step was not made: torch sees by it whether one was."""
        entry = self._entries.get(number)
        if entry is not None and not self.has_begun(number) and optimizer.state.get(weight) is entry:
            del optimizer.state[weight], self._entries[number]

    def show(self) -> None:
        """Have the optimizers that the runtime follows show the states in the tiers, where they have none: they were loaded."""
        for number, weight in () if self._tables.updates_in_backward else self._weights.held():
            rates = self._tables.rates.of(number)
            if rates.optimizer is None or not rates.rule.state_names or not self._tables.steps_T[number]:
                continue
            if self.entry(number) is None and not rates.optimizer.state.get(weight):
                rates.optimizer.state[weight] = self.new_entry(number, weight, rates.optimizer)

    def displace(self, number: int) -> None:
        """Let go of the entry of the optimizer whose state the tiers hold: they are about to hold another state. Whoever else
        holds the entry, or what was read of it, goes on to have the state as it is, as in torch."""
        entry = self._entries.pop(number)
        entry.leave()
        others = weakref.ref(entry)
        del entry
        if (held := others()) is not None:
            held.read()
        self.copies[number].settle(int(self._tables.steps_T[number]))

    @property
    def is_shared(self) -> bool:
        """Whether several processes have the rows."""
        return not self._tables.rows.group.is_alone

    def has_begun(self, number: int) -> bool:
        """Whether an optimizer of torch would have a state for a table: Adagrad makes it at once, others in their first step."""
        like = self._tables.rates.rule_of(number).like_torch
        return bool(self._tables.steps_T[number]) or (like is not None and like.state_at_once)

    # States ----------------------------------------------------------------------------------------------------------

    def begin(self, numbers: Sequence[int]) -> None:
        """Have rows of tables that made no step have the optimizer state of one with a learning rate and gradients of 0, in which
        all rows make the step that they then catch up on. It is no step of the loop."""
        tables = self._tables
        for number in () if tables.updates_in_backward else numbers:
            rule = tables.rates.rule_of(number)
            if rule.catches_up and rule.state_names and not tables.steps_T[number]:
                tables.dense_steps.announce(number, 0.0, ())
                tables.steps_T[number] += 1
                tables.dense_steps.complete(number)
            elif rule.like_torch is not None and rule.like_torch.state_at_once and not tables.steps_T[number]:
                tables.steps_T[number] += 1  # its sums are as they were

    def clear(self, number: int) -> None:
        """Set the optimizer state of a table's rows to that of an optimizer that has made no step."""
        tables = self._tables
        tables.life.check()
        tables.ahead.drop()
        tables.dense_steps.settle(number)
        spec = self._store.space.tables[number]
        width = tables.rates.rule_of(number).state_width(spec.dim)
        self._store.contents.replace_table(number, None, np.zeros((spec.rows, width), dtype=self._store.cold.types.dtype))
        tables.steps_T[number] = 0

    def take(self, number: int, parts: Sequence[Tensor], step: int) -> None:
        """Set the optimizer state of a table's rows, from the parts that torch keeps, and its number of steps so far.

        Torch keeps a state of 16 bits for rows of 16 bits, the tiers one of 32: a number that is what theirs was exported as
        stays as exact as it is."""
        tables, dtype = self._tables, self._store.dtype
        tables.life.check()
        tables.dense_steps.catch_up(number)
        columns = [part.detach().cpu().to(dtype) for part in parts]
        if tables.rates.rule_of(number).catches_up:
            columns.append(torch.full((len(columns[0]), 1), float(step), dtype=dtype))
            tables.dense_steps.begin_anew(number)  # it begins anew at this step
        state_RK = tables.rows.own(number, torch.cat(columns, dim=1).numpy(), tables.state.step)
        placed, rounded = tables.state.rows_placed, tables.weight_dtype.itemsize == 2
        held_RK = self._store.contents.export(number)[1] if placed or rounded else None
        if held_RK is not None and rounded:
            exported_RK = torch.from_numpy(held_RK).to(tables.weight_dtype).to(dtype).numpy()
            state_RK = np.where(state_RK == exported_RK, held_RK, state_RK)
        if held_RK is None or not placed or not np.array_equal(state_RK, held_RK):  # else hot rows stay as they are
            tables.ahead.drop()
            self._store.contents.replace_table(number, None, state_RK)
        tables.steps_T[number] = step

    def export(self, number: int) -> dict[str, Any]:
        """Return copies of the optimizer state of a table's rows as torch keeps it: parts (rows, dim) by name, and the step."""
        tables = self._tables
        tables.life.check()
        rule, steps = tables.rates.rule_of(number), int(tables.steps_T[number])
        names = rule.state_names
        step_kind = "none" if rule.like_torch is None else rule.like_torch.step
        if not names or (step_kind == "none" and not steps):
            return {}
        tables.dense_steps.settle(number)
        own_RK = self._store.contents.export(number)[1]
        whole_RK = torch.from_numpy(tables.rows.whole(number, own_RK, tables.state.step))
        state_RK = whole_RK.to(self._store.torch_device)
        parts = state_RK[:, : state_RK.shape[1] - rule.catches_up].chunk(len(names), dim=1)
        exported = [part.to(tables.weight_dtype).contiguous() for part in parts]
        for part in exported:
            self.copies[number].add(part, steps)
        found: dict[str, Any] = dict(zip(names, exported, strict=True))
        if step_kind == "none":
            return found
        is_number = step_kind == "number"
        return {"step": steps if is_number else torch.tensor(float(steps), dtype=torch.get_default_dtype()), **found}

    def were_loaded(self) -> None:
        """Know that the tiers have other states, all of the present step."""
        for number in range(len(self._tables.steps_T)):
            self._tables.dense_steps.begin_anew(number)
            if (entry := self.entry(number)) is not None:
                entry.forget()
        self.show()


class RowState(dict[str, Any]):
    """What ``optimizer.state[weight]`` holds for a table in tiers. It is exported from the tiers when somebody reads it, and is
    then the state, as in torch: the next step takes it back, with all changes.

    Copies and pickles are plain dictionaries of what is in the tiers.
    """

    def __new__(cls, *of: Any) -> Any:
        """Return a plain dictionary where a library makes another one of this type from its changed items, as accelerate does."""
        return super().__new__(cls) if len(of) > 1 else dict(*of)

    def __init__(self, states: RowStates, table: int, weight: Tensor, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self._states, self._table = states, table
        self._weight, self._optimizer = weight, weakref.ref(optimizer)
        self.was_read = False

    def exported(self) -> dict[str, Any]:
        """Return the state, without counting as a reader."""
        return dict(super().items()) if self.was_read else self._states.export(self._table)

    def read(self) -> RowState:
        """Export the state from the tiers, once."""
        if not self.was_read:
            found = self.exported()
            self.was_read = True
            super().update(found)
        return self

    def in_dictionary(self) -> dict[str, Any]:
        """Return what an optimizer's ``state_dict()`` has of it: itself, which stays the live state. Before the first step it is
        a copy, as torch has no live state then. Of several processes it is the state as it is now, which all of them export
        together, as one of them may save it later, alone."""
        if not self._states.has_begun(self._table):
            return copy.deepcopy(self.exported())
        return self.exported() if self._states.is_shared else self

    def forget(self) -> None:
        """Drop what was read: the tiers have another state."""
        self.was_read = False
        super().clear()

    def is_shown_by(self, loaded: Mapping[str, Any]) -> bool:
        """Whether a state was loaded from this entry itself, and will change with it: it has the very tensors that were read of
        it, and no step that is a plain number (SparseAdam's), of which each has its own."""
        own = dict(super().items())
        if isinstance(own.pop("step", None), int):
            return False
        return self.was_read and loaded.keys() - {"step"} == own.keys() and all(loaded[name] is own[name] for name in own)

    def is_of(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether it is an entry of this optimizer."""
        return self._optimizer() is optimizer

    def leave(self) -> torch.optim.Optimizer | None:
        """Keep the state in the optimizer, if it still has it: the tiers are about to hold another one. Returns the optimizer."""
        optimizer = self._optimizer()
        if optimizer is None or optimizer.state.get(self._weight) is not self:
            return None
        optimizer.state[self._weight] = dict(self.read())
        return optimizer

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return copy.deepcopy(self.exported(), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return OrderedDict, (), None, None, iter(self.exported().items())

    def __repr__(self) -> str:
        return f"RowState({dict(super().items())})" if self.was_read else "RowState(in tiers)"


def _with_states_shown(_: torch.optim.Optimizer, found: dict[str, Any]) -> dict[str, Any]:
    """Return an optimizer's state dictionary with what it is to have of the state of tables."""
    state = {key: each.in_dictionary() if isinstance(each, RowState) else each for key, each in found["state"].items()}
    return {**found, "state": state}


def _reading(name: str) -> Callable[..., Any]:
    own = getattr(dict, name)

    def method(self: RowState, *args: Any, **kwargs: Any) -> Any:
        return own(self.read(), *args, **kwargs)

    method.__name__ = name
    method.__doc__ = own.__doc__
    return method


READERS: Iterable[str] = (
    "__getitem__", "__setitem__", "__delitem__", "__iter__", "__len__", "__contains__", "__eq__", "__or__", "__ror__", "__ior__",
    "get", "keys", "values", "items", "pop", "popitem", "setdefault", "update", "clear", "copy",
)  # fmt: skip
for _name in READERS:
    setattr(RowState, _name, _reading(_name))


def _flatten(state: RowState) -> tuple[list[Any], list[str]]:
    return list(state.values()), list(state.keys())


def _unflatten(values: Iterable[Any], names: list[str]) -> dict[str, Any]:
    return dict(zip(names, values, strict=True))


def _sent(entry: RowState) -> Any:
    """Give another process what was read: it finds the memory of these tensors later, so the entry holds them until then."""
    return dict, (dict(entry.read()),)


register_pytree_node(RowState, _flatten, _unflatten, serialized_type_name="adaptive_rec.RowState")
ForkingPickler.register(RowState, _sent)

"""Optimizer state of a table's rows, as an optimizer's ``state`` shows it."""

from __future__ import annotations

import copy
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import register_pytree_node


class KeepsState(Protocol):
    """The optimizer state of rows in tiers."""

    def export(self, number: int) -> dict[str, Any]: ...

    def has_begun(self, number: int) -> bool: ...

    @property
    def is_shared(self) -> bool: ...


class RowState(dict[str, Any]):
    """What ``optimizer.state[weight]`` holds for a table in tiers. It is exported from the tiers when somebody reads it, and is
    then the state, as in torch: the next step takes it back, with all changes.

    Copies and pickles are plain dictionaries of what is in the tiers.
    """

    def __init__(self, states: KeepsState, table: int, weight: Tensor, optimizer: torch.optim.Optimizer) -> None:
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


def with_states_shown(_: torch.optim.Optimizer, found: dict[str, Any]) -> dict[str, Any]:
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


register_pytree_node(RowState, _flatten, _unflatten, serialized_type_name="adaptive_rec.RowState")
def _sent(entry: RowState) -> Any:
    """Give another process what was read: it finds the memory of these tensors later, so the entry holds them until then."""
    return dict, (dict(entry.read()),)


ForkingPickler.register(RowState, _sent)

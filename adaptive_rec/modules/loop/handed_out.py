"""Copies of a table's rows, or of their optimizer state, where torch hands out the tensor itself."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

SETTLED = -1
"""Version of copies that another version came after, and then other values altogether."""


@dataclass
class _Copy:
    tensor: weakref.ref[Tensor]
    memory: StorageWeakRef
    """It keeps the number of the memory from being used again, and not the memory."""
    version: int
    """Version of the table at which it was made, or was loaded."""
    writes: int
    """torch's count of writes to it, at that time."""


class HandedOut:
    """Copies that dictionaries of state hold. In torch these dictionaries hold the parameter, or its state, itself: it is changed
    by later steps, and a write to it changes the model. A copy shows neither, so both are found out here: a copy that is loaded
    although the table has changed since, and one that was written to and not loaded."""

    def __init__(self) -> None:
        self._copies: dict[int, _Copy] = {}

    def add(self, copy: Tensor, version: int) -> None:
        """Know a copy that is handed out, of a table's present version."""
        memory = StorageWeakRef(copy.untyped_storage())
        kept = {number: one for number, one in self._copies.items() if not one.memory.expired()}
        self._copies = kept | {memory.cdata: _Copy(weakref.ref(copy), memory, version, _writes(copy))}

    def is_outdated(self, given: Tensor, version: int) -> bool:
        """Whether a tensor is a copy, with the values that it had, of another version than the present one. A tensor of the same
        memory with a count of writes of its own, of before an `unwrap`, has counted fewer."""
        found = self._find(given)
        return found is not None and found.version != version and _writes(given) <= found.writes

    def current_among(self, values: Iterable[object], version: int) -> Tensor | None:
        """Return the tensor among some values that is a copy of the present version, if there is one."""
        for value in values:
            found = self._find(value) if isinstance(value, Tensor) else None
            if found is not None and (found.version, found.writes) == (version, _writes(value)):  # type: ignore[arg-type]
                return found.tensor()
        return None

    def loaded(self, given: Tensor, version: int) -> None:
        """Know that the table has the values of a tensor, which may be a copy."""
        if (found := self._find(given)) is not None:
            found.version, found.writes = version, _writes(given)

    def settle(self, version: int) -> None:
        """Know that the table gets values in another memory: copies of its present version are then no longer those of a
        live tensor."""
        self._copies = {number: one for number, one in self._copies.items() if one.version != version}
        for one in self._copies.values():
            one.version = SETTLED

    def shared(self, values: Tensor) -> Tensor:
        """Return an ordinary tensor of these values that has one memory with all that is still held, as dictionaries of torch
        have with the parameter: memory that a parameter had before, if any is left, else that of the values."""
        left = [(one.tensor(), one) for one in self._copies.values() if one.version != SETTLED]
        self._copies = {}
        former = (_in_memory(one, values) for copy, one in left if copy is None)  # dictionaries hold other tensors of it
        values = next((there for there in former if there is not None), values)
        like = values.shape, values.dtype, values.device
        for copy, _ in left:
            if copy is not None and not copy.is_inference() and (copy.shape, copy.dtype, copy.device) == like:
                _make_alias(copy, values)
        return values

    def has_lost_writes(self, but_of: int | None = None) -> bool:
        """Whether a copy, of any version or of any but one, was written to and not loaded since."""
        alive = [
            (copy, one)
            for one in self._copies.values()
            if one.version not in (SETTLED, but_of) and (copy := one.tensor()) is not None
        ]
        return any(_writes(copy) != one.writes for copy, one in alive)

    def _find(self, given: Tensor) -> _Copy | None:
        if not self._copies or given.layout != torch.strided:
            return None
        return self._copies.get(given.untyped_storage()._cdata)


def _in_memory(former: _Copy, values: Tensor) -> Tensor | None:
    """Return values in memory that others may hold; None where nobody holds it, or it is another tensor's too."""
    storage = torch.UntypedStorage._new_with_weak_ptr(former.memory.cdata)
    if storage is None or (storage.nbytes(), storage.device) != (values.nbytes, values.device):
        return None
    there = torch.empty(0, dtype=values.dtype, device=values.device).set_(storage, 0, values.shape)  # type: ignore[call-overload]
    if not there.is_inference():
        torch.autograd.graph.increment_version([there] * former.writes)  # no fewer than those who hold it
    return there.copy_(values)


def _make_alias(copy: Tensor, values: Tensor) -> None:
    """Make a tensor one of other memory, for all who hold it, with its count of writes."""
    try:
        torch.utils.swap_tensors(copy, values.detach())
    except RuntimeError:  # views or weak references of it are held: it has a count of its own
        with torch.no_grad():
            copy.set_(values)  # type: ignore[call-overload]


def _writes(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version

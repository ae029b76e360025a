"""Functions of torch that read or write single rows of a weight in tiers, by the function that they stand in for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.errors import ConfigError
from adaptive_rec.modules.inputs import INTEGERS, as_ids


class RowsInTiers(Protocol):
    """Methods of a weight (R, D) that the functions below call."""

    requires_grad: bool

    def __len__(self) -> int: ...

    @property
    def name(self) -> str:
        """The table's name."""
        ...

    def embedding(self, ids: Tensor, padding_idx: int | None = None) -> Tensor:
        """Return the rows (..., D) of ids, with their gradient."""
        ...

    def embedding_bag(
        self,
        input: Tensor,
        offsets: Tensor | None,
        mode: str,
        weights: Tensor | None,
        include_last_offset: bool,
        padding_idx: int | None,
    ) -> Tensor:
        """Return pooled vectors (bags, D), with their gradient."""
        ...

    def whole(self) -> Tensor:
        """Return a copy of all rows."""
        ...

    def rows(self, row_N: NDArray[np.int64]) -> Tensor:
        """Return copies of some rows (N, D)."""
        ...

    def set(self, values: Tensor) -> None:
        """Set all rows."""
        ...

    def set_rows(self, row_N: NDArray[np.int64], values: Tensor) -> None:
        """Set some rows."""
        ...


class RowsCopy(Tensor):
    """A copy of a weight's rows, or of parts of them, where an ordinary weight would give a view: a change of it in place also
    changes the weight."""

    weight: RowsInTiers
    row_N: NDArray[np.int64]
    whole: Tensor
    """The rows themselves."""
    part: tuple[Any, ...]
    """Index of what was copied in these rows."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            found = func(*args, **(kwargs or {}))
            changed = args[0] if args and isinstance(args[0], RowsCopy) else None
            if changed is not None and _is_in_place(getattr(func, "__name__", "")):
                changed.whole[changed.part] = changed.as_subclass(Tensor)
                changed.weight.set_rows(changed.row_N, changed.whole.reshape(len(changed.row_N), -1))
        return found.as_subclass(Tensor) if isinstance(found, RowsCopy) and found is not changed else found


def _is_in_place(name: str) -> bool:
    """Whether a function of this name changes its first argument."""
    if name.startswith("__"):
        return name == "__setitem__" or (name.startswith("__i") and name not in ("__index__", "__int__", "__invert__"))
    return name.endswith("_")


# Lookups ---------------------------------------------------------------------------------------------------------------


def embedding(
    input: Tensor, weight: RowsInTiers, padding_idx: int | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Tensor:  # fmt: skip
    """`torch.nn.functional.embedding`."""
    _check_options(weight, max_norm, scale_grad_by_freq)
    return weight.embedding(input, _positive(weight, padding_idx))


def embedding_bag(
    input: Tensor, weight: RowsInTiers, offsets: Tensor | None = None, max_norm: float | None = None,
    norm_type: float = 2, scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
    per_sample_weights: Tensor | None = None, include_last_offset: bool = False, padding_idx: int | None = None,
) -> Tensor:  # fmt: skip
    """`torch.nn.functional.embedding_bag`."""
    if mode not in ("sum", "mean"):
        raise ConfigError(f"mode must be sum or mean for table {weight.name}, got {mode!r}")
    _check_options(weight, max_norm, scale_grad_by_freq)
    padding_idx = _positive(weight, padding_idx)
    return weight.embedding_bag(input, offsets, mode, per_sample_weights, include_last_offset, padding_idx)


def _check_options(weight: RowsInTiers, max_norm: float | None, scale_grad_by_freq: bool) -> None:
    if max_norm is not None:
        raise ConfigError(f"max_norm must be None for table {weight.name}, as rows are not renormalised, got {max_norm}")
    if scale_grad_by_freq:
        raise ConfigError(f"scale_grad_by_freq must be False for table {weight.name}, as gradients are not scaled")


def _positive(weight: RowsInTiers, padding_idx: int | None) -> int | None:
    """Return the row of padding, counted from the first one."""
    if padding_idx is not None and not -len(weight) <= padding_idx < len(weight):
        raise ConfigError(f"padding_idx must lie within the {len(weight)} rows of {weight.name}, got {padding_idx}")
    return None if padding_idx is None else padding_idx % len(weight)


def _index_select(weight: RowsInTiers, dim: int | str, index: Tensor) -> Any:
    return weight.embedding(index) if dim in (0, -2) and index.dim() == 1 else NotImplemented


# Indexing ------------------------------------------------------------------------------------------------------------


def _rows_of_index(weight: RowsInTiers, index: Any) -> tuple[Tensor, tuple[Any, ...]] | None:
    """Return the rows that an index selects, and what it selects of them; None where it is not by rows."""
    first, rest = (index[0], index[1:]) if isinstance(index, tuple) and index else (index, ())
    if any(isinstance(one, Tensor) for one in rest):
        return None
    if isinstance(first, slice):
        picked = range(len(weight))[first]
        return None if len(picked) == len(weight) else (torch.tensor(picked, dtype=torch.int64), rest)
    if isinstance(first, (int, np.integer)) and not isinstance(first, bool):
        if not -len(weight) <= first < len(weight):
            raise IndexError(f"index {first} is out of bounds for dimension 0 with size {len(weight)}")
        return torch.tensor(int(first) % len(weight)), rest
    if not isinstance(first, (Tensor, list, np.ndarray)):
        return None
    ids = torch.as_tensor(first)
    if ids.dtype in (torch.bool, torch.uint8):
        return (ids.nonzero().squeeze(1), rest) if ids.dim() == 1 else None
    return (torch.where(ids < 0, ids + len(weight), ids), rest) if ids.dtype in INTEGERS else None


def _of_rows(ids: Tensor, rest: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the index of parts of rows that were selected by `ids`."""
    return (*(slice(None),) * ids.dim(), *rest)


def _get(weight: RowsInTiers, index: Any) -> Any:
    found = _rows_of_index(weight, index)
    if found is None:
        return NotImplemented
    ids, rest = found
    if weight.requires_grad and torch.is_grad_enabled():
        vectors = weight.embedding(ids)
        return vectors[_of_rows(ids, rest)] if rest else vectors
    row_N = as_ids(ids.reshape(-1))
    whole = weight.rows(row_N).unflatten(0, ids.shape) if ids.dim() else weight.rows(row_N)[0]
    part = _of_rows(ids, rest)
    values = whole[part].clone()
    first = index[0] if isinstance(index, tuple) else index
    if not isinstance(first, (int, np.integer, slice)):
        return values  # a copy in torch too
    copy = values.as_subclass(RowsCopy)
    copy.weight, copy.row_N, copy.whole, copy.part = weight, row_N, whole, part
    return copy


def _put(weight: RowsInTiers, index: Any, value: Any) -> None:
    if weight.requires_grad and torch.is_grad_enabled():
        raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")
    found = _rows_of_index(weight, index)
    if found is None:
        whole = weight.whole()
        whole[index] = value
        weight.set(whole)
        return
    ids, rest = found
    row_N = as_ids(ids.reshape(-1))
    flat = weight.rows(row_N)
    values = flat.unflatten(0, ids.shape) if ids.dim() else flat[0]
    values[_of_rows(ids, rest)] = value
    weight.set_rows(row_N, values.reshape(len(row_N), -1))


# Others --------------------------------------------------------------------------------------------------------------


def _set_data(weight: RowsInTiers, value: Tensor) -> None:
    if value is not weight:
        weight.set(value)


def _with_memory(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that reads the memory of its tensor, on a copy of the table."""

    def call(weight: RowsInTiers, *args: Any, **kwargs: Any) -> Any:
        return func(weight.whole().requires_grad_(weight.requires_grad), *args, **kwargs)

    return call


STAND_INS: dict[Any, tuple[int, Callable[..., Any]]] = {
    torch.nn.functional.embedding: (1, embedding),
    torch.nn.functional.embedding_bag: (1, embedding_bag),
    torch.index_select: (0, _index_select),
    Tensor.index_select: (0, _index_select),
    Tensor.__getitem__: (0, _get),
    Tensor.__setitem__: (0, _put),
    Tensor.data.__set__: (0, _set_data),  # type: ignore[attr-defined]
    **{func: (0, _with_memory(func)) for func in (Tensor.numpy, Tensor.tolist, Tensor.__array__)},
}
"""Functions of torch, each with the place of the weight among its arguments and what is called instead. That may return
`NotImplemented`: torch's own function then reads the whole table."""

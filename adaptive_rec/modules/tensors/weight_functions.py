"""Overrides of torch's functions for tensors in tiers: lookups, indexing by rows, and what asks for memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adaptive_rec.errors import ConfigError
from adaptive_rec.modules.loop.inputs import INTEGERS, as_ids
from adaptive_rec.modules.loop.operations import flat
from adaptive_rec.modules.tensors.tiered_tensor import STAND_INS, Override, no_memory
from adaptive_rec.modules.tensors.weight import TieredWeight


class LookedUpView(Tensor):
    """Rows with their gradient, where an ordinary weight would give a view of it. A change in place is an error: it would not
    reach the weight."""

    @classmethod
    @torch.compiler.disable
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = [one for one in flat([*args, *kwargs.values()]) if isinstance(one, LookedUpView)]
        with torch._C.DisableTorchFunctionSubclass():
            before = [one._version for one in given]
            found = func(*args, **kwargs)
            if before != [one._version for one in given]:
                raise RuntimeError(
                    "a view of a leaf Variable that requires grad is being used in an in-place operation: rows that were read "
                    "with their gradient must not be changed; read them under torch.no_grad() to change the weight"
                )
            if func == Tensor._base.__get__:  # type: ignore[union-attr]
                return found
            memory = {one.untyped_storage()._cdata for one in given}

            def kept(value: Any) -> Any:
                if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
                    return type(value)(map(kept, value))
                if isinstance(value, Tensor) and value.layout == torch.strided and value.untyped_storage()._cdata in memory:
                    return value if isinstance(value, LookedUpView) else value.as_subclass(LookedUpView)
                return value.as_subclass(Tensor) if isinstance(value, LookedUpView) else value

            return kept(found)


# Lookups ---------------------------------------------------------------------------------------------------------------


def embedding(
    input: Tensor, weight: TieredWeight, padding_idx: int | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Tensor:  # fmt: skip
    """`torch.nn.functional.embedding`."""
    if torch._C._functorch.is_batchedtensor(input):
        return NotImplemented  # under torch.vmap the whole table is read
    _check_options(weight, "sum", max_norm, scale_grad_by_freq)
    return weight.embedding(input, _positive(weight, padding_idx))


def embedding_bag(
    input: Tensor, weight: TieredWeight, offsets: Tensor | None = None, max_norm: float | None = None,
    norm_type: float = 2, scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
    per_sample_weights: Tensor | None = None, include_last_offset: bool = False, padding_idx: int | None = None,
) -> Tensor:  # fmt: skip
    """`torch.nn.functional.embedding_bag`."""
    if torch._C._functorch.is_batchedtensor(input):
        return NotImplemented
    _check_options(weight, mode, max_norm, scale_grad_by_freq)
    padding_idx = _positive(weight, padding_idx)
    return weight.embedding_bag(input, offsets, mode, per_sample_weights, include_last_offset, padding_idx)


def _check_options(weight: TieredWeight, mode: str, max_norm: float | None, scale_grad_by_freq: bool) -> None:
    if why_unsupported(mode, max_norm, scale_grad_by_freq):
        raise ConfigError(why_unsupported(mode, max_norm, scale_grad_by_freq, f" for table {weight.name}"))


def why_unsupported(mode: str, max_norm: float | None, scale_grad_by_freq: bool, where: str = "") -> str:
    """Return why a lookup with these options is not supported, or nothing. `where`: of which table it is."""
    if mode not in ("sum", "mean"):
        return f"mode must be sum or mean{where}, got {mode!r}"
    if max_norm is not None:
        return f"max_norm must be None{where}, as rows are not renormalised, got {max_norm}"
    return f"scale_grad_by_freq must be False{where}, as gradients are not scaled, got True" if scale_grad_by_freq else ""


def _positive(weight: TieredWeight, padding_idx: int | None) -> int | None:
    """Return the row of padding, counted from the first one."""
    if padding_idx is not None and not -len(weight) <= padding_idx < len(weight):
        raise ConfigError(f"padding_idx must lie within the {len(weight)} rows of {weight.name}, got {padding_idx}")
    return None if padding_idx is None else padding_idx % len(weight)


def _index_select(input: TieredWeight, dim: int | str, index: Tensor, *, out: Tensor | None = None) -> Any:
    return input.embedding(index) if dim in (0, -2) and index.dim() == 1 and out is None else NotImplemented


# Indexing ------------------------------------------------------------------------------------------------------------


def _rows_of_index(weight: TieredWeight, index: Any) -> tuple[Tensor, tuple[Any, ...]] | None:
    """Return the rows that an index selects, and what it selects of them; None where it is not by rows."""
    first, rest = (index[0], index[1:]) if isinstance(index, tuple) and index else (index, ())
    if any(isinstance(one, (bool, Tensor, list, tuple, range, np.ndarray)) for one in rest):
        return None
    if isinstance(first, slice):
        picked = range(len(weight))[first]
        return None if len(picked) == len(weight) else (torch.tensor(picked, dtype=torch.int64), rest)
    if isinstance(first, (int, np.integer)) and not isinstance(first, bool):
        if not -len(weight) <= first < len(weight):
            raise IndexError(f"index {first} is out of bounds for dimension 0 with size {len(weight)}")
        return torch.tensor(int(first) % len(weight)), rest
    if isinstance(first, list) and not all(isinstance(one, (int, np.integer)) for one in first):
        return None  # torch takes a list of lists for a tuple
    if not isinstance(first, (Tensor, list, np.ndarray)):
        return None
    ids = torch.as_tensor(first)
    if ids.dtype in (torch.bool, torch.uint8):
        if ids.dim() == 1 and len(ids) != len(weight):
            raise IndexError(
                f"The shape of the mask {list(ids.shape)} at index 0 does not match the {len(weight)} rows of table {weight.name}"
            )
        return (ids.nonzero().squeeze(1), rest) if ids.dim() == 1 else None
    return (torch.where(ids < 0, ids + len(weight), ids), rest) if ids.dtype in INTEGERS else None


def _of_rows(ids: Tensor, rest: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the index of parts of rows that were selected by `ids`."""
    return (*(slice(None),) * ids.dim(), *rest)


def _is_view(index: Any) -> bool:
    """Whether torch gives a view for an index by rows."""
    first = index[0] if isinstance(index, tuple) else index
    return isinstance(first, (int, np.integer, slice)) or (isinstance(first, Tensor) and not first.dim())


def _get(weight: TieredWeight, index: Any) -> Any:
    found = _rows_of_index(weight, index)
    if found is None:
        return NotImplemented
    ids, rest = found
    if weight.requires_grad and torch.is_grad_enabled():
        vectors = weight.embedding(ids)
        vectors = vectors[_of_rows(ids, rest)] if rest else vectors
        return vectors.as_subclass(LookedUpView) if _is_view(index) else vectors
    if _is_view(index):
        return NotImplemented
    row_N = as_ids(ids.reshape(-1))
    return weight.rows(row_N).unflatten(0, ids.shape)[_of_rows(ids, rest)]


def _put(weight: TieredWeight, index: Any, value: Any) -> None:
    if weight.requires_grad and torch.is_grad_enabled():
        raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")
    torch.autograd.graph.increment_version(weight)
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
    weight.set_rows(row_N, values.reshape(flat.shape))


# Others --------------------------------------------------------------------------------------------------------------


def _set_data(given: Any, value: Tensor) -> None:
    if value is given:
        return
    if not hasattr(given, "replace"):
        raise no_memory(given, "an assignment to .data of a view")
    if value.shape != given.shape or value.dtype != given.dtype:
        raise ConfigError(
            f"data of the weight of table {given.name} must keep its shape and type, {tuple(given.shape)} of {given.dtype}, "
            f"as its rows are in two tiers, got {tuple(value.shape)} of {value.dtype}"
        )
    given.replace(value)


def _refused(func: Any) -> Callable[..., Any]:
    def call(given: Any, *args: Any, **kwargs: Any) -> Any:
        raise no_memory(given, getattr(func, "__name__", str(func)))

    return call


def _as_array(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that gives the values as a read-only array, where torch's would be the weight's memory."""

    def call(given: Any, *args: Any, **kwargs: Any) -> Any:
        array = func(given.whole().requires_grad_(given.requires_grad), *args, **kwargs)
        if not kwargs.get("copy"):
            array.flags.writeable = False
        return array

    return call


STAND_INS.update({
    torch.nn.functional.embedding: Override(embedding, 1, of_rows=True),
    torch.nn.functional.embedding_bag: Override(embedding_bag, 1, of_rows=True),
    torch.index_select: Override(_index_select, of_rows=True),
    Tensor.index_select: Override(_index_select, of_rows=True),
    Tensor.__getitem__: Override(_get, of_rows=True),
    Tensor.__setitem__: Override(_put, of_rows=True),
    Tensor.data.__set__: Override(_set_data),  # type: ignore[attr-defined]
    Tensor.tolist: Override(lambda given: given.whole().tolist()),
    **{func: Override(_as_array(func)) for func in (Tensor.numpy, Tensor.__array__)},
    **{func: Override(_refused(func)) for func in (Tensor.data_ptr, Tensor.share_memory_, Tensor.__dlpack__)},
})

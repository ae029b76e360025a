"""The weight of a table in two tiers, as a parameter of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adaptive_rec.errors import ConfigError
from adaptive_rec.modules.bags import Bags, CallKey, PoolTables
from adaptive_rec.modules.embedding_runtime import EmbeddingRuntime
from adaptive_rec.modules.inputs import INTEGERS, Jagged, as_ids, bags_of
from adaptive_rec.modules.pooling import weighted_sums
from adaptive_rec.modules.row_gradient import RowGradient

aten = torch.ops.aten


class TieredWeight(Tensor):
    """The weight (R, D) of a table whose rows lie in the tiers of a runtime. It is an `nn.Parameter` without memory of its own.

    `torch.nn.functional.embedding` and ``embedding_bag``, and indexing by rows, read the rows they need; the gradient that they
    leave in ``grad`` has these rows only (`RowGradient`). Any other operation reads the whole table, with a dense gradient. What
    changes the weight in place (``nn.init``, ``copy_``, an assignment to rows) changes the rows in their tiers.

    Copies (``copy.deepcopy``, ``torch.save``) are ordinary parameters.
    """

    runtime: EmbeddingRuntime
    table: int

    @staticmethod
    def __new__(cls, runtime: EmbeddingRuntime, table: int, requires_grad: bool = True) -> TieredWeight:
        spec = runtime.store.space.tables[table]
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, (spec.rows, spec.dim), dtype=runtime.dtype, device=runtime.device, requires_grad=requires_grad
        )
        made.runtime, made.table, made._is_param = runtime, table, requires_grad
        return made  # type: ignore[no-any-return]

    @property
    def name(self) -> str:  # type: ignore[override]
        """The table's name in the runtime."""
        return self.runtime.store.space.tables[self.table].name

    # Lookups ---------------------------------------------------------------------------------------------------------

    def embedding(self, ids: Tensor, padding_idx: int | None = None) -> Tensor:
        """Return the rows (..., D) of ids of any shape. Rows of `padding_idx` get no gradient."""
        vectors = self.runtime.pooled(
            lambda: self.key(None, padding_idx, ids), lambda: [self.single_bags(ids, padding_idx)], self
        )[0]
        if padding_idx is not None and (padded := ids.reshape(-1) == padding_idx % len(self)).any():
            row_1D = self.rows(np.array([padding_idx % len(self)]))
            vectors = torch.where(padded.to(vectors.device).unsqueeze(1), row_1D, vectors)
        return vectors.view(*ids.shape, self.shape[1])

    def embedding_bag(
        self,
        input: Tensor,
        offsets: Tensor | None,
        mode: str,
        weights: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> Tensor:
        """Return pooled vectors (bags, D), with the arguments of `torch.nn.functional.embedding_bag`."""
        if weights is None:
            how = mode, include_last_offset, padding_idx
            return self.runtime.pooled(
                lambda: self.key(how, padding_idx, input, offsets), lambda: [self.bags(input, offsets, *how)], self
            )[0]
        if mode != "sum":
            raise NotImplementedError(f"per_sample_weights must come with mode sum, got mode {mode}")
        found = _jagged(input, offsets, weights, include_last_offset, padding_idx)
        each = np.arange(len(found.ids_N) + 1, dtype=np.int64)
        single = replace(self._tables("single").bags(found.ids_N, each, self.dtype), samples=len(found.offsets) - 1)
        rows_ND = self.runtime.pooled(None, lambda: [single], self)[0]
        return weighted_sums(rows_ND, found.weights_N, torch.from_numpy(found.offsets))

    def key(self, how: Any, padding_idx: int | None, *tensors: Tensor | None) -> CallKey:
        """Return the identity of a lookup, by which it is found if it was made ahead."""
        return CallKey.of((self.table, how, padding_idx), *tensors)

    def single_bags(self, ids: Tensor, padding_idx: int | None = None) -> Bags:
        """Return a bag of one row for each id; bags of `padding_idx` are empty."""
        if ids.dtype not in INTEGERS:
            raise ValueError(f"input must be of torch.int32 or torch.int64, got {ids.dtype}")
        samples = len(ids) if ids.dim() else 1
        ids_N = as_ids(ids.reshape(-1))
        found = Jagged(ids_N, np.arange(len(ids_N) + 1, dtype=np.int64))
        if padding_idx is not None:
            found = found.without(padding_idx % len(self))
        return replace(self._tables("single").bags(found.ids_N, found.offsets, self.dtype), samples=samples)

    def bags(
        self, input: Tensor, offsets: Tensor | None, mode: str, include_last_offset: bool, padding_idx: int | None
    ) -> Bags:
        """Return the bags of a lookup."""
        found = _jagged(input, offsets, None, include_last_offset, padding_idx)
        return self._tables(mode).bags(found.ids_N, found.offsets, self.dtype)

    def _tables(self, mode: str) -> PoolTables:
        known: dict[str, PoolTables] = self.__dict__.setdefault("_known", {})
        if mode not in known:
            known[mode] = PoolTables.of(self.runtime.store.space, [self.table], [mode == "mean"])
        return known[mode]

    # Rows in and out -------------------------------------------------------------------------------------------------

    def whole(self) -> Tensor:
        """Return a copy of the table (R, D)."""
        return self.runtime.table(self.table).to(self.device)

    def rows(self, ids: np.ndarray[Any, Any]) -> Tensor:
        """Return copies of some rows (N, D), without a gradient."""
        with torch.no_grad():
            ids_N = torch.from_numpy(ids)
            return self.runtime.pooled(None, lambda: [self.single_bags(ids_N)], self)[0].clone()

    def set(self, values: Tensor) -> None:
        """Set all rows."""
        self.runtime.set_table(self.table, values)

    # As a parameter --------------------------------------------------------------------------------------------------

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        handler = _HANDLERS.get(func)
        if handler is not None:
            found = handler(*args, **kwargs)
            if found is not NotImplemented:
                return found
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (aten.detach.default, aten.alias.default):
            return TieredWeight(args[0].runtime, args[0].table, requires_grad=False)
        if func is aten.full_like.default:  # Adagrad's first sums: no memory of a table's size for one value
            return torch.full((), args[1], dtype=args[0].dtype, device=args[0].device).expand(args[0].shape)
        if func in _SHAPE_ONLY:
            stand_in = torch.empty(1, dtype=args[0].dtype, device=args[0].device).expand(args[0].shape)
            return func(stand_in, *args[1:], **kwargs)
        if func is aten.copy_.default and isinstance(args[0], TieredWeight):
            source = _plain(args[1])
            args[0].set(source.expand(args[0].shape))
            return args[0]
        read = [_plain(value) for value in args]
        result = func(*read, **{name: _plain(value) for name, value in kwargs.items()})
        if not func._schema.is_mutable:
            return result
        for place, (argument, value) in enumerate(zip(func._schema.arguments, args, strict=False)):
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, TieredWeight):
                value.set(read[place])
                result = value if result is read[place] else result
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            memo[id(self)] = self.plain()
        return memo[id(self)]  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.plain().__reduce_ex__(protocol)

    def plain(self) -> Tensor:
        """Return a copy as an ordinary parameter, or an ordinary tensor if it is not a parameter itself."""
        return nn.Parameter(self.whole(), self.requires_grad) if self._is_param else self.whole()

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"TieredWeight({self.name}: {len(self):,} x {self.shape[1]}, {self.dtype}, {self.device})"


def _jagged(
    input: Tensor, offsets: Tensor | None, weights: Tensor | None, include_last_offset: bool, padding_idx: int | None
) -> Jagged:
    found = bags_of(input, offsets, weights, include_last_offset)
    return found if padding_idx is None else found.without(padding_idx)


def _plain(value: Any) -> Any:
    """Return an argument with its weights read."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    if isinstance(value, RowGradient):
        return value.dense()
    return value.whole() if isinstance(value, TieredWeight) else value


class RowsCopy(Tensor):
    """Copies of some rows of a weight. A change of it in place also changes the weight, as with a view of an ordinary one."""

    weight: TieredWeight
    row_N: np.ndarray[Any, Any]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            found = func(*args, **(kwargs or {}))
            changed = args[0] if args and isinstance(args[0], RowsCopy) else None
            name = getattr(func, "__name__", "")
            if changed is not None and (name == "__setitem__" or (name.endswith("_") and not name.startswith("__")) or
                                        (name.startswith("__i") and name not in ("__index__", "__int__", "__invert__"))):
                changed.weight.runtime.set_rows(
                    changed.weight.table, changed.row_N, changed.as_subclass(Tensor).reshape(len(changed.row_N), -1)
                )
        return found if found is changed else _without_subclass(found)


def _without_subclass(value: Any) -> Any:
    return value.as_subclass(Tensor) if isinstance(value, RowsCopy) else value


# Functions of torch that read single rows ----------------------------------------------------------------------------


def _embedding(
    input: Tensor, weight: Any, padding_idx: int | None = None, max_norm: Any = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Any:  # fmt: skip
    if not isinstance(weight, TieredWeight):
        return NotImplemented
    _check_options(weight, max_norm, scale_grad_by_freq)
    if padding_idx is not None and not -len(weight) <= padding_idx < len(weight):
        raise AssertionError("Padding_idx must be within num_embeddings")
    return weight.embedding(input, padding_idx)


def _embedding_bag(
    input: Tensor, weight: Any, offsets: Tensor | None = None, max_norm: Any = None, norm_type: float = 2,
    scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
    per_sample_weights: Tensor | None = None, include_last_offset: bool = False, padding_idx: int | None = None,
) -> Any:  # fmt: skip
    if not isinstance(weight, TieredWeight):
        return NotImplemented
    if mode not in ("sum", "mean"):
        raise ConfigError(f"mode must be sum or mean for table {weight.name}, got {mode!r}")
    _check_options(weight, max_norm, scale_grad_by_freq)
    return weight.embedding_bag(input, offsets, mode, per_sample_weights, include_last_offset, padding_idx)


def _check_options(weight: TieredWeight, max_norm: Any, scale_grad_by_freq: bool) -> None:
    if max_norm is not None:
        raise ConfigError(f"max_norm must be None for table {weight.name}, as rows are not renormalised, got {max_norm}")
    if scale_grad_by_freq:
        raise ConfigError(f"scale_grad_by_freq must be False for table {weight.name}, as gradients are not scaled")


def _index_select(weight: Any, dim: Any, index: Any) -> Any:
    is_lookup = isinstance(weight, TieredWeight) and dim in (0, -2) and index.dim() == 1
    return weight.embedding(index) if is_lookup else NotImplemented


def _rows_indexed(weight: TieredWeight, index: Any) -> tuple[Tensor, Any] | None:
    """Return the rows that an index selects, and what it selects of them; None where it is not by rows."""
    first, rest = (index[0], index[1:]) if isinstance(index, tuple) and index else (index, ())
    if isinstance(first, (bool, type(None), type(...))) or any(isinstance(one, Tensor) for one in rest):
        return None
    if isinstance(first, slice):
        picked = range(len(weight))[first]
        if len(picked) == len(weight):
            return None
        return torch.arange(picked.start, picked.stop, picked.step) if picked else torch.empty(0, dtype=torch.int64), rest
    if isinstance(first, (int, np.integer)):
        if not -len(weight) <= first < len(weight):
            raise IndexError(f"index {first} is out of bounds for dimension 0 with size {len(weight)}")
        return torch.tensor(int(first)), rest
    found = first if isinstance(first, Tensor) else torch.as_tensor(first)
    if found.dtype in (torch.bool, torch.uint8):
        return (found.nonzero().squeeze(1), rest) if found.dim() == 1 else None
    if found.dtype not in INTEGERS:
        return None
    return torch.where(found < 0, found + len(weight), found), rest


def _get(weight: Any, index: Any) -> Any:
    found = _rows_indexed(weight, index) if isinstance(weight, TieredWeight) else None
    if found is None:
        return NotImplemented
    ids, rest = found
    if weight.requires_grad and torch.is_grad_enabled():
        vectors = weight.embedding(ids)
        return vectors[(*(slice(None),) * ids.dim(), *rest)] if rest else vectors
    row_N = as_ids(ids.reshape(-1))
    values = weight.rows(row_N).view(*ids.shape, weight.shape[1])
    if rest:
        return values[(*(slice(None),) * ids.dim(), *rest)]
    copy = values.as_subclass(RowsCopy)
    copy.weight, copy.row_N = weight, row_N
    return copy


def _put(weight: Any, index: Any, value: Any) -> Any:
    if not isinstance(weight, TieredWeight):
        return NotImplemented
    if weight.requires_grad and torch.is_grad_enabled():
        raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")
    found = _rows_indexed(weight, index)
    value = _plain(value)
    if found is None:
        whole = weight.whole()
        whole[index] = value
        weight.set(whole)
        return None
    ids, rest = found
    values = weight.rows(as_ids(ids.reshape(-1))).view(*ids.shape, weight.shape[1])
    values[(*(slice(None),) * ids.dim(), *rest)] = value
    weight.runtime.set_rows(weight.table, as_ids(ids.reshape(-1)), values.reshape(-1, weight.shape[1]))
    return None


def _set_data(weight: Any, value: Tensor) -> Any:
    if not isinstance(weight, TieredWeight) or value.shape != weight.shape:
        return NotImplemented
    weight.set(value)
    return None


def _whole_first(func: Any) -> Callable[..., Any]:
    """Return a function of the table's values: it needs their memory."""

    def call(weight: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(weight, TieredWeight):
            return NotImplemented
        whole = weight.whole().requires_grad_(weight.requires_grad)
        return func(whole, *args, **kwargs)

    return call


_HANDLERS: dict[Any, Callable[..., Any]] = {
    torch.nn.functional.embedding: _embedding,
    torch.nn.functional.embedding_bag: _embedding_bag,
    torch.index_select: _index_select,
    Tensor.index_select: _index_select,
    Tensor.__getitem__: _get,
    Tensor.__setitem__: _put,
    Tensor.data.__set__: _set_data,  # type: ignore[attr-defined]
    **{func: _whole_first(func) for func in (Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__reversed__)},
}
_SHAPE_ONLY = {
    aten.empty_like.default, aten.zeros_like.default, aten.ones_like.default, aten.rand_like.default,
    aten.randn_like.default, aten.new_empty.default, aten.new_zeros.default, aten.new_ones.default, aten.new_full.default,
    aten.new_empty_strided.default,
}  # fmt: skip

"""The weight of a table in two tiers, as a parameter of PyTorch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adaptive_rec.modules.bags import Bags, CallKey, PoolTables
from adaptive_rec.modules.embedding_runtime import EmbeddingRuntime
from adaptive_rec.modules.inputs import INTEGERS, Jagged, as_ids, bags_of
from adaptive_rec.modules.pooling import weighted_sums
from adaptive_rec.modules.row_gradient import RowGradient
from adaptive_rec.modules.weight_functions import STAND_INS

aten = torch.ops.aten
SHAPE_ONLY = {
    aten.empty_like.default, aten.zeros_like.default, aten.ones_like.default, aten.rand_like.default, aten.randn_like.default,
    aten.new_empty.default, aten.new_zeros.default, aten.new_ones.default, aten.new_full.default, aten.new_empty_strided.default,
}  # fmt: skip
"""Operations that need the shape, the type and the device of a tensor only."""


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
        made = torch.Tensor._make_wrapper_subclass(
            cls, (spec.rows, spec.dim), dtype=runtime.weight_dtype, device=runtime.device, requires_grad=requires_grad
        )
        made.runtime, made.table, made._is_param = runtime, table, requires_grad
        return made

    @property
    def name(self) -> str:
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
        found = bags_of(input, offsets, weights, include_last_offset, padding_idx)
        each = np.arange(len(found.ids_N) + 1, dtype=np.int64)
        single = replace(self._number("single", found.ids_N, each), samples=len(found.offsets) - 1)
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
        return replace(self._number("single", found.ids_N, found.offsets), samples=samples)

    def bags(
        self, input: Tensor, offsets: Tensor | None, mode: str, include_last_offset: bool, padding_idx: int | None
    ) -> Bags:
        """Return the bags of a lookup."""
        found = bags_of(input, offsets, None, include_last_offset, padding_idx)
        return self._number(mode, found.ids_N, found.offsets)

    def _number(self, mode: str, ids_N: NDArray[np.int64], offsets: NDArray[np.int64]) -> Bags:
        known: dict[str, PoolTables] = self.__dict__.setdefault("_known", {})
        if mode not in known:
            known[mode] = PoolTables.of(self.runtime.store.space, [self.table], [mode == "mean"])
        return known[mode].bags(ids_N, offsets, self.runtime.dtype)

    # Rows in and out -------------------------------------------------------------------------------------------------

    def whole(self) -> Tensor:
        """Return a copy of the table (R, D)."""
        return self.runtime.table(self.table).to(self.device)

    def rows(self, row_N: NDArray[np.int64]) -> Tensor:
        """Return copies of some rows (N, D), without a gradient."""
        with torch.no_grad():
            ids_N = torch.from_numpy(row_N)
            return self.runtime.pooled(None, lambda: [self.single_bags(ids_N)], self)[0].clone()

    def set(self, values: Tensor) -> None:
        """Set all rows."""
        self.runtime.set_table(self.table, values)

    def set_rows(self, row_N: NDArray[np.int64], values: Tensor) -> None:
        """Set some rows, by their numbers; of a row that is given twice the last value counts."""
        self.runtime.set_rows(self.table, row_N, values)

    # As a parameter --------------------------------------------------------------------------------------------------

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        place, stand_in = STAND_INS.get(func, (0, None))
        if stand_in is not None and isinstance(args[place], TieredWeight):
            found = stand_in(*args, **kwargs)
            if found is not NotImplemented:
                return found
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (aten.detach.default, aten.alias.default):
            return TieredWeight(args[0].runtime, args[0].table, requires_grad=False)
        if func is aten.full_like.default:  # Adagrad's first sums: no memory of a table's size for one value
            return torch.full((), args[1], dtype=args[0].dtype, device=args[0].device).expand(args[0].shape)
        if func in SHAPE_ONLY:
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
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.plain().__reduce_ex__(protocol)

    def plain(self) -> Tensor:
        """Return a copy as an ordinary parameter, or an ordinary tensor if it is not a parameter itself."""
        return nn.Parameter(self.whole(), self.requires_grad) if self._is_param else self.whole()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"TieredWeight({self.name}: {len(self):,} x {self.shape[1]}, {self.dtype}, {self.device})"


def _plain(value: Any) -> Any:
    """Return an argument with its weights read."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    if isinstance(value, RowGradient):
        return value.dense()
    return value.whole() if isinstance(value, TieredWeight) else value

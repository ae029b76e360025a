"""The gradient of a table's weight, with values for the rows that were looked up only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adaptive_rec.modules.lookahead import PoolCall

aten = torch.ops.aten
MAX_DENSE_BYTES = 1 << 30
"""Largest gradient that an operation without a rule below may turn into a dense one."""

CallGradient = tuple[PoolCall, Tensor]
"""A call and the gradient (L, D) of its pooled vectors."""


class RowGradient(Tensor):
    """Gradient (R, D) of a table: zero but for the rows that were looked up. It is what `weight.grad` holds.

    It keeps the gradients of pooled vectors as backward passes left them, in `calls`; most updates need no more. `rows` and
    `values` sum them by distinct row when they are first read. Torch's operations on gradients work on it as on a dense tensor:
    sums over passes, norms, clipping, ``GradScaler``. Anything else is computed on a dense copy, which must not be larger than
    1 GiB.
    """

    calls: list[CallGradient] | None
    """Gradients of pooled vectors that sum to this gradient; None after a change that they cannot express."""
    _summed: tuple[Tensor, Tensor] | None
    first_row: int
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(
        cls,
        like: Tensor,
        calls: Sequence[CallGradient] | None,
        first_row: int,
        summed: tuple[Tensor, Tensor] | None = None,
    ) -> RowGradient:
        """`like`: a tensor of its shape, type and device. `first_row`: number of the table's first row within its pool. `summed`:
        distinct rows (U) and their gradients (U, D), where they are known."""
        made = torch.Tensor._make_wrapper_subclass(cls, like.shape, dtype=like.dtype, device=like.device)
        made.calls, made.first_row, made._summed = None if calls is None else list(calls), first_row, summed
        return made

    # Rows ------------------------------------------------------------------------------------------------------------

    @property
    def rows(self) -> Tensor:
        """Distinct rows (U) that were looked up, rising."""
        return self._sums()[0]

    @property
    def values(self) -> Tensor:  # type: ignore[override]
        """Gradients (U, D) of these rows."""
        return self._sums()[1]

    def _sums(self) -> tuple[Tensor, Tensor]:
        if self._summed is None:
            assert self.calls is not None
            self._summed = _sum_by_row([_by_lookup(call, gradient) for call, gradient in self.calls], self)
            rows, values = self._summed
            self._summed = rows - self.first_row, values
        return self._summed

    def dense(self) -> Tensor:
        """Return the gradient as an ordinary tensor (R, D)."""
        whole = torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        return whole.index_copy_(0, self.rows, self.values.to(self.dtype))

    def _like(self, calls: Sequence[CallGradient] | None, summed: tuple[Tensor, Tensor] | None) -> RowGradient:
        return RowGradient(self, calls, self.first_row, summed)

    def _set(self, other: RowGradient) -> RowGradient:
        self.calls, self._summed = other.calls, other._summed
        return self

    # Arithmetic ------------------------------------------------------------------------------------------------------

    def plus(self, other: Tensor, alpha: float = 1.0) -> RowGradient:
        """Return the sum with another gradient, of rows or dense."""
        if isinstance(other, RowGradient):
            other = other if alpha == 1 else other.each(lambda part: part * alpha)
            if self.calls is not None and other.calls is not None:
                return self._like([*self.calls, *other.calls], None)
            return self._like(None, _sum_by_row([(self.rows, self.values), (other.rows, other.values)], self))
        whole = self.dense().add_(other, alpha=alpha)
        return self._like(None, (torch.arange(len(self), device=self.device), whole))

    def each(self, change: Callable[[Tensor], Tensor], linear: bool = True) -> RowGradient:
        """Return the gradient with every value changed; `change` keeps zeros. A linear change may be made before the sums."""
        if self.calls is not None and linear:
            summed = self._summed and (self._summed[0], change(self._summed[1]))
            return self._like([(call, change(part)) for call, part in self.calls], summed)
        return self._like(None, (self.rows, change(self.values)))

    def nothing(self) -> RowGradient:
        """Return a gradient that is zero everywhere."""
        return self._like([], None)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        rule = _RULES.get(func)
        if rule is not None and isinstance(args[0], (RowGradient, list)):
            found = rule(func, *args, **kwargs)
            if found is not NotImplemented:
                return found
        if func is aten.add_.Tensor:  # a dense gradient, plus one of rows
            return args[0].index_add_(0, args[1].rows, args[1].values, alpha=kwargs.get("alpha", 1))
        if func._schema.is_mutable:
            raise NotImplementedError(f"{func} cannot change a gradient of rows: change its .values by .copy_(), or use .dense()")
        return func(*map(_dense, args), **{name: _dense(value) for name, value in kwargs.items()})

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"RowGradient({len(self)} x {self.shape[1]}, rows={self.rows}, values={self.values})"


def _by_lookup(call: PoolCall, gradient_LD: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows within the pool (N) and the gradient of each lookup (N, D)."""
    bags = call.bags
    if bags.divisor_L1 is not None:
        gradient_LD = gradient_LD / bags.divisor_L1.to(gradient_LD.device)
    row_N = torch.from_numpy(bags.row_N).to(gradient_LD.device)
    lengths = np.diff(bags.offsets)
    if not (lengths == 1).all():
        gradient_LD = gradient_LD.repeat_interleave(torch.from_numpy(lengths).to(gradient_LD.device), dim=0)
    return row_N, gradient_LD


def _sum_by_row(parts: Sequence[tuple[Tensor, Tensor]], like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct rows of all parts and the sums of their values."""
    if not parts:
        rows = torch.empty(0, dtype=torch.int64, device=like.device)
        return rows, torch.empty((0, like.shape[1]), dtype=like.dtype, device=like.device)
    rows, place = torch.cat([rows for rows, _ in parts]).unique(return_inverse=True)
    values = torch.cat([values for _, values in parts])
    return rows, values.new_zeros((len(rows), values.shape[1])).index_add_(0, place, values)


def _dense(value: Any) -> Any:
    """Return an argument with its gradients of rows as dense tensors."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(_dense, value))
    if not isinstance(value, RowGradient):
        return value
    if value.numel() * value.element_size() > MAX_DENSE_BYTES:
        raise NotImplementedError(
            f"a gradient of {len(value):,} x {value.shape[1]} is not made dense, as it would take more than 1 GiB; "
            "use its .rows and .values"
        )
    return value.dense()


# Rules of torch's operations -----------------------------------------------------------------------------------------


def _same(func: Any, given: RowGradient, *_: Any, **kwargs: Any) -> Any:
    return given._like(given.calls, given._summed)


def _empty(func: Any, given: RowGradient, size: Sequence[int], *_: Any, **kwargs: Any) -> Any:
    """An empty gradient, which autograd copies another one into; or an ordinary tensor of another shape."""
    if tuple(size) == tuple(given.shape):
        return given.nothing()
    options = {name: kwargs.get(name) or getattr(given, name) for name in ("dtype", "device")}
    return torch.empty(tuple(size), **options)


def _copy(func: Any, given: RowGradient, source: Tensor, *_: Any) -> Any:
    return given._set(source if isinstance(source, RowGradient) else given.nothing().plus(source))


def _add(func: Any, given: Tensor, other: Any, *, alpha: float = 1.0) -> Any:
    if not isinstance(given, RowGradient):
        return NotImplemented
    if not isinstance(other, Tensor) or other.shape != given.shape:
        other = torch.as_tensor(other, dtype=given.dtype, device=given.device).expand(given.shape)
    return given.plus(other, alpha)


def _add_in_place(func: Any, given: RowGradient, other: Any, *, alpha: float = 1.0) -> Any:
    found = _add(func, given, other, alpha=alpha)
    return found if found is NotImplemented else given._set(found)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.dim() == 0)


def _scale(func: Any, given: RowGradient, factor: Any) -> Any:
    out_of_place = torch.mul if func in (aten.mul_.Tensor, aten.mul.Tensor) else torch.div
    if not _is_number(factor):
        return NotImplemented
    made = given.each(lambda part: out_of_place(part, factor))
    return given._set(made) if func._schema.is_mutable else made


def _negate(func: Any, given: RowGradient) -> Any:
    return given.each(torch.neg)


def _clamp(func: Any, given: RowGradient, least: Any = None, most: Any = None) -> Any:
    if (least is not None and least > 0) or (most is not None and most < 0):
        return NotImplemented  # zeros would change
    made = given.each(lambda part: part.clamp(least, most), linear=False)
    return given._set(made) if func._schema.is_mutable else made


def _clear(func: Any, given: RowGradient) -> Any:
    return given._set(given.nothing())


def _reduce(func: Any, given: RowGradient, *args: Any, **kwargs: Any) -> Any:
    """A norm over all values, which zeros do not change."""
    order = args[0] if args else 2
    over = args[1] if len(args) > 1 else kwargs.get("dim")
    if over or not isinstance(order, (int, float)) or order <= 0:
        return NotImplemented
    return torch.linalg.vector_norm(given.values, order, dtype=kwargs.get("dtype")).to(kwargs.get("dtype") or given.dtype)


def _all_norms(func: Any, given: list[Any], *args: Any, **kwargs: Any) -> Any:
    return [torch.linalg.vector_norm(part.values if isinstance(part, RowGradient) else part, *args, **kwargs) for part in given]


def _scale_all(func: Any, given: list[Any], factor: Any) -> None:
    for number, part in enumerate(given):
        part.mul_(factor[number] if isinstance(factor, (list, tuple)) else factor)


def _clear_all(func: Any, given: list[Any]) -> None:
    for part in given:
        part.zero_()


def _unscale(func: Any, given: list[Any], found_inf: Tensor, inverse: Tensor) -> None:
    """What ``GradScaler`` does before a step: divide by the scale, and say whether a value is not finite."""
    plain = [part for part in given if not isinstance(part, RowGradient)]
    for part in given:
        if isinstance(part, RowGradient):
            part._set(part.each(torch.clone))
            if part.calls is None:
                plain.append(part.values)
            else:
                part._summed = None
                plain += [gradient for _, gradient in part.calls]
    if plain:
        func(plain, found_inf, inverse)


_RULES: dict[Any, Callable[..., Any]] = {
    aten.detach.default: _same,
    aten.alias.default: _same,
    aten.clone.default: _same,
    aten.new_empty_strided.default: _empty,
    aten.copy_.default: _copy,
    aten.add.Tensor: _add,
    aten.add_.Tensor: _add_in_place,
    aten.mul.Tensor: _scale,
    aten.mul_.Tensor: _scale,
    aten.div.Tensor: _scale,
    aten.div_.Tensor: _scale,
    aten.neg.default: _negate,
    aten.clamp.default: _clamp,
    aten.clamp_.default: _clamp,
    aten.zero_.default: _clear,
    aten.linalg_vector_norm.default: _reduce,
    aten.norm.Scalar: _reduce,
    aten._foreach_norm.Scalar: _all_norms,
    aten._foreach_mul_.Scalar: _scale_all,
    aten._foreach_mul_.Tensor: _scale_all,
    aten._foreach_mul_.ScalarList: _scale_all,
    aten._foreach_zero_.default: _clear_all,
    aten._amp_foreach_non_finite_check_and_unscale_.default: _unscale,
}

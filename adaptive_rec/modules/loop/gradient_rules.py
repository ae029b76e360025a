"""Rules of torch's operations on gradients of rows: sums over passes, norms, clipping, scaling, ``GradScaler``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from adaptive_rec.modules.loop.row_gradient import RULES, RowGradient

aten = torch.ops.aten


def _alias(func: Any, given: RowGradient, *_: Any, **kwargs: Any) -> Any:
    return given.alias()


def _clone(func: Any, given: RowGradient, *_: Any, **kwargs: Any) -> Any:
    return given.each(torch.clone) if given.calls is None else given.like(given.calls, None)


def _empty(func: Any, given: RowGradient, size: Sequence[int], *_: Any, **kwargs: Any) -> Any:
    """An empty gradient, which autograd copies another one into; or an ordinary tensor of another shape."""
    if tuple(size) == tuple(given.shape):
        return given.nothing()
    options = {name: kwargs.get(name) or getattr(given, name) for name in ("dtype", "device")}
    return torch.empty(tuple(size), **options)


def _copy(func: Any, given: RowGradient, source: Tensor, *_: Any) -> Any:
    return given.set_to(source if isinstance(source, RowGradient) else given.nothing().plus(source))


def _add(func: Any, given: Tensor, other: Any, *, alpha: float = 1.0) -> Any:
    if not isinstance(given, RowGradient):
        return NotImplemented
    if not isinstance(other, Tensor) or other.shape != given.shape:
        other = torch.as_tensor(other, dtype=given.dtype, device=given.device).expand(given.shape)
    return given.plus(other, alpha)


def _add_in_place(func: Any, given: RowGradient, other: Any, *, alpha: float = 1.0) -> Any:
    found = _add(func, given, other, alpha=alpha)
    return found if found is NotImplemented else given.set_to(found)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.dim() == 0)


def _scale(func: Any, given: RowGradient, factor: Any) -> Any:
    out_of_place = torch.mul if func in (aten.mul_.Tensor, aten.mul.Tensor) else torch.div
    if not _is_number(factor):
        return NotImplemented
    made = given.each(lambda part: out_of_place(part, factor))
    return given.set_to(made) if func._schema.is_mutable else made


def _negate(func: Any, given: RowGradient) -> Any:
    return given.each(torch.neg)


def _clamp(func: Any, given: RowGradient, least: Any = None, most: Any = None) -> Any:
    if (least is not None and least > 0) or (most is not None and most < 0):
        return NotImplemented  # zeros would change
    made = given.each(lambda part: part.clamp(least, most), linear=False)
    return given.set_to(made) if func._schema.is_mutable else made


def _clear(func: Any, given: RowGradient) -> Any:
    return given.set_to(given.nothing())


def _reduce(func: Any, given: RowGradient, *args: Any, **kwargs: Any) -> Any:
    """A norm over all values, which zeros do not change."""
    order = args[0] if args else 2
    over = args[1] if len(args) > 1 else kwargs.get("dim")
    if over or not isinstance(order, (int, float)) or order <= 0:
        return NotImplemented
    return _norm(given, order, kwargs.get("dtype"))


def _norm(given: Tensor, order: float = 2, dtype: torch.dtype | None = None) -> Tensor:
    if not isinstance(given, RowGradient):
        return torch.linalg.vector_norm(given, order, dtype=dtype)
    return given.norm_of_values(order, dtype).to(dtype or given.dtype)


def _all_norms(func: Any, given: list[Any], *args: Any, **kwargs: Any) -> Any:
    return [_norm(part, *args, **kwargs) for part in given]


def _scale_all(func: Any, given: list[Any], factor: Any) -> None:
    for number, part in enumerate(given):
        part.mul_(factor[number] if isinstance(factor, (list, tuple)) else factor)


def _clear_all(func: Any, given: list[Any]) -> None:
    for part in given:
        part.zero_()


def _unscale(func: Any, given: list[Any], found_inf: Tensor, inverse: Tensor) -> None:
    """What ``GradScaler`` does before a step: divide by the scale, and say whether a value is not finite, which in torch's dense
    gradient is the sum of a row's. Vectors of no row, such as those of empty bags, are in no sum."""
    if not all(part.is_finite() for part in given if isinstance(part, RowGradient)):
        found_inf.fill_(1.0)
    plain = [part for part in given if not isinstance(part, RowGradient)]
    of_rows, unscaled = [], []
    for part in given:
        if isinstance(part, RowGradient):
            calls = None if part.calls is None else [(call, gradient.clone()) for call, gradient in part.calls]
            made = part.each(torch.clone) if calls is None else part.like(calls, None)
            of_rows += [made.values] if calls is None else [gradient for _, gradient in calls]
            unscaled.append((part, made))
    if plain:
        func(plain, found_inf, inverse)
    if of_rows:
        func(of_rows, torch.zeros_like(found_inf), inverse)
    for part, made in unscaled:
        part.set_to(made)


RULES.update({
    aten.detach.default: _alias,
    aten.alias.default: _alias,
    aten.clone.default: _clone,
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
})

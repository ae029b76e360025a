"""The gradient of a table's weight, with values for the rows that were looked up only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adaptive_rec.modules.loop.bags import Bags
from adaptive_rec.modules.loop.lookahead import PoolCall
from adaptive_rec.modules.loop.operations import changed_arguments, flat, map_values
from adaptive_rec.modules.loop.row_sums import by_lookup, sum_by_row, surely_finite, touched

aten = torch.ops.aten
RULES: dict[Any, Callable[..., Any]] = {}
"""Operations of torch that need no dense gradient (`gradient_rules.py`)."""
MAX_DENSE_BYTES = 1 << 30
"""Largest gradient that an operation without a rule may turn into a dense one."""

FOLDED_CALLS, FOLDED_LOOKUPS = 16, 1 << 16
"""Numbers of calls and of their lookups from which on they are summed by row while gradients add up."""

CallGradient = tuple[PoolCall, Tensor]
"""A call and the gradient (L, D) of its pooled vectors."""


@dataclass
class _Held:
    """What a gradient and its aliases hold. Exactly one of `calls`, `summed` and `whole` is the gradient."""

    calls: list[CallGradient] | None
    summed: tuple[Tensor, Tensor] | None = None
    """Distinct rows (U) and their gradients (U, D). Beside `calls` it is what these sum to."""
    whole: Tensor | None = None
    """The gradient (R, D) as an ordinary tensor, from the first view of it on; views share its memory."""
    whole_rows: Tensor | None = None
    """Rows that were looked up, where `whole` is held."""
    bags: tuple[Bags, ...] = ()
    """Lookups of the calls that were summed."""
    folded_rows: int = 0
    """Distinct rows when calls were last folded."""


class RowGradient(Tensor):
    """Gradient (R, D) of a table: zero but for the rows that were looked up. It is what `weight.grad` holds.

    It keeps the gradients of pooled vectors as backward passes left them, in `calls`; most updates need no more. `rows` and
    `values` sum them by distinct row when they are first read. Torch's operations on gradients work on it as on a dense tensor:
    sums over passes, norms, clipping, ``GradScaler``. Anything else is computed on a dense copy, which must not be larger than
    1 GiB; a change in place is taken back from it. With a view (``grad[3] = 0``, ``grad.view(-1)``) it becomes dense itself.
    """

    first_row: int
    _held: _Held
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(
        cls,
        like: Tensor,
        calls: Sequence[CallGradient] | None,
        first_row: int,
        summed: tuple[Tensor, Tensor] | None = None,
        bags: Sequence[Bags] = (),
    ) -> RowGradient:
        """`like`: a tensor of its shape, type and device. `first_row`: number of the table's first row within its pool. `summed`:
        distinct rows (U), rising, and their gradients (U, D), where they are known. `bags`: lookups that they sum."""
        return cls._over(like, first_row, _Held(None if calls is None else list(calls), summed, bags=tuple(bags)))

    @classmethod
    def _over(cls, like: Tensor, first_row: int, held: _Held) -> RowGradient:
        with torch._C.DisableTorchFunctionSubclass():  # a weight would be asked for each of these by a function of its own
            made = torch.Tensor._make_wrapper_subclass(cls, like.shape, dtype=like.dtype, device=like.device)
        made.first_row, made._held = first_row, held
        return made

    # Rows ------------------------------------------------------------------------------------------------------------

    @property
    def calls(self) -> list[CallGradient] | None:
        """Gradients of pooled vectors that sum to this gradient; None after a change that they cannot express."""
        return self._held.calls

    @property
    def bags(self) -> tuple[Bags, ...]:
        """The lookups that this gradient is of."""
        calls = self._held.calls
        return self._held.bags if calls is None else tuple(bags for call, _ in calls for bags in (call.folded or (call.bags,)))

    @property
    def rows(self) -> Tensor:
        """Distinct rows (U) that were looked up, rising."""
        return self.sums()[0]

    @property
    def values(self) -> Tensor:  # type: ignore[override]
        """Gradients (U, D) of these rows. A change of them in place changes the gradient."""
        if self._held.calls is not None or self._held.whole is not None:
            self._replace(_Held(None, self.sums(), bags=self.bags))
        return self.sums()[1]

    def _replace(self, held: _Held) -> None:
        """Change what this gradient and its aliases hold."""
        vars(self._held).update(vars(held))

    def alias(self) -> RowGradient:
        """Return another tensor that holds the same gradient: a change of one changes the other."""
        return self._over(self, self.first_row, self._held)

    def sums(self) -> tuple[Tensor, Tensor]:
        """Return `rows` and `values`, the latter not to be changed."""
        held = self._held
        if held.whole is not None:
            assert held.whole_rows is not None
            return touched(held.whole_rows, held.whole)
        if held.summed is None:
            assert held.calls is not None
            rows, values = sum_by_row([by_lookup(call, gradient) for call, gradient in held.calls], self)
            held.summed = rows - self.first_row, values
        return held.summed

    def is_finite(self) -> bool:
        """Return whether the gradient of every row is finite. It is summed by row only where a number is large."""
        surely = self.calls is not None and all(surely_finite(part) for _, part in self.calls)
        return surely or bool(self.sums()[1].isfinite().all())

    def dense(self) -> Tensor:
        """Return a copy of the gradient as an ordinary tensor (R, D)."""
        if self._held.whole is not None:
            return self._held.whole.clone()
        rows, values = self.sums()
        return torch.zeros(self.shape, dtype=self.dtype, device=self.device).index_copy_(0, rows, values.to(self.dtype))

    def checked_dense(self) -> Tensor:
        """Return `dense`. Raises NotImplementedError where it would be too large."""
        if self.numel() * self.element_size() > MAX_DENSE_BYTES:
            raise NotImplementedError(
                f"a gradient of {len(self):,} x {self.shape[1]} is not made dense, as it would take more than 1 GiB; "
                "use its .rows and .values"
            )
        return self.dense()

    def whole(self) -> Tensor:
        """Return the gradient as an ordinary tensor (R, D), and hold it as that from now on: changes in place count."""
        if self._held.whole is None:
            self._replace(_Held(None, None, self.checked_dense(), self.rows, self.bags))
        assert self._held.whole is not None
        return self._held.whole

    def become(self, whole: Tensor) -> None:
        """Become a dense gradient (R, D) that an operation has left."""
        if whole is not self._held.whole:
            self._replace(_Held(None, touched(self.rows, whole), bags=self.bags))

    def like(
        self, calls: Sequence[CallGradient] | None, summed: tuple[Tensor, Tensor] | None, bags: Sequence[Bags] = ()
    ) -> RowGradient:
        """Return another gradient of this table; arguments as of the class."""
        return type(self)(self, calls, self.first_row, summed, bags)

    def set_to(self, other: RowGradient) -> RowGradient:
        """Take the values of another gradient of this table; aliases and views follow. Returns itself."""
        whole = self._held.whole
        if whole is None:
            self._replace(other._held)
        else:  # views keep sharing its memory
            rows, changed = other.rows, other.dense()
            self._replace(_Held(None, None, whole.copy_(changed), rows, other.bags))
        return self

    def norm_of_values(self, order: float, dtype: torch.dtype | None) -> Tensor:
        """Return a norm over all values."""
        values = self.sums()[1]
        if not values.numel():  # torch has no largest of no numbers
            values = values.new_zeros(1)
        return torch.linalg.vector_norm(values, order, dtype=dtype)

    # Arithmetic ------------------------------------------------------------------------------------------------------

    def plus(self, other: Tensor, alpha: float = 1.0) -> RowGradient:
        """Return the sum with another gradient, of rows or dense."""
        if isinstance(other, RowGradient):
            other = other if alpha == 1 else other.each(lambda part: part * alpha)
            if self.calls is not None and other.calls is not None:
                made = self.like([*self.calls, *other.calls], None)
                made._held.folded_rows = max(self._held.folded_rows, other._held.folded_rows)
                return made._folded()
            return self.like(None, sum_by_row([self.sums(), other.sums()], self), [*self.bags, *other.bags])
        return self.like(None, touched(self.rows, self.dense().add_(other, alpha=alpha)), self.bags)

    def _folded(self) -> RowGradient:
        """Sum many calls into one, so that gradients of many passes need memory by rows, not by lookups."""
        calls = self.calls or []
        lookups = sum(len(call.bags.row_N) for call, _ in calls)
        if len(calls) < FOLDED_CALLS or lookups < max(FOLDED_LOOKUPS, 2 * self._held.folded_rows):
            return self
        rows, values = self.sums()
        row_N = (rows + self.first_row).cpu().numpy()
        each = np.arange(len(row_N) + 1, dtype=np.int64)
        bags = replace(calls[0][0].bags, row_N=row_N, offsets=each, samples=len(row_N), divisor_L1=None)
        made = self.like([(PoolCall(bags, folded=self.bags), values)], (rows, values))
        made._held.folded_rows = len(row_N)
        return made

    def each(self, change: Callable[[Tensor], Tensor], linear: bool = True) -> RowGradient:
        """Return the gradient with every value changed; `change` keeps zeros. A linear change may be made before the sums, but
        where these are known and not finite: torch's dense gradient is clipped to NaN then, not to zero."""
        summed = self._held.summed
        if self.calls is not None and linear and (summed is None or self.is_finite()):
            made = self.like(
                [(call, change(part)) for call, part in self.calls], summed and (summed[0], change(summed[1]))
            )
            made._held.folded_rows = self._held.folded_rows
            return made
        rows, values = self.sums()
        return self.like(None, (rows, change(values)), self.bags)

    def nothing(self) -> RowGradient:
        """Return a gradient that is zero everywhere."""
        return self.like([], None)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        rule = RULES.get(func)
        if rule is not None and isinstance(args[0], (RowGradient, list)):
            found = rule(func, *args, **kwargs)
            if found is not NotImplemented:
                return found
        if func is aten.add_.Tensor and not isinstance(args[0], RowGradient):  # a dense gradient, plus one of rows
            rows, values = args[1].sums()
            return args[0].index_add_(0, rows, values.to(args[0].dtype), alpha=kwargs.get("alpha", 1))
        return _on_dense(func, args, kwargs)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        rows, values = self.sums()
        return f"RowGradient({len(self)} x {self.shape[1]}, rows={rows}, values={values})"


def _on_dense(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Carry out an operation of torch on dense gradients. What it changes in place is taken back; a view of a gradient is one of
    the dense tensor that the gradient then is."""
    returns = func._schema.returns
    views = any(one.alias_info is not None and not one.alias_info.is_write for one in returns)
    made: dict[int, tuple[RowGradient, Tensor]] = {}

    def plain(value: Any) -> Any:
        if not isinstance(value, RowGradient):
            return value
        if id(value._held) not in made:
            made[id(value._held)] = value, value.whole() if views or value._held.whole is not None else value.checked_dense()
        return made[id(value._held)][1]

    result = func(*map_values(args, plain), **{name: map_values(value, plain) for name, value in kwargs.items()})
    for gradient in flat(changed_arguments(func, args, kwargs)):
        if isinstance(gradient, RowGradient):
            dense = made[id(gradient._held)][1]
            gradient.become(dense)
            result = gradient if result is dense else result
    return result

"""The gradient of a table's weight on one of several ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adaptive_rec.errors import ConfigError
from adaptive_rec.modules.loop.own_rows import OwnRows
from adaptive_rec.modules.loop.row_gradient import RULES, RowGradient

aten = torch.ops.aten
LINEAR = {
    aten.detach.default, aten.alias.default, aten.clone.default, aten.new_empty_strided.default, aten.copy_.default,
    aten.add.Tensor, aten.add_.Tensor, aten.mul.Tensor, aten.mul_.Tensor, aten.div.Tensor, aten.div_.Tensor, aten.neg.default,
    aten.zero_.default, aten._foreach_mul_.Scalar, aten._foreach_mul_.Tensor, aten._foreach_mul_.ScalarList,
    aten._foreach_zero_.default,
}  # fmt: skip
"""Operations that may be carried out on each rank before the gradients of all ranks are averaged."""
NORMS = {aten.linalg_vector_norm.default, aten.norm.Scalar, aten._foreach_norm.Scalar}


class PartGradient(RowGradient):
    """The gradient that one rank's part of a batch has left. The step averages those of all ranks, so they are added and scaled
    as they are. A norm is that of the average, which the ranks compute together. An operation that would differ from rank to rank
    is refused: clipping by value, ``GradScaler``."""

    ranks: OwnRows
    table: int

    @classmethod
    def _over(cls, like: Any, first_row: int, held: Any) -> Any:
        made: Any = super()._over(like, first_row, held)
        made.ranks = like.ranks if isinstance(like, PartGradient) else like.runtime.rows
        made.table = like.table
        return made

    def norm_of_values(self, order: float, dtype: torch.dtype | None) -> Tensor:
        return self.ranks.norm(self.table, *self.sums(), order, dtype)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in LINEAR:
            return super().__torch_dispatch__(func, types, args, kwargs)
        found = RULES[func](func, *args, **kwargs or {}) if func in NORMS else NotImplemented
        if found is NotImplemented:
            raise ConfigError(
                "gradients of rows must only be added, scaled and clipped by their norm where several ranks train, as the step "
                f"averages them over the ranks, got {func}: leave the tables' weights out of it"
            )
        return found

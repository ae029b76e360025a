"""The gradient of a table's weight on one of several ranks."""

from __future__ import annotations

from typing import Any

import torch

from adaptive_rec.errors import ConfigError
from adaptive_rec.modules.row_gradient import RowGradient

aten = torch.ops.aten
LINEAR = {
    aten.detach.default, aten.alias.default, aten.clone.default, aten.new_empty_strided.default, aten.copy_.default,
    aten.add.Tensor, aten.add_.Tensor, aten.mul.Tensor, aten.mul_.Tensor, aten.div.Tensor, aten.div_.Tensor, aten.neg.default,
    aten.zero_.default, aten._foreach_mul_.Scalar, aten._foreach_mul_.Tensor, aten._foreach_mul_.ScalarList,
    aten._foreach_zero_.default,
}  # fmt: skip
"""Operations that may be carried out on each rank before the gradients of all ranks are averaged."""


class PartGradient(RowGradient):
    """The gradient that one rank's part of a batch has left. The step averages those of all ranks, so an operation whose result
    depends on the average (a norm, clipping, ``GradScaler``) is refused: it would differ from rank to rank."""

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func not in LINEAR:
            raise ConfigError(
                f"gradients of rows must only be added and scaled where several ranks train, as the step averages them over the "
                f"ranks, got {func}: leave the tables' weights out of clipping, norms and GradScaler"
            )
        return super().__torch_dispatch__(func, types, args, kwargs)

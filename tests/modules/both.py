"""An AdaptiveEmbeddingBag and an nn.EmbeddingBag with the same rows, called and trained in the same way.

Rows are updated by SGD with a learning rate of 1, so that a row's gradient is what it lost.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adaptive_rec import AdaptiveEmbeddingBag
from adaptive_rec.errors import AdaptiveRecError

INTEGERS = [torch.int32, torch.int64]
KINDS = ["unfused", "cold", "hot"]
"""The fused update off; on with all rows on the host; on with all rows on the device after the first step."""
ERRORS = (AdaptiveRecError, ValueError, RuntimeError, NotImplementedError, TypeError, KeyError, AssertionError)


def fused(kind: str, **more: Any) -> dict[str, Any]:
    if kind == "unfused":
        return {}
    policy = {"cold": "hybrid", "hot": "hotline"}[kind]
    knobs = {"reclassify_every": 1, "sample_ratio": 1.0}
    return {"optimizer": "sgd", "lr": 1.0, "budget": "1MiB", "policy": policy, "knobs": knobs, **more}


class Both:
    """Two bags with the same rows."""

    def __init__(
        self,
        kind: str,
        rows: int,
        dim: int,
        weight: Tensor | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        weight = torch.randn(rows, dim, dtype=dtype) if weight is None else weight
        self.kind = kind
        self.theirs = nn.EmbeddingBag(rows, dim, _weight=weight.clone(), **options)
        self.ours = AdaptiveEmbeddingBag(rows, dim, _weight=weight.clone(), **options, **fused(kind))

    def check(
        self, ids: Tensor, offsets: Tensor | None = None, scale: Tensor | None = None, gradient: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Forward and backward; returns pooled vectors and the gradient of all rows, found equal."""
        self.theirs.weight.data.copy_(self.ours.weight)
        before = self.ours.weight.detach().clone()
        scales = [
            None if scale is None else scale.detach().clone().requires_grad_(scale.requires_grad) for _ in range(2)
        ]
        self.theirs.zero_grad()
        self.ours.zero_grad()
        expected, found = (bag(ids, offsets, own) for bag, own in zip((self.theirs, self.ours), scales, strict=True))
        torch.testing.assert_close(found, expected)
        gradient = torch.randn_like(expected) if gradient is None else gradient
        expected.backward(gradient)
        found.backward(gradient)
        rows = self.theirs.weight.grad
        assert rows is not None
        rows = rows.to_dense() if rows.is_sparse else rows
        if self.kind == "unfused":
            mine = self.ours.weight.grad
            assert mine is not None
            assert mine.is_sparse == self.ours.sparse
            mine = mine.to_dense() if mine.is_sparse else mine
        else:
            mine = before - self.ours.weight
        torch.testing.assert_close(mine, rows)
        if scale is not None and scale.requires_grad:
            torch.testing.assert_close(scales[1].grad, scales[0].grad)  # type: ignore[union-attr]
        return found, mine

    def check_often(self, *call: Any) -> None:
        for _ in range(1 if self.kind == "unfused" else 3):
            self.check(*call)
        if self.kind == "hot" and call[0].numel():
            stats = self.ours.runtime.stats()
            assert stats.hot_rows > 0
            assert stats.hot_lookup_ratio > 0


each_kind = pytest.mark.parametrize("kind", KINDS)
each_mode = pytest.mark.parametrize("mode", ["sum", "mean"])

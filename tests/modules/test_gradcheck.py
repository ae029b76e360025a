"""Gradients equal numerical differences: those of weights of lookups, and of rows that a torch optimizer updates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from adaptive_rec import AdaptiveEmbeddingBag

IDS = torch.tensor([4, 1, 1, 0, 3, 4, 2])
OFFSETS = torch.tensor([0, 2, 2, 5])
STILL = {"optimizer": "sgd", "lr": 1e-300, "budget": "64KiB", "knobs": {"reclassify_every": 1, "sample_ratio": 1.0}}
"""An update of every row in every backward pass that moves none."""


class Dense(torch.autograd.Function):
    """Rows whose gradient is made dense: gradcheck knows none that are sparse where the input is not."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        return weight.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.to_dense() if gradient.is_sparse else gradient


@pytest.mark.parametrize("policy", [None, "hybrid", "hotline"], ids=["unfused", "cold", "hot"])
@pytest.mark.parametrize("shape", ["jagged", "2-D"])
def test_weights_of_lookups(policy: str | None, shape: str) -> None:
    options: dict[str, Any] = {} if policy is None else {**STILL, "policy": policy}
    bag = AdaptiveEmbeddingBag(5, 3, mode="sum", **options)
    call = (IDS, OFFSETS) if shape == "jagged" else (IDS[:6].view(2, 3), None)
    scale = torch.randn(call[0].shape, requires_grad=True)
    if policy is not None:
        for _ in range(3):
            bag(*call).sum().backward()
        assert (bag.runtime.stats().hot_rows > 0) == (policy == "hotline")
    assert gradcheck(lambda scale: bag(*call, scale), (scale,))
    assert gradcheck(lambda scale: bag(*call, scale.exp()).tanh(), (scale,))


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("padding", [None, 1])
def test_rows_without_the_fused_update_equal_torch(mode: str, sparse: bool, padding: int | None) -> None:
    bag = AdaptiveEmbeddingBag(5, 3, mode=mode, sparse=sparse, padding_idx=padding)

    def pooled(weight: Tensor, *call: Any) -> Tensor:
        found: Tensor = torch.func.functional_call(bag, {"weight": Dense.apply(weight)}, call)
        return found

    weight = torch.randn(5, 3, requires_grad=True)
    for call in ((IDS, OFFSETS), (IDS[:6].view(3, 2),), (IDS[:0], torch.zeros(2, dtype=torch.int64))):
        assert gradcheck(lambda weight, call=call: pooled(weight, *call), (weight,))
    if mode == "sum":
        scale = torch.randn(7, requires_grad=True)
        assert gradcheck(lambda weight, scale: pooled(weight, IDS, OFFSETS, scale), (weight, scale))

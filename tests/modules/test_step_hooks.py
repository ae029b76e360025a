"""Hooks of a user's own on an optimizer's step: what they make of gradients is what rows are updated with, as in torch 2.13."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import adaptive_rec


def halve(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)


def trained(wrapped: bool, where: str, sparse: bool, closure: bool) -> list[torch.Tensor]:
    torch.manual_seed(1)
    rows, layer = nn.Embedding(100, 8, sparse=sparse, dtype=torch.float64), nn.Linear(8, 1, dtype=torch.float64)
    model = nn.ModuleDict({"rows": rows, "layer": layer})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    handles: list[Any] = []
    if where == "before wrap":
        handles.append(optimizer.register_step_pre_hook(halve))
    if wrapped:
        adaptive_rec.wrap(model, budget="2KiB", optimizer=optimizer)
    if where == "of all optimizers":
        handles.append(register_optimizer_step_pre_hook(halve))
    for step in range(4):
        if where == "after the first step" and step == 1:
            handles.append(optimizer.register_step_pre_hook(halve))

        def loss(begin: int = 9 * step) -> torch.Tensor:
            optimizer.zero_grad()
            found = layer(rows(torch.arange(begin, begin + 30))).square().mean()
            found.backward()
            return found

        if closure:
            optimizer.step(loss)
        else:
            loss()
            optimizer.step()
    for handle in handles:
        handle.remove()
    return [rows.weight.detach().clone(), layer.weight.detach().clone()]


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("where", ["before wrap", "after the first step", "of all optimizers"])
def test_what_a_hook_makes_of_gradients_reaches_the_rows(where: str, sparse: bool, closure: bool) -> None:
    for ours, plain in zip(trained(True, where, sparse, closure), trained(False, where, sparse, closure), strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-14)

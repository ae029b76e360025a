"""Lion in plain PyTorch, as in its paper (Chen et al., 2023, arXiv 2302.06675): what rows under the rule `lion` must equal."""

from __future__ import annotations

from typing import Any

import torch


class PlainLion(torch.optim.Optimizer):
    """Lion without weight decay. Of a weight with a sparse gradient only the rows that the gradient has move."""

    def __init__(self, weights: Any, lr: float, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__(weights, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        assert closure is None
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for weight in group["params"]:
                moments = self.state[weight].setdefault("exp_avg", torch.zeros_like(weight))
                gradient = weight.grad.coalesce()
                rows, values = gradient.indices()[0], gradient.values()
                moved = torch.sign(beta1 * moments[rows] + (1 - beta1) * values)
                moments[rows] = beta2 * moments[rows] + (1 - beta2) * values
                weight[rows] -= group["lr"] * moved

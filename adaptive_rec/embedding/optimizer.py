"""Update rules of embedding rows: their state's width, their constants, and the torch form used on a device."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from adaptive_rec.config import OptimizerConfig
from adaptive_rec.kernels import cpu

RULES = {"sgd": cpu.SGD, "rowwise_adagrad": cpu.ROWWISE_ADAGRAD, "adagrad": cpu.ADAGRAD, "lazy_adam": cpu.LAZY_ADAM}


@dataclass(frozen=True)
class RowRule:
    """One update rule. Adam is lazy: a row moves only when it is touched, with the global step in its bias correction."""

    code: int
    eps: float
    beta1: float
    beta2: float

    @staticmethod
    def of(config: OptimizerConfig) -> RowRule:
        return RowRule(RULES[config.embedding], config.eps, *config.betas)

    def state_width(self, dim: int) -> int:
        """Components of optimizer state kept for a row of `dim` components."""
        return {cpu.SGD: 0, cpu.ROWWISE_ADAGRAD: 1, cpu.ADAGRAD: dim, cpu.LAZY_ADAM: 2 * dim}[self.code]

    def apply(self, lr: float, step: int, weights_UD: Tensor, state_UK: Tensor, grad_UD: Tensor) -> None:
        """Update whole rows in place with torch operations; the same formulas as the kernel `apply_rows`."""
        dim = grad_UD.shape[1]
        if self.code == cpu.SGD:
            weights_UD.sub_(grad_UD, alpha=lr)
        elif self.code == cpu.ROWWISE_ADAGRAD:
            state_UK.add_(grad_UD.square().mean(dim=1, keepdim=True))
            weights_UD.addcdiv_(grad_UD, state_UK.sqrt().add_(self.eps), value=-lr)
        elif self.code == cpu.ADAGRAD:
            state_UK.addcmul_(grad_UD, grad_UD)
            weights_UD.addcdiv_(grad_UD, state_UK.sqrt().add_(self.eps), value=-lr)
        else:
            first_UD, second_UD = state_UK[:, :dim], state_UK[:, dim:]
            first_UD.mul_(self.beta1).add_(grad_UD, alpha=1 - self.beta1)
            second_UD.mul_(self.beta2).addcmul_(grad_UD, grad_UD, value=1 - self.beta2)
            correction = math.sqrt(1 - self.beta2**step) / (1 - self.beta1**step)
            weights_UD.addcdiv_(first_UD, second_UD.sqrt().add_(self.eps), value=-lr * correction)


def schedule(config: OptimizerConfig, step: int) -> float:
    """Factor on both learning rates at a step (from 0): linear warm-up, then quadratic decay to 0 (as the DLRM reference)."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.decay_steps and step >= config.decay_start:
        left = max(0, config.decay_start + config.decay_steps - step)
        return (left / config.decay_steps) ** 2
    return 1.0

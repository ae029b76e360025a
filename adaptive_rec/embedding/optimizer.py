"""Update rules of embedding rows: their state's width, their constants, and the learning rates' schedule."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from adaptive_rec.config.model import OptimizerConfig
from adaptive_rec.kernels import row_update

RULES = {
    "sgd": row_update.SGD,
    "rowwise_adagrad": row_update.ROWWISE_ADAGRAD,
    "adagrad": row_update.ADAGRAD,
    "lazy_adam": row_update.LAZY_ADAM,
}
ROW_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class RowRule:
    """One update rule. Adam is lazy: a row moves only when it is touched, with the global step in its bias correction."""

    code: int
    eps: float
    beta1: float
    beta2: float
    row_precision: str = "float32"
    """What weights are rounded to; float32: not at all. Optimizer state is not rounded."""

    @staticmethod
    def of(config: OptimizerConfig, row_precision: str = "float32") -> RowRule:
        return RowRule(RULES[config.embedding], config.eps, *config.betas, row_precision)

    def state_width(self, dim: int) -> int:
        """Components of optimizer state kept for a row of `dim` components."""
        return {
            row_update.SGD: 0,
            row_update.ROWWISE_ADAGRAD: 1,
            row_update.ADAGRAD: dim,
            row_update.LAZY_ADAM: 2 * dim,
        }[self.code]

    def weight_type(self, dtype: torch.dtype) -> torch.dtype:
        """What weights are kept in where `dtype` is computed with."""
        return ROW_TYPES.get(self.row_precision, dtype)

    def bytes_per_row(self, dim: int, itemsize: int) -> int:
        """Weights and optimizer state, where numbers of `itemsize` bytes are computed with."""
        rounded = ROW_TYPES.get(self.row_precision)
        return dim * (rounded.itemsize if rounded else itemsize) + self.state_width(dim) * itemsize


def schedule(config: OptimizerConfig, step: int) -> float:
    """Factor on both learning rates at a step (from 0): linear warm-up, then quadratic decay to 0 (as the DLRM reference)."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.decay_steps and step >= config.decay_start:
        left = max(0, config.decay_start + config.decay_steps - step)
        return (left / config.decay_steps) ** 2
    return 1.0

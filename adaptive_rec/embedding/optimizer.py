"""Update rules of embedding rows, with their constants and the width of their state, and the schedule of learning rates."""

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
    """An update rule. Adam is lazy: a row moves only when it is touched, with the global step in its bias correction."""

    code: int
    eps: float
    beta1: float
    beta2: float
    row_precision: str = "float32"
    """The type that weights are rounded to; float32 means no rounding. Optimizer state is not rounded."""

    @staticmethod
    def of(config: OptimizerConfig, row_precision: str = "float32") -> RowRule:
        return RowRule(RULES[config.embedding], config.eps, *config.betas, row_precision)

    def state_width(self, dim: int) -> int:
        """Return the components of optimizer state of a row of `dim` components."""
        return {
            row_update.SGD: 0,
            row_update.ROWWISE_ADAGRAD: 1,
            row_update.ADAGRAD: dim,
            row_update.LAZY_ADAM: 2 * dim,
        }[self.code]

    def weight_type(self, dtype: torch.dtype) -> torch.dtype:
        """Return the type of stored weights where the run computes in `dtype`."""
        return ROW_TYPES.get(self.row_precision, dtype)

    def bytes_per_row(self, dim: int, itemsize: int) -> int:
        """Return the bytes of a row and its optimizer state, where the run computes with numbers of `itemsize` bytes."""
        rounded = ROW_TYPES.get(self.row_precision)
        return dim * (rounded.itemsize if rounded else itemsize) + self.state_width(dim) * itemsize


def schedule(config: OptimizerConfig, step: int) -> float:
    """Return the factor on both learning rates at a step (from 0): linear warm-up, then quadratic decay, as in DLRM's code."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.decay_steps and step >= config.decay_start:
        left = max(0, config.decay_start + config.decay_steps - step)
        return (left / config.decay_steps) ** 2
    return 1.0

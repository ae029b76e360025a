"""Update rules of embedding rows, with their constants and the width of their state, and the schedule of learning rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.config.model import OptimizerConfig
from adaptive_rec.kernels import row_update
from adaptive_rec.kernels.row_update import Hyper

RULES = {
    "sgd": row_update.SGD,
    "rowwise_adagrad": row_update.ROWWISE_ADAGRAD,
    "adagrad": row_update.ADAGRAD,
    "lazy_adam": row_update.LAZY_ADAM,
}
ROW_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class RowRule:
    """An update rule. Lazy Adam moves a row only when it is touched, with the global step in its bias correction. Where rows
    catch up, they make the steps that they missed when they are needed (`embedding/missed_steps.py`)."""

    code: int
    eps: float
    beta1: float
    """Decay of the first moment, or of the momentum buffer; 0: none."""
    beta2: float
    """Decay of the second moment."""
    row_precision: str = "float32"
    """The type that weights are rounded to; float32 means no rounding. Optimizer state is not rounded."""
    catches_up: bool = False
    """Whether every row moves at every step: the last column of a row's state is the number of its last step."""
    decay: float = 0.0
    """torch's weight_decay."""
    decoupled: bool = False
    """Whether `decay` is apart from the gradient, as in AdamW."""
    dampening: float = 0.0
    flag: bool = False
    """Whether momentum is Nesterov's, or RMSprop is centred."""

    @staticmethod
    def of(config: OptimizerConfig, row_precision: str = "float32") -> RowRule:
        return RowRule(RULES[config.embedding], config.eps, *config.betas, row_precision)

    @property
    def l2(self) -> float:
        """Factor of a row in its own gradient."""
        return 0.0 if self.decoupled else self.decay

    def at(self, step: int, lr: float, seed: int = 0) -> Hyper:
        """Return the constants of a step. Dense Adam adds eps after the second moment's bias correction, lazy Adam before."""
        adam = self.catches_up and self.code == row_update.LAZY_ADAM
        eps = self.eps * math.sqrt(1 - self.beta2**step) if adam else self.eps
        betas = float(self.beta1), float(self.beta2)
        return Hyper(float(lr), float(eps), *betas, step, seed, float(self.l2), float(self.dampening), self.flag)

    def state_width(self, dim: int) -> int:
        """Return the components of optimizer state of a row of `dim` components."""
        parts = {
            row_update.SGD: 0,
            row_update.ROWWISE_ADAGRAD: 0,
            row_update.ADAGRAD: 1,
            row_update.LAZY_ADAM: 2,
            row_update.MOMENTUM: 1,
            row_update.RMSPROP: 1 + self.flag + (self.beta1 != 0),
        }[self.code]
        return parts * dim + (self.code == row_update.ROWWISE_ADAGRAD) + self.catches_up

    @property
    def rounds(self) -> bool:
        """Whether rows are of 16 bits, rounded at each update by dice that depend on seed, step and row."""
        return self.row_precision in ROW_TYPES

    def weight_type(self, dtype: torch.dtype) -> torch.dtype:
        """Return the type of stored weights where the run computes in `dtype`."""
        return ROW_TYPES.get(self.row_precision, dtype)

    def bytes_per_row(self, dim: int, itemsize: int) -> int:
        """Return the bytes of a row and its optimizer state, where the run computes with numbers of `itemsize` bytes."""
        rounded = ROW_TYPES.get(self.row_precision)
        return dim * (rounded.itemsize if rounded else itemsize) + self.state_width(dim) * itemsize


def rules_of_pools(rule: RowRule | Sequence[RowRule], pools: int) -> Sequence[RowRule]:
    """Return the update rule of each pool, of which there may be one for all. They keep rows in numbers of one type."""
    return [rule] * pools if isinstance(rule, RowRule) else rule


def schedule(config: OptimizerConfig, step: int) -> float:
    """Return the factor on both learning rates at a step (from 0): linear warm-up, then quadratic decay, as in DLRM's code. A
    step below 0 has the factor of the first one."""
    step = max(0, step)
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.decay_steps and step >= config.decay_start:
        left = max(0, config.decay_start + config.decay_steps - step)
        return (left / config.decay_steps) ** 2
    return 1.0


@dataclass(frozen=True)
class LearningRates:
    """The learning rates of one step."""

    factor: float
    """What the configured rates of all parts are multiplied by."""
    dense: float
    embedding: float


def learning_rates(config: OptimizerConfig, knobs: Knobs, step: int) -> LearningRates:
    """Return the rates of a step (from 0): schedule times knobs."""
    factor = schedule(config, step + knobs.schedule_offset) * knobs.lr_factor
    return LearningRates(factor, config.dense_lr * factor, config.embedding_lr * factor * knobs.embedding_lr_factor)

"""Update rules of embedding rows, with their constants and the width of their state, and the schedule of learning rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.config.model import OptimizerConfig
from adaptive_rec.kernels.row_update import Hyper
from adaptive_rec.kernels.update_rules import NAMED_RULES, RULE_OF_CODE, StatePart, TorchOptimizer, UpdateRule

RULES = {name: rule.code for name, rule in NAMED_RULES.items()}
"""Codes of the rules that settings may name."""
ROW_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
FIELDS = {"betas": ("beta1", "beta2"), "momentum": ("beta1",), "alpha": ("beta2",)}
"""Fields of `RowRule` for options of torch whose names are others."""


@dataclass(frozen=True)
class RowRule:
    """An update rule with its constants. Lazy Adam moves a row only when it is touched, with the global step in its bias
    correction. Where rows catch up, they make the steps that they missed when they are needed (`embedding/missed_steps.py`)."""

    code: int
    eps: float = 0.0
    beta1: float = 0.0
    """Decay of the first moment, or of the momentum buffer; 0: none."""
    beta2: float = 0.0
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
    nesterov: bool = False
    centered: bool = False

    @staticmethod
    def of(config: OptimizerConfig, row_precision: str = "float32") -> RowRule:
        given = {"eps": config.eps, "betas": config.betas}
        return RowRule.with_options(NAMED_RULES[config.embedding], given, row_precision=row_precision)

    @staticmethod
    def with_options(spec: UpdateRule, given: Mapping[str, Any], **others: Any) -> RowRule:
        """Return a rule with constants by torch's names, of which it takes its own. `others`: further fields."""
        values: dict[str, Any] = {}
        for option in spec.options:
            fields, value = FIELDS.get(option, (option,)), given[option]
            parts = value if len(fields) > 1 else [value]
            values |= zip(fields, (part if isinstance(part, bool) else float(part) for part in parts), strict=True)
        return RowRule(spec.code, **values, **others)

    @property
    def spec(self) -> UpdateRule:
        """The entry of the table of rules."""
        return RULE_OF_CODE[self.code]

    @property
    def l2(self) -> float:
        """Factor of a row in its own gradient."""
        return 0.0 if self.decoupled else self.decay

    @property
    def like_torch(self) -> TorchOptimizer | None:
        """The class of torch.optim whose state rows have; None where there is none."""
        return next((one for one in self.spec.torch if one.every_row == self.catches_up), next(iter(self.spec.torch), None))

    @property
    def state_parts(self) -> tuple[StatePart, ...]:
        """The parts of a row's state, in the order of its columns, but for the number of the last step of rows that catch up."""
        return tuple(part for part in self.spec.state if not part.option or self.option(part.option))

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the parts that torch would keep too: those with a number for each component."""
        return tuple(part.name for part in self.state_parts if not part.per_row)

    def option(self, name: str) -> Any:
        """Return a constant by torch's name."""
        values = tuple(getattr(self, field) for field in FIELDS.get(name, (name,)))
        return values if len(values) > 1 else values[0]

    def bias_correction(self, step: int) -> float:
        """Return the factor that a step's bias correction puts on the learning rate."""
        if not self.spec.corrects_bias:
            return 1.0
        return math.sqrt(1 - self.beta2**step) / (1 - self.beta1**step)

    def at(self, step: int, lr: float, seed: int = 0) -> Hyper:
        """Return the constants of a step. Dense Adam adds eps after the second moment's bias correction, lazy Adam before."""
        dense_adam = self.catches_up and self.spec.corrects_bias
        eps = self.eps * math.sqrt(1 - self.beta2**step) if dense_adam else self.eps
        betas, switches = (float(self.beta1), float(self.beta2)), (bool(self.nesterov), bool(self.centered))
        return Hyper(float(lr), float(eps), *betas, step, seed, float(self.l2), float(self.dampening), *switches)

    def state_width(self, dim: int) -> int:
        """Return the components of optimizer state of a row of `dim` components."""
        return sum(1 if part.per_row else dim for part in self.state_parts) + self.catches_up

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

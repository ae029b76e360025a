"""The optimizer of the dense part, as the configuration names it."""

from __future__ import annotations

import inspect

import torch

from adaptive_rec.config.tree import Config
from adaptive_rec.dense.optimizers import without_compiler
from adaptive_rec.errors import ConfigError, did_you_mean

FUSED_ON_CPU = ("Adagrad", "Adam", "AdamW", "SGD")
"""Optimizers of torch.optim with a kernel that updates a CPU's parameters in one pass."""


def build_dense_optimizer(config: Config, model: torch.nn.Module) -> torch.optim.Optimizer:
    name = config.optimizer.dense
    if name in ("LBFGS", "SparseAdam"):
        raise ConfigError(f"optimizer.dense must step once per batch on dense gradients, got {name!r}, which cannot")
    known = [
        key
        for key, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer)
    ]
    if name not in known:
        raise ConfigError(
            f"optimizer.dense must be an optimizer of torch.optim, got {name!r}{did_you_mean(name, known)}"
        )
    make, options = without_compiler(getattr(torch.optim, name)), dict(config.optimizer.dense_options)
    devices = {parameter.device.type for parameter in model.parameters()}
    if name in FUSED_ON_CPU and devices <= {"cpu"} and not {"foreach", "differentiable"} & options.keys():
        options.setdefault("fused", True)
    if "cuda" in devices and "capturable" in inspect.signature(make).parameters and not options.get("differentiable"):
        options.setdefault("capturable", True)  # so that its step can be recorded
    try:
        optimizer: torch.optim.Optimizer = make(model.parameters(), lr=config.optimizer.dense_lr, **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"optimizer.dense_options do not fit {name}: {error}") from None
    return optimizer

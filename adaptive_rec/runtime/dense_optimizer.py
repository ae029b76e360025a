"""The optimizer of the dense part, as the configuration names it: of torch.optim, without torch's compiler.

torch imports ``torch._dynamo``, which takes longer than torch itself, when an optimizer is made and again in each step, only to
leave the optimizer out of what is compiled. The classes here are torch's own without these wrappers: the same code computes
the same bits, and state has the same names, types and format.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, TypeVar

import torch
from torch.optim import Optimizer

from adaptive_rec.config.tree import Config
from adaptive_rec.errors import ConfigError, did_you_mean

FUSED_ON_CPU = ("Adagrad", "Adam", "AdamW", "SGD")
"""Optimizers of torch.optim with a kernel that updates a CPU's parameters in one pass."""

NARROW = (torch.bfloat16, torch.float16)
"""Types whose parameters SGD's fused kernel for CPUs leaves unchanged but for a few (torch 2.13)."""

KEPT_FROM_COMPILING = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
"""Methods of `Optimizer` that import the compiler to be left out of what it compiles."""

Made = TypeVar("Made", bound=Optimizer)


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
    if options.get("differentiable"):
        raise ConfigError("optimizer.dense_options.differentiable must be false: a run updates parameters in place")
    devices = {parameter.device.type for parameter in model.parameters()}
    stays = name == "SGD" and any(each.dtype in NARROW and each.device.type == "cpu" for each in model.parameters())
    if stays and options.get("fused"):
        raise ConfigError(
            "optimizer.dense_options.fused must be false where SGD steps on parameters of 16 bits on a CPU: "
            "torch leaves most of them unchanged"
        )
    if name in FUSED_ON_CPU and devices <= {"cpu"} and not stays and not {"foreach", "differentiable"} & options.keys():
        options.setdefault("fused", True)
    if options.get("capturable") and devices <= {"cpu"} and not options.get("fused"):
        raise ConfigError(f"optimizer.dense_options.capturable must be false where {name} steps on a CPU")
    if "cuda" in devices and "capturable" in inspect.signature(make).parameters:
        options.setdefault("capturable", True)  # so that its step can be recorded
    try:
        optimizer: torch.optim.Optimizer = make(model.parameters(), lr=config.optimizer.dense_lr, **options)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"optimizer.dense_options do not fit {name}: {error}") from None
    return optimizer


@functools.cache
def without_compiler(kind: type[Made]) -> type[Made]:
    """Return a subclass of an optimizer of torch.optim that computes the same without importing torch's compiler."""
    methods: dict[str, Any] = {name: inspect.unwrap(getattr(kind, name)) for name in KEPT_FROM_COMPILING}
    step = torch.no_grad()(inspect.unwrap(kind.step))  # torch asks whether the optimizer is differentiable, which a run refuses
    methods["step"] = Optimizer.profile_hook_step(step)
    methods["step"].hooked = True  # else torch wraps it a second time, and hooks run twice
    return type(kind.__name__, (kind,), {**methods, "__module__": __name__})

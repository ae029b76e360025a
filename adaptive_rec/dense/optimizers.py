"""Optimizers of torch.optim whose methods do not import torch's compiler.

torch imports ``torch._dynamo``, which takes longer than torch itself, when an optimizer is made and again in each step, only to
leave the optimizer out of what is compiled. The classes here are torch's own, with the same methods below those wrappers: the
same code computes the same bits, and state has the same names, types and format.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.optim import Optimizer

Made = TypeVar("Made", bound=Optimizer)

KEPT_FROM_COMPILING = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
"""Methods of `Optimizer` that import the compiler to be left out of what it compiles."""


@functools.cache
def without_compiler(kind: type[Made]) -> type[Made]:
    """Return a subclass of an optimizer of torch.optim that computes the same without importing torch's compiler."""
    methods: dict[str, Any] = {name: inspect.unwrap(getattr(kind, name)) for name in KEPT_FROM_COMPILING}
    methods["step"] = Optimizer.profile_hook_step(_with_gradients_off(inspect.unwrap(kind.step)))
    methods["step"].hooked = True  # else torch wraps it a second time, and hooks run twice
    return type(kind.__name__, (kind,), {**methods, "__module__": __name__})


def _with_gradients_off(step: Callable[..., Any]) -> Callable[..., Any]:
    """Make a step record no gradients unless its optimizer is differentiable, as `torch.optim.optimizer` does."""

    @functools.wraps(step)
    def unrecorded(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(self.defaults.get("differentiable", False)):
            return step(self, *args, **kwargs)

    return unrecorded

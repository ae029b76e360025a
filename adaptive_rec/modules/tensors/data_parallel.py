"""`DistributedDataParallel` around a model with tables in tiers: it averages the gradients of the other parameters only."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from adaptive_rec.errors import ConfigError
from adaptive_rec.modules.tensors.tiered_tensor import TieredTensor


@cache
def leave_out_tables() -> None:
    """From now on, have each `DistributedDataParallel` leave the weights in tiers out: their owners average the gradients.

    It reads the parameters of its model, then holds the model as its module, and then uses the parameters. A hook changes its
    lists in between, so that the model itself carries no mark, which a copy of it would carry too."""
    if torch.distributed.is_available():
        register_module_module_registration_hook(_leave_out)


def _leave_out(parent: nn.Module, name: str, child: nn.Module | None) -> None:
    if child is None or not isinstance(parent, nn.parallel.DistributedDataParallel):
        return
    if not (tables := _tables(child)):
        return
    wrapper: Any = parent
    wrapper.parameters_to_ignore.update(tables)
    wrapper._module_parameters[:] = [one for one in wrapper._module_parameters if not isinstance(one, TieredTensor)]
    if not wrapper._module_parameters:
        raise ConfigError(
            "DistributedDataParallel must be given a model with parameters besides its tables in two tiers, this one has none: "
            "train it as it is"
        )


def _tables(model: nn.Module) -> list[str]:
    """Return the names of a model's weights in tiers, as torch spells them: those of the model itself begin with a dot too."""
    found = []
    for path, module in model.named_modules(remove_duplicate=False):
        names = [name for name, value in module._parameters.items() if isinstance(value, TieredTensor)]
        found += [f"{path}.{name}" for name in names]
        found += [] if path else names
    return found


def check_not_parallel(model: nn.Module) -> None:
    """Raise ConfigError where a model's parameters are averaged by a `DistributedDataParallel` already."""
    if torch.distributed.is_available() and any(isinstance(one, nn.parallel.DistributedDataParallel) for one in model.modules()):
        raise ConfigError("model must be wrapped before it is given to DistributedDataParallel, it is in one already")

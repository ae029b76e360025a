"""The tables of a model that `wrap` can move into two tiers, and why others cannot be moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from adaptive_rec.errors import ConfigError
from adaptive_rec.modules.api.wrap_parameters import named_parameters_of, seeming_tables, why_weight_left
from adaptive_rec.modules.tensors.tiered_parameters import TieredParameters, tiered_weights
from adaptive_rec.modules.tensors.weight_functions import why_unsupported


@dataclass
class MovableTable:
    """A weight that one or several modules hold."""

    name: str
    weight: Tensor
    modules: list[tuple[str, nn.Module]] = field(default_factory=list)
    """Paths and modules; one module may have several paths. A module that is no embedding has the path ""."""


def tables_of(
    model: nn.Module, in_backward: bool, named: Sequence[str] = ()
) -> tuple[list[MovableTable], list[tuple[str, str]]]:
    """Return the tables of all modules that can be moved, with the parameters `named`, and the modules and parameters that are
    left."""
    tables: dict[int, MovableTable] = {}
    left: list[tuple[str, str]] = []
    reason_of: dict[int, str] = {}
    """Why weights are left, by their ids."""
    elsewhere = _other_owners(model)
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, TieredParameters) and tiered_weights(module):
            raise ConfigError(f"model must not be wrapped already, {name or 'it'} is an {type(module).__name__}")
        if not isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            continue
        reason = _why_left(module)
        if not reason and in_backward and id(module.weight) in elsewhere:
            reason = f"its weight is {elsewhere[id(module.weight)]} too"
        if reason:
            left.append((name, reason))
            reason_of[id(module._parameters.get("weight"))] = reason
            continue
        table = tables.setdefault(id(module.weight), MovableTable(name or "weight", module.weight))
        table.modules.append((name or "weight", module))
    for name, parameter in named_parameters_of(model, named, reason_of).items():
        tables.setdefault(id(parameter), MovableTable(name, parameter))
    others = seeming_tables(model, {*tables, *reason_of})
    left += [*_leave_narrow(tables), *others]
    if not tables:
        raise ConfigError(f"model must have nn.Embedding or nn.EmbeddingBag modules that can be moved, {_listed(left)}")
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if id(parameter) in tables and all(module is not known for _, known in tables[id(parameter)].modules):
                tables[id(parameter)].modules.append(("", module))
    return list(tables.values()), left


def _leave_narrow(tables: dict[int, MovableTable]) -> list[tuple[str, str]]:
    """Leave tables of 16 bits where there are others too, as the tables of one runtime are of one type."""
    narrow = {key: table for key, table in tables.items() if table.weight.dtype.itemsize == 2}
    if len(narrow) == len(tables):
        return []
    for key in narrow:
        del tables[key]
    why = "of {}, beside tables of more bits: wrap modules with tables of one type each"
    return [
        (name, why.format(table.weight.dtype))
        for table in narrow.values()
        for name in ([path for path, _ in table.modules] or [table.name])
    ]


def _other_owners(model: nn.Module) -> dict[int, str]:
    """Return the names of parameters of modules that are no embeddings, or must be left, by the parameters' ids."""
    return {
        id(parameter): f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
        if not isinstance(module, (nn.Embedding, nn.EmbeddingBag)) or _why_left(module)
    }


def _listed(left: Sequence[tuple[str, str]]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in left) or "it has none"


def _why_left(module: nn.Embedding | nn.EmbeddingBag) -> str:
    """Return why a module's table cannot be moved, or nothing."""
    if module._parameters.get("weight") is None:  # reading module.weight would compute it
        how = "parametrizations" if is_parametrized(module, "weight") else "a hook"
        return f"its weight is computed by {how} of the module (weight_norm, spectral_norm, prune, ...): rows have none"
    if not module.weight.numel():
        return f"empty: it has {module.weight.shape[0]} rows of dim {module.weight.shape[1]}"
    mode = getattr(module, "mode", "sum")
    return why_weight_left(module.weight) or why_unsupported(mode, module.max_norm, module.scale_grad_by_freq)


def weight_type(weights: Sequence[Tensor]) -> torch.dtype:
    dtypes = {weight.dtype for weight in weights}
    if len(dtypes) > 1:
        names = ", ".join(sorted(map(str, dtypes)))
        raise ConfigError(f"tables must all be of one type, got {names}; wrap submodules with tables of one type each")
    return dtypes.pop()

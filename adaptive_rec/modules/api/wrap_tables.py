"""The tables of a model that `wrap` can move into two tiers, of modules of embeddings and parameters, and why others cannot."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from pydantic import ByteSize
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from adaptive_rec.errors import ConfigError, did_you_mean
from adaptive_rec.modules.api.raw_id_modules import RawIdRows
from adaptive_rec.modules.loop.setup import PRECISIONS, TYPES
from adaptive_rec.modules.tensors.tiered_parameters import TieredParameters, tiered_weights
from adaptive_rec.modules.tensors.weight_functions import why_unsupported

WEIGHT_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
CONTAINERS = (nn.ParameterList, nn.ParameterDict)
MOST_LISTED = 20
"""Limit of parameters that are listed."""


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
            raise ConfigError(
                f"model must not be wrapped already, {name or 'it'} is an {type(module).__name__}", faq="wrapped-twice"
            )
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
    for name, parameter in _named_parameters(model, named, reason_of).items():
        tables.setdefault(id(parameter), MovableTable(name, parameter))
    others = _seeming_tables(model, {*tables, *reason_of})
    left += [*_leave_narrow(tables), *others]
    if not tables:
        raise ConfigError(
            f"model must have nn.Embedding or nn.EmbeddingBag modules that can be moved, {_listed(left)}", faq="nothing-to-wrap"
        )
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
    if isinstance(module, RawIdRows):
        return "its raw ids have rows already: wrap a fresh model with ids=\"raw\", and load its state_dict"
    mode = getattr(module, "mode", "sum")
    return _why_weight_left(module.weight) or why_unsupported(mode, module.max_norm, module.scale_grad_by_freq)


def weight_type(weights: Sequence[Tensor]) -> torch.dtype:
    dtypes = {weight.dtype for weight in weights}
    if len(dtypes) > 1:
        names = ", ".join(sorted(map(str, dtypes)))
        raise ConfigError(f"tables must all be of one type, got {names}; wrap submodules with tables of one type each")
    return dtypes.pop()


def _named_parameters(model: nn.Module, names: Sequence[str], reason_of: Mapping[int, str]) -> dict[str, Tensor]:
    """Return the parameters that the user names as tables. `reason_of`: why weights of modules of embeddings are left, by their
    ids. Raises ConfigError where one does not exist or cannot be a table."""
    if isinstance(names, str):
        raise ConfigError(f"tables must be a list of names of parameters, got the text {names!r}")
    known = dict(model.named_parameters(remove_duplicate=False))
    for name in names:
        if name not in known:
            raise ConfigError(f"tables must name parameters of the model, got {name}{did_you_mean(name, known)}")
        if reason := reason_of.get(id(known[name])) or _why_no_table(known[name]):
            raise ConfigError(f"tables must name parameters whose rows can be moved, got {name}: {reason}")
    return {name: known[name] for name in names}


def _why_no_table(parameter: Tensor) -> str:
    """Return why a parameter's rows cannot be moved into two tiers, or nothing."""
    if parameter.dim() != 2 or not parameter.numel():
        return f"of shape {tuple(parameter.shape)}, a table has rows and a dim"
    return _why_weight_left(parameter)


def _why_weight_left(weight: Tensor) -> str:
    """Return why the rows of a weight cannot be moved into two tiers, whatever module has it, or nothing."""
    if not weight.requires_grad:
        return "frozen: its weight requires no gradient"
    if weight.dtype not in PRECISIONS:
        return f"of {weight.dtype}: tables may be of {TYPES}"
    if has_hooks(weight):
        return "its weight has hooks, which would not see the gradients of rows"
    return ""


def has_hooks(weight: Tensor, but_of: object = None) -> bool:
    """Return whether a weight has hooks, other than methods of an object."""
    hooks = [hook for kind in WEIGHT_HOOKS for hook in (getattr(weight, kind, None) or {}).values()]
    return any(but_of is None or getattr(hook, "__self__", None) is not but_of for hook in hooks)


def change_places(weight: Tensor, other: Tensor) -> None:
    """Give a weight the contents of another tensor, and the other those of the weight. The weight has no hooks afterwards: what
    torch keeps for hooks, even where all were removed, would stay with the former contents, and no later hook would be called."""
    with torch._C.DisableTorchFunctionSubclass():
        for kind in WEIGHT_HOOKS:
            setattr(weight, kind, None)
    torch.utils.swap_tensors(weight, other)


def _seeming_tables(model: nn.Module, moved: Collection[int]) -> list[tuple[str, str]]:
    """Return the names of parameters that may be tables, each with its size and the way to have it served: those with more rows
    than dims that a module of the user's own has, or a container of parameters. `moved`: ids of parameters that are tables."""
    found: dict[int, tuple[str, str]] = {}
    for path, module in model.named_modules():
        if type(module).__module__.startswith("torch.") and not isinstance(module, CONTAINERS):
            continue
        for name, parameter in module.named_parameters(path, recurse=False):
            if id(parameter) not in moved and not _why_no_table(parameter) and len(parameter) > parameter.shape[1]:
                found.setdefault(id(parameter), (name, _how_to_serve(name, parameter)))
    listed = list(islice(found.values(), MOST_LISTED))
    more = len(found) - len(listed)
    return [*listed, *([("...", f"{more} more parameters with more rows than dims")] if more else [])]


def _how_to_serve(name: str, parameter: Tensor) -> str:
    rows, dim = parameter.shape
    size = ByteSize(parameter.numel() * parameter.element_size()).human_readable()
    return (
        f"a parameter of {rows:,} rows x {dim}, {size}, and no module of embeddings: if the model looks up rows of it, "
        f'wrap(..., tables=["{name}"]) moves it too'
    )

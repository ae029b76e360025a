"""Tables that are parameters of a model, not of an ``nn.Embedding``: which there seem to be, and those that the user names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice

from pydantic import ByteSize
from torch import Tensor, nn

from adaptive_rec.errors import ConfigError, did_you_mean
from adaptive_rec.modules.loop.setup import PRECISIONS, TYPES

WEIGHT_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
CONTAINERS = (nn.ParameterList, nn.ParameterDict)
MOST_LISTED = 20
"""Limit of parameters that are listed."""


def named_parameters_of(model: nn.Module, names: Sequence[str], reason_of: Mapping[int, str]) -> dict[str, Tensor]:
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
    return why_weight_left(parameter)


def why_weight_left(weight: Tensor) -> str:
    """Return why the rows of a weight cannot be moved into two tiers, whatever module has it, or nothing."""
    if not weight.requires_grad:
        return "frozen: its weight requires no gradient"
    if weight.dtype not in PRECISIONS:
        return f"of {weight.dtype}: tables may be of {TYPES}"
    if any(getattr(weight, hooks, None) for hooks in WEIGHT_HOOKS):
        return "its weight has hooks, which would not see the gradients of rows"
    return ""


def seeming_tables(model: nn.Module, moved: Collection[int]) -> list[tuple[str, str]]:
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

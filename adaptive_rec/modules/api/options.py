"""Options of a runtime for the user's training loop, as keyword arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import torch

from adaptive_rec.errors import ConfigError, did_you_mean
from adaptive_rec.kernels.update_rules import NAMED_RULES
from adaptive_rec.modules.loop.rates import Rates, named_rates, rates_of_class
from adaptive_rec.modules.loop.setup import Setup
from adaptive_rec.system.torch_group import TorchGroup


class Options(TypedDict, total=False):
    """Keyword arguments of `wrap`, `AdaptiveEmbeddingBag` and `AdaptiveEmbeddingBagCollection`."""

    policy: str
    """A name, an entry point or package.module:Class; the policy must not arrange the stream. Default: hotline."""
    budget: int | str
    """Device memory for hot rows and their optimizer state: bytes, or a text such as "2GiB"."""
    host_memory: int | str
    """Memory of each process for rows with their optimizer state; other rows then lie on a disk. On a CPU seven eighths of it
    hold hot rows, unless `budget` is given; on a GPU, cold ones."""
    disk: str | Path
    """Folder for the cold rows, where `host_memory` is given. They have a folder of their own in it, which is removed when the
    runtime is no longer in use."""
    optimizer: str | torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | Callable[..., torch.optim.Optimizer] | None
    """A rule's name (sgd, adagrad, ...; docs/models.md has all), or an optimizer of torch.optim that holds the weights, or for
    `wrap` a list of optimizers of which each holds some, or the class of one that will, or a ``functools.partial`` of
    the class with the options that it will be made with."""
    update: str | None
    """Where rows are updated: "step", in the optimizer's ``step()``, with all that torch does before it (sums over backward
    passes, clipping, ``GradScaler``); "backward", at the end of each backward pass, which keeps no gradients. By default
    "backward" for a rule's name, otherwise "step"."""
    lr: float | None
    """Learning rate of rows, where `optimizer` is a name."""
    eps: float | None
    betas: tuple[float, float] | None
    knobs: Mapping[str, Any]
    """Values of other knobs by name (`adaptive_rec.config.knobs.Knobs`)."""
    seed: int
    ids: str
    """"rows" (the default): ids are numbers of rows. "raw": ids are any whole numbers of 64 bits; in training mode an id gets a
    row with the call that makes `admit_after` (a knob) lookups of it."""
    shared_rows: int
    """With raw ids: rows besides, in each table, that ids without a row of their own share. Default: 1."""


def rates_from(options: Options) -> Rates:
    """Return the rates that the options name. Raises ConfigError."""
    optimizer, rules = options.get("optimizer"), ", ".join(NAMED_RULES)
    if optimizer is None:
        raise ConfigError(
            f"optimizer must be given: one of {rules}, or to wrap() the torch optimizer that holds the tables",
            faq="no-optimizer",
        )
    if isinstance(optimizer, (type, partial)):
        if given := [name for name in ("lr", "eps", "betas") if options.get(name) is not None]:
            raise ConfigError(f"{given[0]} must be left to the optimizer that will be made, got {options[given[0]]}")  # type: ignore[literal-required]
        return rates_of_class(optimizer)
    if not isinstance(optimizer, str):
        raise ConfigError(
            f"optimizer must be the name of a rule ({rules}) or a class of torch.optim, got {type(optimizer).__name__}; "
            "wrap(model, optimizer=...) takes an optimizer of torch.optim, or a list of such"
        )
    return named_rates(optimizer, options.get("lr"), options.get("eps"), options.get("betas"))


def check_named_rule(options: Options) -> None:
    """Raise ConfigError where rows that are updated in the backward pass are to follow an optimizer of torch."""
    given = options.get("optimizer")
    if given is not None and not isinstance(given, str):
        kind = given.func if isinstance(given, partial) else given
        raise ConfigError(
            f"optimizer must be the name of a rule ({', '.join(NAMED_RULES)}) with its lr, as rows of this collection are "
            f"updated at the end of each backward pass, got {getattr(kind, '__name__', type(kind).__name__)}; "
            "wrap(collection of TorchRec, optimizer=...) follows an optimizer of torch",
            faq="no-optimizer",
        )


def setup_from(options: Options, device: torch.device) -> Setup:
    """Return the options that do not concern rates. Raises TypeError for an unknown keyword."""
    unknown = options.keys() - Options.__annotations__.keys()
    if unknown:
        raise TypeError(
            f"unknown keyword argument {sorted(unknown)[0]}{did_you_mean(sorted(unknown)[0], Options.__annotations__)}"
        )
    own = ("policy", "budget", "host_memory", "disk", "knobs", "seed", "ids", "shared_rows")
    given = {name: value for name, value in options.items() if name in own}
    _check_ids(options)
    return Setup(**given, device=device, update=_update_from(options), group=TorchGroup.beside())  # type: ignore[arg-type]


def _check_ids(options: Options) -> None:
    """Raise ConfigError where the options of ids are wrong."""
    ids, shared_rows = options.get("ids", "rows"), options.get("shared_rows", 1)
    if ids not in ("rows", "raw"):
        raise ConfigError(f"ids must be rows or raw, got {ids!r}")
    if isinstance(shared_rows, bool) or not isinstance(shared_rows, int) or shared_rows < 1:
        raise ConfigError(f"shared_rows must be a whole number, 1 or more, got {shared_rows!r}")
    if ids == "rows" and shared_rows != 1:
        raise ConfigError(f"shared_rows must be left out unless ids are raw, got {shared_rows}")


def _update_from(options: Options) -> str:
    """Return where rows are updated. Raises ConfigError."""
    optimizer, update = options.get("optimizer"), options.get("update")
    if update not in (None, "step", "backward"):
        raise ConfigError(f"update must be step or backward, got {update!r}")
    if isinstance(optimizer, str):
        if update == "step":
            raise ConfigError(f"update must be backward for the rule {optimizer}, which no optimizer carries out, got step")
        return "backward"
    if isinstance(optimizer, (type, partial)) and update == "backward":
        raise ConfigError(
            "update must be step where the optimizer is yet to be made, as its learning rate is not known, got backward"
        )
    return update or "step"

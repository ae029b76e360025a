"""Update rules of rows and their rates, named or taken from the torch optimizer that held the tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from adaptive_rec.config.faults import describe_faults
from adaptive_rec.config.model import OptimizerConfig
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.errors import ConfigError, did_you_mean
from adaptive_rec.kernels.update_rules import NAMED_RULES, UPDATE_RULES, TorchOptimizer, UpdateRule, torch_names

NOT_SERVED = ("maximize", "amsgrad")
"""Options of torch optimizers that the update of rows does not support; they must be off."""


class Rates:
    """An update rule with its constants and its present learning rate."""

    def __init__(
        self,
        name: str,
        rule: RowRule,
        lr: float,
        optimizer: torch.optim.Optimizer | None = None,
        group: int = 0,
        decay_is_known: bool = True,
    ) -> None:
        """With an optimizer, the learning rate is always that of one of its param groups. `decay_is_known`: otherwise the weight
        decay of AdamW is known with the first step."""
        self.name, self.rule = name, rule
        self._own, self._optimizer, self._group = lr, optimizer, group
        self._decay_is_known = decay_is_known

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer whose learning rate rows follow; None where they follow none yet."""
        return self._optimizer

    @property
    def _param_group(self) -> dict[str, Any]:
        assert self._optimizer is not None
        return self._optimizer.param_groups[self._group]

    @property
    def counts_steps(self) -> bool:
        """Whether an update depends on the number of its table's updates."""
        return self.rule.catches_up or self.rule.spec.corrects_bias

    @property
    def lr(self) -> float:
        return self._own if self._optimizer is None else float(self._param_group["lr"])

    def set_lr(self, value: float) -> None:
        """Set the learning rate, also in the optimizer's param group where there is one."""
        self._own = float(value)
        if self._optimizer is not None:
            self._param_group["lr"] = value

    @property
    def shown(self) -> str:
        """The rule with its constants, by torch's names."""
        return _shown(self.name, self.rule)

    def round_rows(self, row_precision: str) -> None:
        """Have rows rounded to another type than that of their optimizer state."""
        self.rule = dataclasses.replace(self.rule, row_precision=row_precision)

    def check(self) -> None:
        """Raise ConfigError where another option of the param group than its lr has changed."""
        if self._optimizer is not None:
            self.check_group(self._optimizer, self._param_group)

    def check_group(self, optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> None:
        """Raise ConfigError where an optimizer's param group does not update rows by this rule."""
        name, found = row_rule_of(optimizer, group)
        found = dataclasses.replace(found, row_precision=self.rule.row_precision)
        if not self._decay_is_known and found.decoupled:
            self.rule, self._decay_is_known = dataclasses.replace(self.rule, decay=found.decay), True
        if name != self.name or found != self.rule:
            raise ConfigError(
                f"rows must be updated as wrap was told, by {_shown(self.name, self.rule)}, got {_shown(name, found)}; give wrap "
                f"the optimizer itself, or functools.partial(torch.optim.SGD, momentum=0.9) of one that is made later; a "
                "OneCycleLR changes neither momentum nor betas with cycle_momentum=False",
                faq="other-options-than-wrap",
            )


def _shown(name: str, rule: RowRule) -> str:
    """Return a rule with its constants, by torch's names."""
    constants = {option: rule.option(option) for option in rule.spec.options} | {"weight_decay": rule.decay}
    return f"{name}({', '.join(f'{key}={value}' for key, value in constants.items() if value)})"


def named_rates(name: str, lr: float | None, eps: float | None, betas: tuple[float, float] | None) -> Rates:
    """Return the rates of a rule given by name. Raises ConfigError."""
    if name not in NAMED_RULES:
        known, hint = ", ".join(NAMED_RULES), did_you_mean(name, NAMED_RULES)
        raise ConfigError(f"optimizer must be one of {known} or an optimizer of torch.optim, got {name!r}{hint}")
    if lr is None:
        raise ConfigError(f"lr must be given with optimizer={name!r}: the learning rate of embedding rows", faq="no-optimizer")
    values: dict[str, Any] = {"embedding": name, "embedding_lr": float(lr)}
    values["eps"] = NAMED_RULES[name].eps if eps is None else float(eps)
    if betas is not None:
        values["betas"] = tuple(map(float, betas))
    rule = _checked(values)
    return Rates(name, RowRule.of(rule), rule.embedding_lr)


def row_rule_of(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> tuple[str, RowRule]:
    """Return the name of the rule by which a param group of a torch optimizer updates rows, and the rule.

    Raises ConfigError where rows cannot follow."""
    kind = type(optimizer)
    served = _served_by(kind)
    for option in NOT_SERVED:
        if group.get(option):
            raise ConfigError(
                f"{option} of {kind.__name__} must be off for embedding rows, got {group[option]}; give the tables a param group "
                "or an optimizer without it",
                faq="optimizer-without-a-rule",
            )
    base, most = group.get("base_momentum"), group.get("max_momentum")
    if base != most:  # a scheduler that cycles them writes both into the param group when it is made
        option = "betas" if "betas" in group else "momentum"
        raise ConfigError(
            f"{option} of {kind.__name__} must stay as they are for embedding rows, got a scheduler that cycles them between "
            f"{base} and {most}; make OneCycleLR or CyclicLR with cycle_momentum=False"
        )
    spec, like = next(pair for pair in reversed(served) if not pair[1].option or group[pair[1].option])
    checked = {option: group[option] for option in ("eps", "betas") if option in spec.options}
    _checked({option: tuple(map(float, value)) if option == "betas" else float(value) for option, value in checked.items()})
    decay = float(group.get("weight_decay", 0.0))
    every_row, decoupled = bool(decay) or like.every_row, bool(group.get("decoupled_weight_decay"))
    rule = RowRule.with_options(spec, group, catches_up=every_row, decay=decay, decoupled=decoupled)
    return kind.__name__ if every_row else spec.name, rule


def lr_at(group: Mapping[str, Any], number: int) -> float:
    """Return the learning rate of a table's update of this number, with Adagrad's ``lr_decay``."""
    return float(group["lr"]) / (1 + (number - 1) * float(group.get("lr_decay", 0.0)))


def _served_by(given: type[torch.optim.Optimizer]) -> list[tuple[UpdateRule, TorchOptimizer]]:
    """Return the rules by which an optimizer updates rows, one for each option of it that asks for one. Raises ConfigError."""
    rules = [(rule, like) for rule in UPDATE_RULES for like in rule.torch if given is getattr(torch.optim, like.name)]
    if not rules:
        hint = "; Adam, AdamW and SparseAdam are served" if "Adam" in given.__name__ else ""
        raise ConfigError(
            f"optimizer must be one of torch's {', '.join(torch_names())} so that rows can be updated as it does, got "
            f"{given.__name__}{hint}. The simplest way: give the tables an optimizer of their own, "
            f"torch.optim.AdamW([model.items.weight]) say, beside the {given.__name__} of the other parameters, and hand it to "
            f"wrap; or name a rule ({', '.join(NAMED_RULES)}) and its lr",
            faq="optimizer-without-a-rule",
        )
    return rules


def rates_of_class(make: Callable[..., torch.optim.Optimizer]) -> Rates:
    """Return the rates of an optimizer that is yet to be made, by its class, or by a ``functools.partial`` of it with options."""
    kind = make.func if isinstance(make, partial) else make
    if isinstance(kind, type):
        _served_by(kind)  # before it is made: one that is not served may need more than the weights
    sample = make([torch.zeros(1, requires_grad=True)])
    _served_by(type(sample))
    (group,) = sample.param_groups
    name, rule = row_rule_of(sample, group)
    return Rates(name, rule, float(group["lr"]), decay_is_known=not rule.decoupled)


def rates_of_optimizer(optimizer: torch.optim.Optimizer, weights: Sequence[Tensor], in_backward: bool) -> Rates:
    """Return the rates of a torch optimizer that holds the tables' weights; they follow its lr. `in_backward`: whether rows are
    updated in the backward pass, without its ``step()``.

    Raises ConfigError where rows cannot be updated as the optimizer does.
    """
    _served_by(type(optimizer))
    wanted = {id(weight) for weight in weights}
    groups = [n for n, g in enumerate(optimizer.param_groups) if any(id(p) in wanted for p in g["params"])]
    held = sum(id(p) in wanted for n in groups for p in optimizer.param_groups[n]["params"])
    if held != len(wanted) or not groups or (in_backward and len(groups) > 1):
        where = " in one param group" if in_backward else ""
        raise ConfigError(
            f"optimizer must hold the weights of all {len(wanted)} tables{where}, got {held} of them in {len(groups)} groups; "
            "where others hold some, give wrap a list of all of them",
            faq="tables-of-an-optimizer",
        )
    first = optimizer.param_groups[groups[0]]
    if in_backward and first.get("lr_decay"):
        raise ConfigError(f"lr_decay must be 0 where rows are updated in the backward pass, got {first['lr_decay']}")
    rates = Rates(*row_rule_of(optimizer, first), float(first["lr"]), optimizer, groups[0])
    for number in groups[1:]:
        rates.check_group(optimizer, optimizer.param_groups[number])
    return rates


def rates_of_optimizers(
    optimizers: Sequence[torch.optim.Optimizer], weights: Mapping[str, Tensor], in_backward: bool
) -> tuple[list[Rates], list[torch.optim.Optimizer]]:
    """Return the rates of each table, and the optimizer that holds its weight: tables may have optimizers of their own.
    `weights`: those of all tables, by name. `in_backward` is as in `rates_of_optimizer`.

    Raises ConfigError where not just one of the optimizers holds a table, or rows cannot be updated as it does."""
    if len(optimizers) == 1:
        rates = rates_of_optimizer(optimizers[0], list(weights.values()), in_backward)
        return [rates] * len(weights), [*optimizers] * len(weights)
    held = [{id(one) for group in each.param_groups for one in group["params"]} for each in optimizers]
    holders = []
    for name, weight in weights.items():
        found = [optimizer for optimizer, own in zip(optimizers, held, strict=True) if id(weight) in own]
        if len(found) != 1:
            which = " and ".join(type(one).__name__ for one in found) or "none"
            raise ConfigError(f"table {name} must be held by one of the {len(optimizers)} optimizers given, it is by {which}")
        holders += found
    rates_of: dict[int, Rates] = {}
    for holder in holders:
        own = [weight for weight, other in zip(weights.values(), holders, strict=True) if other is holder]
        rates_of[id(holder)] = rates_of.get(id(holder)) or rates_of_optimizer(holder, own, in_backward)
    return [rates_of[id(holder)] for holder in holders], holders


def _checked(values: dict[str, Any]) -> OptimizerConfig:
    try:
        return OptimizerConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(describe_faults(error).replace("embedding_lr", "lr")) from None

"""Update rules of rows and their rates, named or taken from the torch optimizer that held the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from adaptive_rec.config.knobs import describe
from adaptive_rec.config.model import OptimizerConfig
from adaptive_rec.embedding.optimizer import RULES
from adaptive_rec.errors import ConfigError, did_you_mean

TORCH_RULES: dict[type[torch.optim.Optimizer], str] = {
    torch.optim.SGD: "sgd",
    torch.optim.Adagrad: "adagrad",
    torch.optim.SparseAdam: "lazy_adam",
    torch.optim.Adam: "lazy_adam",
    torch.optim.AdamW: "lazy_adam",
}
DENSE = (torch.optim.Adam, torch.optim.AdamW)
"""Optimizers that move every row at every step."""
NOT_FUSED = ("momentum", "dampening", "weight_decay", "nesterov", "maximize", "lr_decay", "amsgrad")
"""Options of torch optimizers that the update of rows does not support; they must be 0 or off."""
STATE_NAMES = {"sgd": (), "adagrad": ("sum",), "lazy_adam": ("exp_avg", "exp_avg_sq")}
"""torch's names for the parts of a row's optimizer state, in the order that the store keeps."""
TORCH_EPS = {"adagrad": 1e-10}
"""torch's defaults where they differ from those of `OptimizerConfig`."""


class Rates:
    """An update rule with its constants and its present learning rate."""

    def __init__(
        self,
        rule: OptimizerConfig,
        optimizer: torch.optim.Optimizer | None = None,
        group: int = 0,
        kind: type[torch.optim.Optimizer] | None = None,
        weight_decay: float | None = 0.0,
    ) -> None:
        """With an optimizer, the learning rate is always that of one of its param groups. `kind`: the class of the optimizer that
        updates rows. `weight_decay`: that of AdamW; None: it is known with the first step."""
        self.rule = rule
        self.is_dense = kind in DENSE
        """Whether every row moves at every step."""
        self.name = kind.__name__ if kind is not None and self.is_dense else rule.embedding
        self.weight_decay = weight_decay
        self._optimizer, self._group = optimizer, group
        self._own = rule.embedding_lr
        self._fixed = self._options()

    @property
    def lr(self) -> float:
        return self._own if self._optimizer is None else float(self._optimizer.param_groups[self._group]["lr"])

    def set_lr(self, value: float) -> None:
        """Set the learning rate, also in the optimizer's param group where there is one."""
        self._own = float(value)
        if self._optimizer is not None:
            self._optimizer.param_groups[self._group]["lr"] = value

    def check(self) -> None:
        """Raise ConfigError where another option of the param group than its lr has changed."""
        for name, value in self._options().items():
            if value != self._fixed.get(name):
                raise ConfigError(
                    f"{name} of the param group that had the tables must stay {self._fixed.get(name)}, as rows follow its lr "
                    f"only, got {value}; a OneCycleLR leaves it alone with cycle_momentum=False"
                )

    def check_group(self, optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> None:
        """Raise ConfigError where an optimizer's param group does not update rows by this rule."""
        found, own_kind = rule_of(optimizer, group), type(optimizer)
        if self.weight_decay is None:
            self.weight_decay = decoupled_decay(group)
        if (own_kind in DENSE) != self.is_dense or decoupled_decay(group) != self.weight_decay:
            raise ConfigError(
                f"rows must be updated by the kind of optimizer that wrap was given, {self.name} with weight_decay "
                f"{self.weight_decay}, got {own_kind.__name__} with {decoupled_decay(group)}"
            )
        for name in ("embedding", "eps", "betas"):
            own, other = getattr(self.rule, name, None), getattr(found, name, None)
            if own != other:
                raise ConfigError(
                    f"{name} of {type(optimizer).__name__} must stay {own} for embedding rows, got {other}; a OneCycleLR leaves "
                    "it alone with cycle_momentum=False"
                )

    def _options(self) -> dict[str, Any]:
        if self._optimizer is None:
            return {}
        group = self._optimizer.param_groups[self._group]
        return {name: group[name] for name in (*NOT_FUSED, "eps", "betas") if name in group}


def named_rates(name: str, lr: float | None, eps: float | None, betas: tuple[float, float] | None) -> Rates:
    """Return the rates of a rule given by name. Raises ConfigError."""
    if name not in RULES:
        raise ConfigError(
            f"optimizer must be one of {', '.join(RULES)} or an optimizer of torch.optim, got {name!r}{did_you_mean(name, RULES)}"
        )
    if lr is None:
        raise ConfigError(f"lr must be given with optimizer={name!r}: the learning rate of embedding rows")
    values: dict[str, Any] = {"embedding": name, "embedding_lr": float(lr)}
    values["eps"] = TORCH_EPS.get(name, OptimizerConfig().eps) if eps is None else float(eps)
    if betas is not None:
        values["betas"] = tuple(map(float, betas))
    return Rates(_rule(values))


def rule_of(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> OptimizerConfig:
    """Return the rule by which a param group of a torch optimizer updates rows. Raises ConfigError where rows cannot follow."""
    kind = _kind(type(optimizer))
    for option in NOT_FUSED:
        if group.get(option) and not (option == "weight_decay" and decoupled_decay(group)):
            raise ConfigError(
                f"{option} of {type(optimizer).__name__} must be 0 for embedding rows, got {group[option]}; "
                "give the tables a param group or an optimizer without it; a OneCycleLR leaves it alone with "
                "cycle_momentum=False"
            )
    values: dict[str, Any] = {"embedding": kind, "embedding_lr": float(group["lr"]) or 1.0}  # a warm-up may begin at 0
    values |= {name: group[name] for name in ("eps", "betas") if name in group}
    values["betas"] = tuple(map(float, values.get("betas", (0.9, 0.999))))
    return _rule(values)


def decoupled_decay(group: Mapping[str, Any]) -> float:
    """Return the weight decay of AdamW, which is apart from the gradient."""
    return float(group.get("weight_decay", 0.0)) if group.get("decoupled_weight_decay") else 0.0


def _kind(given: type[torch.optim.Optimizer]) -> str:
    kind = next((rule for known, rule in TORCH_RULES.items() if given is known), None)
    if kind is None:
        hint = "; Adam, AdamW and SparseAdam are served" if "Adam" in given.__name__ else ""
        known = ", ".join(one.__name__ for one in TORCH_RULES)
        raise ConfigError(
            f"optimizer must be one of torch's {known} for rows to be updated as it would, got {given.__name__}{hint}, "
            f"or name a rule ({', '.join(RULES)}) and its lr"
        )
    return kind


def rates_of_class(given: type[torch.optim.Optimizer]) -> Rates:
    """Return the rates of an optimizer that is yet to be made, with the defaults of its class."""
    _kind(given)
    make: Any = given
    sample = make([torch.zeros(1, requires_grad=True)])
    (group,) = sample.param_groups
    return Rates(rule_of(sample, group), kind=given, weight_decay=None)


def rates_of_optimizer(optimizer: torch.optim.Optimizer, weights: Sequence[Tensor], one_group: bool) -> Rates:
    """Return the rates of a torch optimizer that holds the tables' weights, if asked for in one param group; they follow its lr.

    Raises ConfigError where rows cannot be updated as the optimizer does.
    """
    _kind(type(optimizer))
    wanted = {id(weight) for weight in weights}
    groups = [n for n, g in enumerate(optimizer.param_groups) if any(id(p) in wanted for p in g["params"])]
    held = sum(id(p) in wanted for n in groups for p in optimizer.param_groups[n]["params"])
    if held != len(wanted) or not groups or (one_group and len(groups) > 1):
        where = " in one param group" if one_group else ""
        raise ConfigError(
            f"optimizer must hold the weights of all {len(wanted)} tables{where}, got {held} of them in {len(groups)} groups"
        )
    first = optimizer.param_groups[groups[0]]
    rates = Rates(rule_of(optimizer, first), optimizer, groups[0], type(optimizer), decoupled_decay(first))
    for number in groups[1:]:
        rates.check_group(optimizer, optimizer.param_groups[number])
    return rates


def take_state(optimizer: torch.optim.Optimizer, weight: Tensor) -> dict[str, Any]:
    """Remove the state that an optimizer keeps for a weight, and return it."""
    state: Any = optimizer.state
    return dict(state.pop(weight, {}))


def _rule(values: dict[str, Any]) -> OptimizerConfig:
    try:
        return OptimizerConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(describe(error).replace("embedding_lr", "lr")) from None

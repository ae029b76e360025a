"""Update rules of rows and their rates, named or taken from the torch optimizer that held the tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from adaptive_rec.config.knobs import describe
from adaptive_rec.config.model import OptimizerConfig
from adaptive_rec.embedding.optimizer import RULES
from adaptive_rec.errors import ConfigError, did_you_mean

TORCH_RULES: dict[type[torch.optim.Optimizer], str] = {
    torch.optim.SGD: "sgd",
    torch.optim.Adagrad: "adagrad",
    torch.optim.SparseAdam: "lazy_adam",
}
NOT_FUSED = ("momentum", "dampening", "weight_decay", "nesterov", "maximize", "lr_decay")
"""Options of torch optimizers that the update of rows does not support; they must be 0 or off."""
STATE_NAMES = {"sgd": (), "adagrad": ("sum",), "lazy_adam": ("exp_avg", "exp_avg_sq")}
"""torch's names for the parts of a row's optimizer state, in the order that the store keeps."""
TORCH_EPS = {"adagrad": 1e-10}
"""torch's defaults where they differ from those of `OptimizerConfig`."""


class Rates:
    """An update rule with its constants and its present learning rate."""

    def __init__(self, rule: OptimizerConfig, optimizer: torch.optim.Optimizer | None = None, group: int = 0) -> None:
        """With an optimizer, the learning rate is always that of one of its param groups."""
        self.rule = rule
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


def rates_of_optimizer(optimizer: torch.optim.Optimizer, weights: Sequence[Tensor]) -> Rates:
    """Return the rates of a torch optimizer that holds the tables' weights; they follow the ``lr`` of its param group.

    Raises ConfigError where rows cannot be updated as the optimizer does.
    """
    kind = next((rule for known, rule in TORCH_RULES.items() if type(optimizer) is known), None)
    if kind is None:
        hint = (
            "; only rows that were looked up are updated, so take SparseAdam"
            if "Adam" in type(optimizer).__name__
            else ""
        )
        known = ", ".join(one.__name__ for one in TORCH_RULES)
        raise ConfigError(
            f"optimizer must be one of torch's {known} for rows to be updated as it would, got {type(optimizer).__name__}{hint}, "
            f"or name a rule ({', '.join(RULES)}) and its lr"
        )
    wanted = {id(weight) for weight in weights}
    groups = [n for n, g in enumerate(optimizer.param_groups) if any(id(p) in wanted for p in g["params"])]
    held = sum(id(p) in wanted for n in groups for p in optimizer.param_groups[n]["params"])
    if len(groups) != 1 or held != len(wanted):
        raise ConfigError(
            f"optimizer must hold the weights of all {len(wanted)} tables in one param group, "
            f"got {held} of them in {len(groups)} groups"
        )
    group = optimizer.param_groups[groups[0]]
    for option in NOT_FUSED:
        if group.get(option):
            raise ConfigError(
                f"{option} of {type(optimizer).__name__} must be 0 for embedding rows, got {group[option]}; "
                "give the tables a param group or an optimizer without it"
            )
    values: dict[str, Any] = {"embedding": kind, "embedding_lr": float(group["lr"]) or 1.0}  # a warm-up may begin at 0
    values |= {name: group[name] for name in ("eps", "betas") if name in group}
    values["betas"] = tuple(map(float, values.get("betas", (0.9, 0.999))))
    return Rates(_rule(values), optimizer, groups[0])


def take_out(optimizer: torch.optim.Optimizer, weights: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Remove weights from an optimizer. Returns the state that it kept for each."""
    wanted = {id(weight) for weight in weights}
    for group in optimizer.param_groups:
        group["params"] = [p for p in group["params"] if id(p) not in wanted]
    state: Any = optimizer.state
    return [state.pop(weight, {}) if isinstance(weight, nn.Parameter) else {} for weight in weights]


def _rule(values: dict[str, Any]) -> OptimizerConfig:
    try:
        return OptimizerConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(describe(error).replace("embedding_lr", "lr")) from None

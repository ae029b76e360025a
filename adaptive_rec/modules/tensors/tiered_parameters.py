"""Modules with parameters whose rows lie in the tiers of a runtime."""

from __future__ import annotations

import copy
import copyreg
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from adaptive_rec.errors import ConfigError
from adaptive_rec.modules.tensors import weight_functions  # noqa: F401 - it registers its functions
from adaptive_rec.modules.tensors.tiered_tensor import cannot_be
from adaptive_rec.modules.tensors.weight import TieredWeight


class TieredParameters(nn.Module):
    """Base of modules with a `TieredWeight`. State dicts hold ordinary copies of the rows; a copy of the module, or the module
    that ``torch.save`` writes, is an ordinary one."""

    plain_class: type[nn.Module] = nn.Module
    """Class of the module without tiers."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, nn.Parameter) and not isinstance(value, TieredWeight) and name in tiered_weights(self):
            raise ConfigError(
                f"{name} of {type(self).__name__} must stay the parameter that it is, as its rows are in two tiers; write to it "
                f"with {name}.copy_() under torch.no_grad()"
            )
        super().__setattr__(name, value)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if not keep_vars:
            for name, weight in tiered_weights(self).items():
                destination[prefix + name] = weight.copy_for(destination.values())

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any) -> None:
        given = self._given_rows(state_dict, prefix, local_metadata)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)
        for weight, values in given:
            weight.was_loaded(values)

    def _given_rows(self, state_dict: Any, prefix: str, local_metadata: Any) -> list[tuple[TieredWeight, Tensor]]:
        """Return the weights for which a state dict has rows, with these. Raises ConfigError where it is loaded with
        ``assign=True``, by which its tensors would become the parameters, ConflictError where they are outdated."""
        if local_metadata.get("assign_to_params_buffers"):
            raise ConfigError("load_state_dict must be called without assign=True for a model with tables in two tiers")
        found = []
        for name, weight in tiered_weights(self).items():
            if isinstance(values := state_dict.get(prefix + name), Tensor):
                weight.check_not_outdated(values, prefix + name)
                found.append((weight, values))
        return found

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Move or convert what is not in tiers. Tables stay where they are: another device or type for them is refused."""
        tables = tiered_weights(self)
        for name, weight in tables.items():
            given = torch.empty(0, dtype=weight.dtype, device=weight.device)
            found = fn(given)
            if found.dtype != given.dtype:
                raise ConfigError(
                    f"{name} of {type(self).__name__} must keep its type, {given.dtype}, once its table is in two tiers, got "
                    f"{found.dtype}: convert the model before wrap",
                    faq="moved-after-wrap",
                )
            if found.device.type == "cpu" and found.is_shared():
                raise ConfigError(
                    f"share_memory must not be called on {type(self).__name__} once the table of its {name} is in two tiers, as "
                    "rows are not in shared memory and other processes would train none: share copy.deepcopy(model), which is an "
                    "ordinary model, or adaptive_rec.unwrap the model before"
                )
            if found.device != given.device:
                raise ConfigError(
                    f"{name} of {type(self).__name__} must stay on {given.device} once its table is in two tiers, got "
                    f"{found.device}: move the model before wrap",
                    faq="moved-after-wrap",
                )
            del self._parameters[name]
        try:
            return super()._apply(fn, recurse)
        finally:
            self._parameters.update(cast("dict[str, nn.Parameter]", tables))

    def __prepare_scriptable__(self) -> Any:
        raise cannot_be("torch.jit.script")

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        self._check_copy()
        made = object.__new__(self.plain_class if tiered_weights(self) else type(self))
        memo[id(self)] = made
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._check_copy()
        if not tiered_weights(self):
            return super().__reduce_ex__(protocol)
        return copyreg._reconstructor, (self.plain_class, object, None), self.__dict__  # type: ignore[attr-defined]

    def _check_copy(self) -> None:
        """Raise TypeError where there can be no ordinary copy of the module."""


def tiered_weights(module: nn.Module) -> dict[str, TieredWeight]:
    """Return the weights in tiers that a module itself holds, by their names."""
    parameters: dict[str, Any] = module._parameters
    return {name: one for name, one in parameters.items() if isinstance(one, TieredWeight)}

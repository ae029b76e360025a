"""Whole tables of a runtime in and out of state dicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from torch import Tensor

if TYPE_CHECKING:
    from adaptive_rec.modules.embedding_runtime import EmbeddingRuntime


class NotCopied:
    """A module whose rows are a runtime's: a copy would share them or lose them, so it says what to do instead."""

    runtime: EmbeddingRuntime | None

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.runtime is None:
            return super().__reduce_ex__(protocol)
        self._refuse()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if self.runtime is not None:
            self._refuse()
        copied = self.__class__.__new__(self.__class__)
        memo[id(self)] = copied
        from copy import deepcopy

        copied.__dict__.update({name: deepcopy(value, memo) for name, value in self.__dict__.items()})
        return copied

    def _refuse(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} must be saved and copied by its state_dict() (and runtime.state_dict()), "
            "as its rows live in the runtime's tiers"
        )


def tell_unexpected(
    state_dict: Mapping[str, Tensor],
    prefix: str,
    known: set[str],
    local_metadata: Any,
    strict: bool,
    missing_keys: list[str],
    unexpected_keys: list[str],
    error_msgs: list[str],
) -> None:
    """Name the keys of a module that it does not have, likewise."""
    if strict:
        unexpected_keys += [key for key in state_dict if key.startswith(prefix) and key not in known]


def take_table(
    runtime: EmbeddingRuntime,
    table: int,
    state_dict: Mapping[str, Tensor],
    key: str,
    missing_keys: list[str],
    unexpected_keys: list[str],
    error_msgs: list[str],
) -> None:
    """Set a table's rows from a state dict, in the manner of ``nn.Module._load_from_state_dict``."""
    if key not in state_dict:
        missing_keys.append(key)
        return
    spec, given = runtime.store.space.tables[table], state_dict[key]
    if tuple(given.shape) != (spec.rows, spec.dim):
        error_msgs.append(
            f"size mismatch for {key}: the table is {(spec.rows, spec.dim)}, the state dict has {tuple(given.shape)}"
        )
        return
    runtime.set_table(table, given)

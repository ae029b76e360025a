"""Modules whose rows lie in a runtime."""

from __future__ import annotations

from typing import Any

from torch import nn

from adaptive_rec.modules.embedding_runtime import EmbeddingRuntime


class TieredModule(nn.Module):
    """Base of modules with tables in two tiers. State dicts hold copies of the rows; the modules themselves cannot be copied,
    as a copy would share the rows or lose them."""

    runtime: EmbeddingRuntime | None
    """None where the module holds its table as an ordinary parameter."""

    def _tables_by_key(self) -> dict[str, int]:
        """Numbers of the module's tables in the runtime, by their keys in the module's state dict."""
        raise NotImplementedError

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.runtime is not None:
            for key, table in self._tables_by_key().items():
                destination[prefix + key] = self.runtime.table(table)

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        if self.runtime is None:
            super()._load_from_state_dict(
                state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
            )
            return
        tables = {prefix + key: table for key, table in self._tables_by_key().items()}
        for key, table in tables.items():
            spec, given = self.runtime.store.space.tables[table], state_dict.get(key)
            if given is None:
                missing_keys.append(key)
            elif tuple(given.shape) != (spec.rows, spec.dim):
                error_msgs.append(
                    f"size mismatch for {key}: the table is {(spec.rows, spec.dim)}, the state dict has {tuple(given.shape)}"
                )
            else:
                self.runtime.set_table(table, given)
        if strict:
            unexpected_keys += [key for key in state_dict if key.startswith(prefix) and key not in tables]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse `copy.copy`, `copy.deepcopy` and pickling, which all come here."""
        if self.runtime is None:
            return super().__reduce_ex__(protocol)
        raise TypeError(
            f"{type(self).__name__} must be saved and copied by its state_dict() (and runtime.state_dict()), "
            "as its rows live in the runtime's tiers"
        )

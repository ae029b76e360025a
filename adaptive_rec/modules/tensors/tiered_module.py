"""Modules whose tables lie in a runtime."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adaptive_rec.errors import ConfigError
from adaptive_rec.modules.loop.bags import Bags, CallKey
from adaptive_rec.modules.loop.embedding_runtime import EmbeddingRuntime
from adaptive_rec.modules.loop.ids import LoopIds
from adaptive_rec.modules.loop.inputs import as_ids, bags_of, check_integers, why_no_raw_ids
from adaptive_rec.modules.tensors.tiered_parameters import TieredParameters, tiered_weights
from adaptive_rec.modules.tensors.weight import TieredWeight

RAW_IDS = "raw_ids"
"""Name in a state dict of the raw ids that have a row of their own, each with the number of its row in the weight (K, 2)."""


class TieredModule(TieredParameters):
    """Base of modules of embeddings with a `TieredWeight`."""

    @property
    def runtime(self) -> EmbeddingRuntime | None:
        """The runtime that has the rows; None where the module holds its table as an ordinary parameter."""
        weight = self._parameters.get("weight")
        return weight.runtime if isinstance(weight, TieredWeight) else None

    def weight_for(self, input: Tensor) -> TieredWeight | None:
        """Return the weight for a forward call, which then need not go through torch's own function; None where it must, as the
        table is an ordinary parameter, or torch traces the call or maps it over batches."""
        weight = self._parameters.get("weight")
        by_torch = torch._C._is_tracing() or torch._C._functorch.is_batchedtensor(input)
        return weight if isinstance(weight, TieredWeight) and not by_torch else None

    def parts(self, given: Any) -> Iterator[tuple[CallKey, Bags]]:
        """Yield the bags of an input, for `EmbeddingRuntime.prefetch`: ids, or for bags also (ids, offsets)."""
        weight, padding_idx = next(iter(tiered_weights(self).values())), self.padding_row
        pools = isinstance(self, nn.EmbeddingBag)
        input, offsets = given if pools and isinstance(given, tuple) and len(given) == 2 else (given, None)
        if not isinstance(input, Tensor) or not isinstance(offsets, Tensor | None):
            got = tuple(type(part).__name__ for part in given) if isinstance(given, tuple) else type(given).__name__
            raise ValueError(f"it must be a tensor of ids{', or (ids, offsets)' if pools else ''}, got {got}")
        input = self.rows_of(input, offsets, ahead=True)
        if isinstance(self, nn.EmbeddingBag):
            how = self.mode, self.include_last_offset, padding_idx
            yield weight.key(how, padding_idx, input, offsets), weight.bags(input, offsets, *how)
        else:
            yield weight.key(None, padding_idx, input), weight.single_bags(input, padding_idx)

    # Raw ids ---------------------------------------------------------------------------------------------------------

    @property
    def raw_ids(self) -> LoopIds | None:
        """The raw ids that the module looks up; None where ids are rows."""
        runtime = self.runtime
        return None if runtime is None else runtime.raw_ids

    @property
    def padding_row(self) -> int | None:
        """The row of padding: `padding_idx` itself, or the last row where ids are raw."""
        padding_idx: int | None = getattr(self, "padding_idx", None)
        if padding_idx is None or self.raw_ids is None:
            return padding_idx
        return len(self._weight()) - 1

    def rows_of(
        self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None, ahead: bool = False
    ) -> Tensor:
        """Return the numbers of rows in place of raw ids; where ids are rows, the input itself. `ahead`: whether the call is
        announced, not made. Raises ValueError, before any id is counted, where the input does not fit the module."""
        raw = self.raw_ids
        if raw is None:
            return input
        check_integers("input", input)
        ids_N = as_ids(input.reshape(-1))
        used = np.ones(len(ids_N), dtype=np.bool_)
        padding_idx: Any = getattr(self, "padding_idx", None)
        if padding_idx is not None:
            used = ids_N != padding_idx
        if isinstance(self, nn.EmbeddingBag):
            in_bags = bags_of(input, offsets, per_sample_weights, self.include_last_offset, None)
            if padding_idx is None:
                used[len(in_bags.ids_N) :] = False
        unused = self.padding_row or 0

        def rows(found: list[NDArray[np.int64]]) -> Tensor:
            row_N = np.full(len(ids_N), unused, dtype=np.int64)
            row_N[used] = found[0]
            return torch.from_numpy(row_N).view(input.shape)

        key, ids = CallKey.of(id(self), input, offsets), [(self._weight().table, ids_N[used])]
        return raw.number_ahead(key, ids, rows) if ahead else raw.number(key, ids, rows, self.training)

    def keys_and_rows(self, chunk_rows: int = 1 << 16) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the raw ids (K) that have a row of their own, with the values of these rows (K, D), some at a time. Raises
        ConfigError where ids are rows."""
        if self.raw_ids is None:
            raise ConfigError(f"ids of {type(self).__name__} must be raw for keys_and_rows, they are rows")
        weight = self._weight()
        key_K, row_K = self.raw_ids.keys_and_rows(weight.table)
        for first in range(0, len(key_K), chunk_rows):
            some = slice(first, first + chunk_rows)
            yield torch.from_numpy(key_K[some].copy()), weight.rows(row_K[some])

    def raw_rows(self) -> tuple[Tensor, int, int]:
        """Return the raw ids that have a row of their own, with its number (K, 2), the rows that others share, and the salt of
        the hash by which they do."""
        raw, table = self.raw_ids, self._weight().table
        assert raw is not None, "ids are raw"
        return torch.from_numpy(np.stack(raw.keys_and_rows(table), axis=1)), raw.shared_rows, raw.salt(table)

    def _weight(self) -> TieredWeight:
        return next(iter(tiered_weights(self).values()))

    # As a module of torch --------------------------------------------------------------------------------------------

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.raw_ids is not None:
            destination[prefix + RAW_IDS] = self.raw_rows()[0]

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, strict: bool, missing_keys: list[str],
        unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        self._given_rows(state_dict, prefix, local_metadata)  # what is refused is refused before raw ids are loaded
        rest = strict, missing_keys, unexpected_keys, error_msgs
        if wrong := self._load_raw_ids(state_dict, prefix):
            error_msgs.append(wrong)
            return
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)
        if self.raw_ids is not None and prefix + RAW_IDS in unexpected_keys:
            unexpected_keys.remove(prefix + RAW_IDS)

    def _load_raw_ids(self, state_dict: Any, prefix: str) -> str:
        """Load the raw ids of a state, where the module has such. Returns why they do not fit, or nothing; where they do not,
        nothing has changed."""
        name, saved, rows = prefix + RAW_IDS, state_dict.get(prefix + RAW_IDS), state_dict.get(prefix + "weight")
        if self.raw_ids is None or (saved is None and rows is None):
            return ""
        if saved is None or rows is None:
            return f"{name} and {prefix}weight must come together, as rows are those of raw ids, got one without the other"
        if rows.shape != self._weight().shape:
            return f"{prefix}weight must be of shape {tuple(self._weight().shape)}, got {tuple(rows.shape)}"
        raw, table = self.raw_ids, self._weight().table
        if wrong := why_no_raw_ids(saved, raw.shared_rows, raw.rows_T[table]):
            return f"{name} {wrong}"
        raw.load_keys(table, saved.detach().cpu().numpy())
        return ""

    def _check_copy(self) -> None:
        if self.raw_ids is not None:
            raise TypeError(
                f"{type(self).__name__} with raw ids must be saved and copied by its state_dict() (and runtime.state_dict()): an "
                "ordinary module has no ids for its rows"
            )


@cache
def tiered_class(plain: Any) -> type[nn.Module]:
    """Return the class of a module of this class whose table lies in two tiers: it computes the same."""
    members: dict[str, Any] = {"plain_class": plain, "__module__": plain.__module__}
    if not issubclass(plain, (nn.Embedding, nn.EmbeddingBag)):
        return type(f"Adaptive{plain.__name__}", (TieredParameters, plain), members)
    members["forward"] = torch.compiler.disable(plain.forward)  # a compiled model calls it uncompiled
    return type(f"Adaptive{plain.__name__}", (TieredModule, plain), members)

"""Raw ids for `wrap`: which modules of a model are given such, and which rows of them keep their values."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adaptive_rec.embedding.row_types import as_array
from adaptive_rec.errors import ConfigError
from adaptive_rec.modules.api.wrap_tables import MovableTable
from adaptive_rec.modules.loop.embedding_runtime import EmbeddingRuntime
from adaptive_rec.modules.loop.inputs import INTEGERS, as_ids
from adaptive_rec.system.group import Group

Keys = Mapping[str, Tensor | None]
"""Names of modules, each with the raw ids (K) of its first K rows, or None where its rows are dropped."""

CHUNK_ROWS = 1 << 18


class RawTable:
    """A table whose modules are given raw ids from now on."""

    def __init__(self, table: MovableTable, ids_K: Tensor | None) -> None:
        """Raises ConfigError where the table or the ids of its rows do not fit."""
        self.table = table
        self.padding_idx = _check_modules(table)
        """The id of padding, which is that of the row of padding so far."""
        self.keys_K = _checked(table.name, table.weight, ids_K, self.padding_idx)
        """Ids of rows that keep their values, and the numbers of these rows so far."""
        self.row_K = np.arange(len(self.keys_K))
        if self.padding_idx is not None:
            kept = self.row_K != self.padding_idx
            self.keys_K, self.row_K = self.keys_K[kept], self.row_K[kept]

    def move(self, runtime: EmbeddingRuntime, number: int, holder: torch.optim.Optimizer | None) -> None:
        """Set the rows of the runtime's table, and have the state of an optimizer that holds the weight be one of these rows."""
        raw, weight = runtime.raw_ids, self.table.weight.detach()
        assert raw is not None
        to_K, last = raw.shared_rows + np.arange(len(self.keys_K)), runtime.space.tables[number].rows - 1
        raw.load_keys(number, np.stack([self.keys_K, to_K], axis=1))
        for low in range(0, len(to_K), CHUNK_ROWS):
            some = slice(low, low + CHUNK_ROWS)
            runtime.weights.set_rows(number, to_K[some], weight[torch.from_numpy(self.row_K[some]).to(weight.device)])
        if self.padding_idx is not None:
            runtime.weights.set_rows(number, np.array([last]), weight[self.padding_idx][None])
        if holder is None or self.table.weight not in holder.state:
            return
        state: Any = holder.state[self.table.weight]
        if not len(to_K):
            holder.state.pop(self.table.weight)  # it begins anew with the rows
        for name in runtime.tables.rates.rule_of(number).state_names:
            if (part := state.get(name)) is not None:
                state[name] = part.new_zeros((last + 1, part.shape[1]))
                state[name][torch.from_numpy(to_K)] = part[torch.from_numpy(self.row_K)]


def raw_tables(tables: list[MovableTable], left: list[tuple[str, str]], keys: Keys | None) -> list[RawTable]:
    """Return the tables that `keys` names, and add others to those that are left. Raises ConfigError."""
    names = [name for table in tables for name, _ in table.modules if name]
    if not keys:
        raise ConfigError(
            f"keys must name the modules that are given raw ids ({', '.join(names)}), each with the ids of its first rows, which "
            f"keep their values, or with None, which drops its rows; got {keys}"
        )
    reasons = dict(left)
    for name in keys:
        if name not in names:
            why = reasons.get(name, f"there are {', '.join(names)}")
            raise ConfigError(f"keys must name modules of the model whose tables can be moved, got {name}: {why}")
    found = []
    for table in tables:
        given = [name for name, _ in table.modules if name in keys]
        if len(given) > 1:
            raise ConfigError(f"keys must name a table once, {given[0]} and {given[1]} have the same")
        if given:
            found.append(RawTable(table, keys[given[0]]))
        else:
            left += [
                (name, "its ids are numbers of rows, as keys does not name it") for name, _ in table.modules if name
            ]
    return found


def check_same_raw_ids(group: Group, tables: list[RawTable]) -> None:
    """Raise ConfigError on all ranks where one has other ids or values for rows."""
    for raw in tables if not group.is_alone else ():
        values = raw.table.weight.detach()[torch.from_numpy(raw.row_K)]
        digest = zlib.crc32(as_array(values.cpu().contiguous()).tobytes(), zlib.crc32(raw.keys_K.tobytes()))
        for rank, other in enumerate(group.gather(np.array([digest]))[:, 0].tolist()):
            if other != digest:
                rule = "ids and values of rows must be the same on all ranks where ids are raw"
                raise ConfigError(
                    f"{rule}, those of {raw.table.name} on rank {rank} are not those of rank {group.rank}"
                )


def _check_modules(table: MovableTable) -> int | None:
    """Return the padding id of a table's modules. Raises ConfigError where they cannot be given raw ids."""
    paddings = set()
    for name, module in table.modules:
        if type(module) not in (nn.Embedding, nn.EmbeddingBag):
            what = f"{name}, of {type(module).__name__}," if name else f"a module {type(module).__name__}"
            raise ConfigError(
                f"a module with raw ids must be an nn.Embedding or nn.EmbeddingBag, {what} has the weight of {table.name}, whose "
                "rows it would read by their numbers"
            )
        padding_idx: Any = module.padding_idx
        paddings.add(padding_idx)
    if len(paddings) > 1:
        raise ConfigError(
            f"modules with the table {table.name} must have one padding_idx where ids are raw, got {paddings}"
        )
    gradient = table.weight.grad
    if gradient is not None and bool((gradient._values() if gradient.is_sparse else gradient).any()):
        raise ConfigError(
            f"the weight of {table.name} must have no gradient when its ids become raw: zero it (after its step)"
        )
    return next(iter(paddings))


def _checked(name: str, weight: Tensor, ids_K: Tensor | None, padding_idx: int | None) -> NDArray[np.int64]:
    """Return the ids of a table's first rows. Raises ConfigError."""
    if ids_K is None:
        return np.empty(0, dtype=np.int64)
    if not isinstance(ids_K, Tensor) or ids_K.dim() != 1 or ids_K.dtype not in INTEGERS:
        got = f"{tuple(ids_K.shape)} of {ids_K.dtype}" if isinstance(ids_K, Tensor) else type(ids_K).__name__
        raise ConfigError(f"keys of {name} must be a tensor (K) of torch.int64, or None, got {got}")
    keys_K = as_ids(ids_K)
    if not 0 < len(keys_K) <= len(weight):
        raise ConfigError(
            f"keys of {name} must be 1 to {len(weight)}, one for each of its first rows, got {len(keys_K)}"
        )
    if len(np.unique(keys_K)) < len(keys_K):
        raise ConfigError(f"keys of {name} must differ, some are given twice")
    if padding_idx is not None:
        places = np.flatnonzero(keys_K == padding_idx)
        if len(places) != (padding_idx < len(keys_K)) or (places != padding_idx).any():
            rule = f"keys of {name} must have its padding_idx, {padding_idx}, at that very place, which is the row of padding"
            raise ConfigError(f"{rule}, got {keys_K[padding_idx] if padding_idx < len(keys_K) else 'it elsewhere'}")
    return keys_K

"""What TorchRec's collections have in common over tables in two tiers: configurations, names, types and first rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from adaptive_rec.batch import TableSpec
from adaptive_rec.errors import ConfigError
from adaptive_rec.modules.api.options import Options, rates_from, setup_from
from adaptive_rec.modules.loop.bags import Bags, CallKey
from adaptive_rec.modules.loop.embedding_runtime import EmbeddingRuntime
from adaptive_rec.modules.loop.setup import Setup

DATA_TYPES = {"FP32": torch.float32, "FP16": torch.float16, "BF16": torch.bfloat16}
"""TorchRec's names of the types that tables may have."""
OUTPUTS = torch.float32, torch.float64, torch.bfloat16, torch.float16


@dataclass
class EmbeddingBagConfig:
    """A table and the features that look it up; it has those fields of TorchRec's class of this name that apply here."""

    name: str
    embedding_dim: int
    num_embeddings: int
    feature_names: list[str]
    pooling: Any = "sum"
    """"sum" or "mean", or TorchRec's PoolingType."""
    init_fn: Callable[[Tensor], Any] | None = None
    """Sets the first rows in place. None: U(-1/sqrt(rows), 1/sqrt(rows)), as in TorchRec."""


class TableCollection(nn.Module):
    """Base of the collections: tables in a runtime of their own, looked up by the features of a KeyedJaggedTensor."""

    def __init__(
        self, name: str, tables: Sequence[Any], device: torch.device | str | None, dtype: torch.dtype | None,
        output_dtype: torch.dtype | None, options: Options,
    ) -> None:  # fmt: skip
        """`name`: that of the module that has the tables."""
        super().__init__()
        check_tables(tables)
        self._output_dtype = output_type(dtype := dtype or type_of_tables(tables), output_dtype)
        self._tables = list(tables)
        place = torch.device(device) if device is not None and str(device) != "meta" else torch.get_default_device()
        rates, setup = rates_from(options), setup_from(options, place)
        self.runtime = EmbeddingRuntime(specs_of(tables, setup), setup, rates, dtype)
        self.runtime.register(name, self)
        for number, table in enumerate(tables if not setup.raw else ()):
            self.runtime.weights.set_first_rows(number, partial(init_rows, table))

    @property
    def device(self) -> torch.device:
        """The device of vectors and hot rows."""
        return self.runtime.device

    def parts(self, given: Any) -> Iterator[tuple[CallKey, Bags]]:
        """Yield the lookups of a KeyedJaggedTensor, for `EmbeddingRuntime.prefetch`."""
        raise NotImplementedError

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse `copy.copy`, `copy.deepcopy` and pickling, which all come here."""
        raise TypeError(
            f"{type(self).__name__} must be saved and copied by its state_dict() (and runtime.state_dict()), "
            "as its rows live in the runtime's tiers"
        )


def specs_of(tables: Sequence[Any], setup: Setup) -> list[TableSpec]:
    """Return the tables with all their rows. Raises ConfigError where raw ids do not fit a table."""
    for table in tables if setup.raw else ():
        _check_drawn(table)
    return [TableSpec(table.name, setup.rows_of_table(table.num_embeddings), table.embedding_dim) for table in tables]


def _check_drawn(table: Any) -> None:
    """Raise ConfigError where a table's first rows are to be others than those drawn for raw ids, U(-1/sqrt(rows), 1/sqrt(rows)).
    TorchRec's configurations have a function for that by default."""
    init, bound = getattr(table, "init_fn", None), 1 / math.sqrt(table.num_embeddings)
    limits = getattr(init, "keywords", {})
    is_default = getattr(init, "func", None) is nn.init.uniform_ and all(
        math.isclose(limits.get(name, math.nan), limit) for name, limit in (("a", -bound), ("b", bound))
    )
    given = [getattr(table, f"weight_init_{name}", None) for name in ("min", "max")]
    if (init is not None and not is_default) or any(limit is not None for limit in given):
        raise ConfigError(
            f"init_fn and weight_init of table {table.name} must be left out where ids are raw, as rows begin with values drawn "
            "for their ids"
        )


def check_tables(tables: Sequence[Any]) -> None:
    names = [table.name for table in tables]
    if not names:
        raise ConfigError("tables must hold at least one table, got none")
    if len(set(names)) != len(names):
        raise ConfigError(f"names of tables must differ, got {', '.join(names)}")
    for table in tables:
        if not table.feature_names:
            raise ConfigError(f"feature_names of table {table.name} must hold at least one feature, got none")


def type_of_tables(tables: Sequence[Any]) -> torch.dtype:
    """Return the type that the `data_type` of TorchRec's configurations names, which all must share, as the rows of a runtime are
    of one type; torch's default where they have none. Raises ConfigError."""
    found = {str(getattr(kind, "value", kind)) for table in tables if (kind := getattr(table, "data_type", None)) is not None}
    if len(found) > 1 or not found <= DATA_TYPES.keys():
        raise ConfigError(
            f"data_type of all tables must be the same, one of {', '.join(DATA_TYPES)}, got {', '.join(sorted(found))}; make a "
            "collection of the tables of each type, or give one type for all of them (dtype=torch.float32)"
        )
    return DATA_TYPES[found.pop()] if found else torch.get_default_dtype()


def output_type(dtype: torch.dtype, wanted: torch.dtype | None) -> torch.dtype:
    """Return the type of the vectors of tables of a type. Raises ConfigError where it is not a type of floating-point numbers."""
    if wanted is not None and wanted not in OUTPUTS:
        raise ConfigError(f"output_dtype must be one of {', '.join(map(str, OUTPUTS))}, got {wanted}")
    return wanted or (torch.float32 if dtype.itemsize == 2 else dtype)


def names_by_table(tables: Sequence[Any]) -> list[list[str]]:
    """Return the names that each table's features have in the output: with the table's name where several tables read one."""
    read = [name for table in tables for name in table.feature_names]
    shared = {name for name in read if read.count(name) > 1}
    return [[f"{name}@{table.name}" if name in shared else name for name in table.feature_names] for table in tables]


def is_mean(table: Any) -> bool:
    """Return whether a table's bags are averaged. Raises ConfigError for an unknown pooling."""
    pooling = str(getattr(table.pooling, "value", table.pooling)).lower()
    if pooling not in ("sum", "mean"):
        raise ConfigError(f"pooling of table {table.name} must be sum or mean, got {table.pooling!r}")
    return pooling == "mean"


def init_rows(table: Any, rows: Tensor) -> None:
    """Set a table's first rows."""
    with torch.no_grad():
        if getattr(table, "init_fn", None) is not None:
            table.init_fn(rows)
            return
        bound = 1 / math.sqrt(table.num_embeddings)
        low, high = getattr(table, "weight_init_min", None), getattr(table, "weight_init_max", None)
        rows.uniform_(-bound if low is None else low, bound if high is None else high)

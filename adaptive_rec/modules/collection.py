"""TorchRec's ``EmbeddingBagCollection`` over tables in two tiers, in one process; it does not need TorchRec."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adaptive_rec.batch import TableSpec
from adaptive_rec.errors import ConfigError
from adaptive_rec.modules.bag import AdaptiveEmbeddingBag
from adaptive_rec.modules.bags import Bags, CallKey, PoolTables
from adaptive_rec.modules.embedding_runtime import EmbeddingRuntime
from adaptive_rec.modules.inputs import check_integers
from adaptive_rec.modules.keyed import Keyed, KeyedBatches, NumberedFeatures
from adaptive_rec.modules.options import Options, Setup, rates_from, setup_from
from adaptive_rec.modules.pooling import weighted_sums
from adaptive_rec.modules.uploads import to_device
from adaptive_rec.modules.weight import TieredWeight

DATA_TYPES = {"FP32": torch.float32, "FP16": torch.float16, "BF16": torch.bfloat16}
"""TorchRec's names of the types that tables may have."""


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


class PooledVectors:
    """Pooled vectors of features, side by side (samples, sum of dims), as in TorchRec's KeyedTensor."""

    def __init__(self, keys: Sequence[str], length_per_key: Sequence[int], values: Tensor) -> None:
        self._keys, self._lengths, self._values = list(keys), list(length_per_key), values

    def keys(self) -> list[str]:
        return self._keys

    def values(self) -> Tensor:
        return self._values

    def length_per_key(self) -> list[int]:
        return self._lengths

    def offset_per_key(self) -> list[int]:
        """Return the first column of each feature, and the end of the last."""
        return np.cumsum([0, *self._lengths]).tolist()

    def to_dict(self) -> dict[str, Tensor]:
        """Return the vectors (samples, dim) of each feature."""
        return dict(zip(self._keys, self._values.split(self._lengths, dim=1), strict=True))

    def __getitem__(self, key: str) -> Tensor:
        if key not in self._keys:
            raise KeyError(f"no feature {key!r}, there are {', '.join(self._keys)}")
        first = self.offset_per_key()[self._keys.index(key)]
        return self._values[:, first : first + self._lengths[self._keys.index(key)]]


@dataclass(frozen=True)
class _Group:
    """The features that look up one pool, in the collection's order."""

    tables: PoolTables
    features: tuple[str, ...]
    columns: tuple[int, ...]
    """Places of these features among all features of the collection."""


class AdaptiveEmbeddingBagCollection(nn.Module):
    """Pools the features of a KeyedJaggedTensor, as TorchRec's EmbeddingBagCollection does.

    `tables` are `EmbeddingBagConfig`s, of this package or of TorchRec. The input may be any object with ``keys()``, ``values()``
    and ``lengths()`` (or ``offsets()``), and ``weights()`` where `is_weighted`. ``optimizer=`` and ``lr=`` must be given: each
    distinct row is updated once at the end of each backward pass. A feature of several tables is named ``feature@table``.
    """

    def __init__(
        self,
        tables: Sequence[Any],
        is_weighted: bool = False,
        device: torch.device | str | None = None,
        *,
        dtype: torch.dtype | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__()
        check_tables(tables)
        self._tables, self._is_weighted = list(tables), is_weighted
        place = torch.device(device) if device is not None and str(device) != "meta" else torch.get_default_device()
        rates, setup = rates_from(options), setup_from(options, place)
        self.runtime: EmbeddingRuntime = EmbeddingRuntime(specs_of(tables, setup), setup, rates, dtype or type_of_tables(tables))
        self._read = [(feature, number) for number, table in enumerate(tables) for feature in table.feature_names]
        self._names, self._groups = _groups(self._tables, self._read, self.runtime)
        self._dims = [table.embedding_dim for table in tables for _ in table.feature_names]
        self.runtime.register("embedding_bags", self)
        for number, table in enumerate(tables if not setup.raw else ()):
            self.runtime.set_first_rows(number, partial(init_rows, table))
        self.embedding_bags = nn.ModuleDict(
            {
                table.name: AdaptiveEmbeddingBag.over(TieredWeight(self.runtime, number), "mean" if _is_mean(table) else "sum")
                for number, table in enumerate(tables)
            }
        )

    def embedding_bag_configs(self) -> list[Any]:
        return self._tables

    def is_weighted(self) -> bool:
        return self._is_weighted

    @torch.compiler.disable  # a compiled model calls it uncompiled
    def forward(self, features: Any) -> PooledVectors:
        """Return the pooled vectors (B, D) of all features. Where keys have batches of their own, ``inverse_indices()`` has the
        number of each sample's bag, as in TorchRec. Raises ValueError where a feature or a sample's bag is missing."""
        shared = KeyedBatches.of(features).bags_of_samples(features, [feature for feature, _ in self._read])
        if self.runtime.raw_ids is not None:
            features = self._numbered(features)
        if self._is_weighted:
            given = Keyed.of(features, weighted=True)
            parts = [self._weighted(group, given) for group in self._groups]
        else:
            parts = self.runtime.pooled(lambda: self._key(features), lambda: self._bags(features))
        return PooledVectors(self._names, self._dims, self._side_by_side(parts, shared))

    def _side_by_side(self, parts: list[Tensor], shared: list[Tensor] | None) -> Tensor:
        """Join the vectors of each group's bags to those of samples (B, sum of dims). `shared`: the bag of each sample, for every
        feature, where samples share bags."""
        bags = len(parts[0]) // len(self._groups[0].features)
        if len(parts) == 1 and shared is None:
            return parts[0].reshape(bags, sum(self._dims))
        columns: list[Tensor] = [parts[0]] * len(self._names)
        for group, part in zip(self._groups, parts, strict=True):
            vectors = part.view(bags, len(group.features), part.shape[1]).unbind(dim=1)
            for column, vector in zip(group.columns, vectors, strict=True):
                columns[column] = vector if shared is None else vector.index_select(0, to_device(shared[column], vector.device))
        return torch.cat(columns, dim=1)

    def parts(self, given: Any) -> Iterator[tuple[CallKey, Bags]]:
        """Yield the bags of a KeyedJaggedTensor, for `EmbeddingRuntime.prefetch`."""
        if self.runtime.raw_ids is not None:
            given = self._numbered(given, ahead=True)
        key = self._key(given)
        for bags in self._bags(given):
            yield key, bags

    def _numbered(self, features: Any, ahead: bool = False) -> NumberedFeatures:
        """Return features with rows in place of raw ids, those of a call ahead of its step where `ahead`."""
        raw, given = self.runtime.raw_ids, Keyed.of(features, self._is_weighted)
        assert raw is not None
        check_integers("values", features.values())
        place_R = given.places([feature for feature, _ in self._read])
        span_R = [slice(*given.first_F1[place : place + 2].tolist()) for place in place_R]
        ids = [(number, given.ids_N[span]) for span, (_, number) in zip(span_R, self._read, strict=True)]

        def rows(found: list[NDArray[np.int64]]) -> tuple[Tensor, Tensor]:
            return torch.from_numpy(np.concatenate(found)), torch.from_numpy(given.length_FB[place_R].reshape(-1))

        key = self._key(features)
        row_N, lengths = raw.number_ahead(key, ids, rows) if ahead else raw.number(key, ids, rows, self.training)
        weights_N = None if given.weights_N is None else torch.cat([given.weights_N[span] for span in span_R])
        return NumberedFeatures(self._names, row_N, lengths, weights_N)

    def _key(self, features: Any) -> CallKey:
        batches = KeyedBatches.of(features)
        return CallKey.of((id(self), batches.names, batches.bags_F), features.values(), batches.lengths)

    def _bags(self, features: Any) -> list[Bags]:
        given = Keyed.of(features, weighted=False)
        dtype = self.runtime.dtype
        return [group.tables.keyed_bags(given, given.places(group.features), dtype) for group in self._groups]

    def _weighted(self, group: _Group, given: Keyed) -> Tensor:
        """Pool with weights: each lookup is a bag by itself, and torch sums them with their weights."""
        found = given.of_features(given.places(group.features))
        # The bag of a lookup gives its table: rows are numbered by bags, then looked up one by one.
        numbered = group.tables.bags(found.ids_N, found.offsets, self.runtime.dtype)
        single = replace(numbered, offsets=np.arange(len(found.ids_N) + 1), in_turn=False, divisor_L1=None)
        rows_ND = self.runtime.pooled(None, lambda: [single])[0]
        pooled_LD = weighted_sums(rows_ND, found.weights_N, torch.from_numpy(found.offsets))
        divisor_L1 = numbered.divisor_L1
        return pooled_LD if divisor_L1 is None else pooled_LD / to_device(divisor_L1, pooled_LD.device)

    # Rows in and out -------------------------------------------------------------------------------------------------

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse `copy.copy`, `copy.deepcopy` and pickling, which all come here."""
        raise TypeError(
            f"{type(self).__name__} must be saved and copied by its state_dict() (and runtime.state_dict()), "
            "as its rows live in the runtime's tiers"
        )

    def extra_repr(self) -> str:
        return "\n".join(
            f"{table.name}: {table.num_embeddings} x {table.embedding_dim}, {', '.join(table.feature_names)}"
            for table in self._tables
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
    """Return the type that the `data_type` of TorchRec's configurations names, which all must share; torch's default where they
    have none. Raises ConfigError."""
    found = {str(getattr(kind, "value", kind)) for table in tables if (kind := getattr(table, "data_type", None)) is not None}
    if len(found) > 1 or not found <= DATA_TYPES.keys():
        raise ConfigError(
            f"data_type of all tables must be the same, one of {', '.join(DATA_TYPES)}, got {', '.join(sorted(found))}"
        )
    return DATA_TYPES[found.pop()] if found else torch.get_default_dtype()


def _is_mean(table: Any) -> bool:
    """Return whether a table's bags are averaged. Raises ConfigError for an unknown pooling."""
    pooling = str(getattr(table.pooling, "value", table.pooling)).lower()
    if pooling not in ("sum", "mean"):
        raise ConfigError(f"pooling of table {table.name} must be sum or mean, got {table.pooling!r}")
    return pooling == "mean"


def _groups(
    tables: list[Any], read: list[tuple[str, int]], runtime: EmbeddingRuntime
) -> tuple[list[str], list[_Group]]:
    """Return the names of all features in the output, and the features of each pool. `read`: features with the numbers of their
    tables. Features whose raw ids were replaced by rows have their names in the output."""
    space = runtime.space
    shared = {name for name, _ in read if sum(name == other for other, _ in read) > 1}
    names = [f"{name}@{tables[number].name}" if name in shared else name for name, number in read]
    groups = []
    for pool in range(len(space.pools)):
        columns = [column for column, (_, number) in enumerate(read) if space.table_range(number)[0] == pool]
        numbers = [read[column][1] for column in columns]
        pool_tables = PoolTables.of(space, numbers, [_is_mean(tables[number]) for number in numbers])
        inputs = [name for name, _ in read] if runtime.raw_ids is None else names
        groups.append(_Group(pool_tables, tuple(inputs[column] for column in columns), tuple(columns)))
    return names, groups


def init_rows(table: Any, rows: Tensor) -> None:
    """Set a table's first rows."""
    with torch.no_grad():
        if getattr(table, "init_fn", None) is not None:
            table.init_fn(rows)
            return
        bound = 1 / math.sqrt(table.num_embeddings)
        low, high = getattr(table, "weight_init_min", None), getattr(table, "weight_init_max", None)
        rows.uniform_(-bound if low is None else low, bound if high is None else high)

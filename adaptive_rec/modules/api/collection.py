"""TorchRec's ``EmbeddingBagCollection`` over tables in two tiers, in one process; it does not need TorchRec."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adaptive_rec.modules.api.bag import AdaptiveEmbeddingBag
from adaptive_rec.modules.api.collection_tables import TableCollection, is_mean, names_by_table
from adaptive_rec.modules.api.options import Options, check_named_rule
from adaptive_rec.modules.loop.bags import Bags, CallKey, PoolTables
from adaptive_rec.modules.loop.embedding_runtime import EmbeddingRuntime
from adaptive_rec.modules.loop.inputs import check_integers
from adaptive_rec.modules.loop.keyed import Keyed, KeyedBatches, NumberedFeatures
from adaptive_rec.modules.loop.uploads import to_device, weighted_sums
from adaptive_rec.modules.tensors.weight import TieredWeight


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

    def key_dim(self) -> int:
        """Return the dimension along which features lie side by side."""
        return 1

    def device(self) -> torch.device:
        return self._values.device

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


class AdaptiveEmbeddingBagCollection(TableCollection):
    """Pools the features of a KeyedJaggedTensor, as TorchRec's EmbeddingBagCollection does.

    `tables` are `EmbeddingBagConfig`s, of this package or of TorchRec. The input may be any object with ``keys()``, ``values()``
    and ``lengths()`` (or ``offsets()``), and ``weights()`` where `is_weighted`. ``optimizer=`` and ``lr=`` must be given: each
    distinct row is updated once at the end of each backward pass. A feature of several tables is named ``feature@table``.
    `output_dtype`: type of the vectors; by default float32 where tables are of 16 bits, as in TorchRec, else the tables' type.
    """

    def __init__(
        self,
        tables: Sequence[Any],
        is_weighted: bool = False,
        device: torch.device | str | None = None,
        *,
        dtype: torch.dtype | None = None,
        output_dtype: torch.dtype | None = None,
        **options: Unpack[Options],
    ) -> None:
        check_named_rule(options)
        super().__init__("embedding_bags", tables, device, dtype, output_dtype, options)
        self._is_weighted = is_weighted
        self._read = [(feature, number) for number, table in enumerate(tables) for feature in table.feature_names]
        self._names, self._groups = _groups(self._tables, self._read, self.runtime)
        self._dims = [table.embedding_dim for table in tables for _ in table.feature_names]
        self.embedding_bags = nn.ModuleDict(
            {
                table.name: AdaptiveEmbeddingBag.over(TieredWeight(self.runtime, number), "mean" if is_mean(table) else "sum")
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
            parts = self.runtime.lookups.pooled(
                lambda: self._key(features), lambda: self._bags(features), dtype=self._output_dtype
            )
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
        rows_ND = self.runtime.lookups.pooled(None, lambda: [single], dtype=self.runtime.dtype)[0]
        pooled_LD = weighted_sums(rows_ND, found.weights_N, torch.from_numpy(found.offsets))
        divisor_L1 = numbered.divisor_L1
        if divisor_L1 is not None:
            pooled_LD = pooled_LD / to_device(divisor_L1, pooled_LD.device)
        return pooled_LD.to(self._output_dtype)

    def extra_repr(self) -> str:
        return "\n".join(
            f"{table.name}: {table.num_embeddings} x {table.embedding_dim}, {', '.join(table.feature_names)}"
            for table in self._tables
        )


def _groups(
    tables: list[Any], read: list[tuple[str, int]], runtime: EmbeddingRuntime
) -> tuple[list[str], list[_Group]]:
    """Return the names of all features in the output, and the features of each pool. `read`: features with the numbers of their
    tables. Features whose raw ids were replaced by rows have their names in the output."""
    space = runtime.space
    names = [name for some in names_by_table(tables) for name in some]
    groups = []
    for pool in range(len(space.pools)):
        columns = [column for column, (_, number) in enumerate(read) if space.table_range(number)[0] == pool]
        numbers = [read[column][1] for column in columns]
        pool_tables = PoolTables.of(space, numbers, [is_mean(tables[number]) for number in numbers])
        inputs = [name for name, _ in read] if runtime.raw_ids is None else names
        groups.append(_Group(pool_tables, tuple(inputs[column] for column in columns), tuple(columns)))
    return names, groups

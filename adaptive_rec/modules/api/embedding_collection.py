"""TorchRec's ``EmbeddingCollection`` over tables in two tiers, in one process; it does not need TorchRec."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adaptive_rec.errors import ConfigError
from adaptive_rec.modules.api.bag import AdaptiveEmbedding
from adaptive_rec.modules.api.collection_tables import TableCollection, names_by_table
from adaptive_rec.modules.api.options import Options
from adaptive_rec.modules.loop.bags import Bags, CallKey
from adaptive_rec.modules.loop.inputs import as_ids, check_integers
from adaptive_rec.modules.loop.keyed import KeyedBatches
from adaptive_rec.modules.loop.uploads import to_device
from adaptive_rec.modules.tensors.optimizer_steps import follow_optimizers
from adaptive_rec.modules.tensors.weight import TieredWeight


class JaggedVectors:
    """Vectors of a feature's lookups (N, D), sample after sample, as in TorchRec's JaggedTensor."""

    def __init__(self, values: Tensor, lengths: Tensor, weights: Tensor | None = None) -> None:
        self._values, self._lengths, self._weights = values, lengths, weights
        self._offsets: Tensor | None = None

    def values(self) -> Tensor:
        return self._values

    def lengths(self) -> Tensor:
        """Return the number of lookups of each sample (B)."""
        return self._lengths

    def lengths_or_none(self) -> Tensor | None:
        return self._lengths

    def offsets(self) -> Tensor:
        """Return the first lookup of each sample, and the end (B + 1), in the type of the lengths."""
        if self._offsets is None:
            self._offsets = nn.functional.pad(self._lengths.cumsum(0, dtype=self._lengths.dtype), (1, 0))
        return self._offsets

    def offsets_or_none(self) -> Tensor | None:
        """Return the offsets if `offsets` was called before, as in TorchRec."""
        return self._offsets

    def weights(self) -> Tensor:
        """Return the ids of the lookups (N), where the collection has `need_indices`. Raises ValueError where it has not."""
        if self._weights is None:
            raise ValueError("vectors must come from a collection with need_indices=True to have weights, which are their ids")
        return self._weights

    def weights_or_none(self) -> Tensor | None:
        return self._weights

    def device(self) -> torch.device:
        return self._values.device

    def to_dense(self) -> list[Tensor]:
        """Return the vectors of each sample."""
        return list(self._values.split(self._lengths.tolist()))

    def to_dense_weights(self) -> list[Tensor] | None:
        """Return the ids of each sample, where there are any (`weights`)."""
        return None if self._weights is None else list(self._weights.split(self._lengths.tolist()))

    def to_padded_dense(self, desired_length: int | None = None, padding_value: float = 0.0) -> Tensor:
        """Return the vectors of each sample (B, length, D), filled up or cut to a length; by default the longest one's."""
        return self._padded(self._values, desired_length, padding_value)

    def to_padded_dense_weights(self, desired_length: int | None = None, padding_value: float = 0.0) -> Tensor | None:
        """Return the ids of each sample (B, length) in the same way, where there are any (`weights`)."""
        return None if self._weights is None else self._padded(self._weights, desired_length, padding_value)

    def _padded(self, values: Tensor, desired_length: int | None, padding_value: float) -> Tensor:
        length = int(self._lengths.max()) if desired_length is None and len(self._lengths) else desired_length or 0
        places = torch.arange(length, device=values.device)
        is_there_BL = places < to_device(self._lengths, places.device).unsqueeze(1)
        found = (to_device(self.offsets()[:-1], places.device).unsqueeze(1) + places)[is_there_BL]
        padded = values.new_full((len(self._lengths), length, *values.shape[1:]), padding_value)
        return padded.index_put((is_there_BL,), values[found])


class _Feature(NamedTuple):
    name: str
    table: str
    output: str
    """Name of the feature in the output: with its table where several read it."""


class AdaptiveEmbeddingCollection(TableCollection):
    """Looks up the features of a KeyedJaggedTensor row by row, as TorchRec's EmbeddingCollection does.

    `tables` are `EmbeddingBagConfig`s, or TorchRec's EmbeddingConfigs, all of one dim. The input may be any object with
    ``keys()``, ``values()`` and ``lengths()`` (or ``offsets()``). ``optimizer=`` must be given, as for `AdaptiveEmbedding`. A
    feature of several tables is named ``feature@table``. Each distinct row is updated once a step, however often it is looked up.
    `need_indices`: whether vectors come with their ids, as ``weights()``. `output_dtype`: as in the other collection.
    """

    def __init__(
        self,
        tables: Sequence[Any],
        device: torch.device | str | None = None,
        need_indices: bool = False,
        *,
        dtype: torch.dtype | None = None,
        output_dtype: torch.dtype | None = None,
        **options: Unpack[Options],
    ) -> None:
        if len(dims := {table.embedding_dim for table in tables}) > 1:
            raise ConfigError(f"embedding_dim of all tables must be the same, got {sorted(dims)}")
        super().__init__("embeddings", tables, device, dtype, output_dtype, options)
        self._need_indices = need_indices
        follow_optimizers(self.runtime)
        self.embeddings = nn.ModuleDict()
        for number, table in enumerate(tables):
            weight = TieredWeight(self.runtime, number)
            self.runtime.weights.hold(number, weight)
            self.embeddings[table.name] = AdaptiveEmbedding.over(weight)
        self._number_of = {table.name: number for number, table in enumerate(tables)}
        self._features = [
            _Feature(name, table.name, output)
            for table, outputs in zip(tables, names_by_table(tables), strict=True)
            for name, output in zip(table.feature_names, outputs, strict=True)
        ]

    def embedding_configs(self) -> list[Any]:
        return self._tables

    def embedding_dim(self) -> int:
        return int(self._tables[0].embedding_dim)

    def embedding_names_by_table(self) -> list[list[str]]:
        """Return the names that each table's features have in the output."""
        return names_by_table(self._tables)

    def need_indices(self) -> bool:
        return self._need_indices

    @torch.compiler.disable  # a compiled model calls it uncompiled
    def forward(self, features: Any) -> dict[str, JaggedVectors]:
        """Return the vectors of each feature. Raises ValueError where one is missing."""
        given = [ids for _, ids, _ in self._split(features)] if self._need_indices else [None] * len(self._features)
        return {
            feature.output: JaggedVectors(self._vectors(feature, ids), lengths, own)
            for (feature, ids, lengths), own in zip(self._numbered(features), given, strict=True)
        }

    def parts(self, given: Any) -> Iterator[tuple[CallKey, Bags]]:
        for feature, ids, _ in self._numbered(given, ahead=True):
            weight: Any = self.embeddings[feature.table].weight
            yield weight.key(None, None, ids), weight.single_bags(ids)

    def _vectors(self, feature: _Feature, ids: Tensor) -> Tensor:
        """Return the rows (N, D) of a feature's ids, which are numbers of rows."""
        module: Any = self.embeddings[feature.table]
        vectors: Tensor = module(ids) if self.runtime.raw_ids is None else module.weight.embedding(ids)
        return vectors.to(self._output_dtype)

    def _numbered(self, features: Any, ahead: bool = False) -> list[tuple[_Feature, Tensor, Tensor]]:
        """Return each feature with its ids (N), or rows in place of raw ids, and the number of them of each sample (B)."""
        split, raw = list(self._split(features)), self.runtime.raw_ids
        if raw is None:
            return split
        for _, ids, _ in split:
            check_integers("values", ids)
        key = CallKey.of(id(self), *(tensor for _, ids, lengths in split for tensor in (ids, lengths)))
        ids_of = [(self._number_of[feature.table], as_ids(ids)) for feature, ids, _ in split]

        def rows(found: list[NDArray[np.int64]]) -> list[Tensor]:
            return [torch.from_numpy(row_N) for row_N in found]

        found = raw.number_ahead(key, ids_of, rows) if ahead else raw.number(key, ids_of, rows, self.training)
        return [(feature, row_N, lengths) for (feature, _, lengths), row_N in zip(split, found, strict=True)]

    def _split(self, features: Any) -> Iterator[tuple[_Feature, Tensor, Tensor]]:
        """Yield each feature with its ids (N) and the number of ids of each sample (B)."""
        batches, values = KeyedBatches.of(features), features.values()
        lengths = batches.lengths.reshape(-1) if hasattr(features, "lengths") else batches.lengths.diff()
        length_L = as_ids(lengths)
        if len(length_L) and length_L.min() < 0:
            raise ValueError(f"lengths must be at least 0, got {length_L.min()}")
        first_F1 = np.concatenate([[0], np.cumsum(length_L)])[np.cumsum([0, *batches.bags_F])]
        if first_F1[-1] > len(values):
            raise ValueError(f"lengths must sum to at most the number of values, {len(values)}, got {first_F1[-1]}")
        length_F = lengths.split(batches.bags_F)
        for feature, place in zip(self._features, batches.places([feature.name for feature in self._features]), strict=True):
            yield feature, values[first_F1[place] : first_F1[place + 1]], length_F[place]

    def extra_repr(self) -> str:
        return "\n".join(f"{table.name}: {', '.join(table.feature_names)}" for table in self._tables)

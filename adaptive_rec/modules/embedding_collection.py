"""TorchRec's ``EmbeddingCollection`` over tables in two tiers, in one process; it does not need TorchRec."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adaptive_rec.errors import ConfigError
from adaptive_rec.modules.bag import AdaptiveEmbedding
from adaptive_rec.modules.bags import Bags, CallKey
from adaptive_rec.modules.collection import check_tables, init_rows, specs_of, type_of_tables
from adaptive_rec.modules.embedding_runtime import EmbeddingRuntime
from adaptive_rec.modules.inputs import as_ids, check_integers
from adaptive_rec.modules.keyed import KeyedBatches
from adaptive_rec.modules.optimizer_steps import follow_optimizers
from adaptive_rec.modules.options import Options, rates_from, setup_from
from adaptive_rec.modules.uploads import to_device
from adaptive_rec.modules.weight import TieredWeight


class JaggedVectors:
    """Vectors of a feature's lookups (N, D), sample after sample, as in TorchRec's JaggedTensor."""

    def __init__(self, values: Tensor, lengths: Tensor) -> None:
        self._values, self._lengths = values, lengths

    def values(self) -> Tensor:
        return self._values

    def lengths(self) -> Tensor:
        """Return the number of lookups of each sample (B)."""
        return self._lengths

    def offsets(self) -> Tensor:
        """Return the first lookup of each sample, and the end (B + 1)."""
        return nn.functional.pad(self._lengths.cumsum(0), (1, 0))

    def to_dense(self) -> list[Tensor]:
        """Return the vectors of each sample."""
        return list(self._values.split(self._lengths.tolist()))

    def to_padded_dense(self, desired_length: int | None = None, padding_value: float = 0.0) -> Tensor:
        """Return the vectors of each sample (B, length, D), filled up or cut to a length; by default the longest one's."""
        length = int(self._lengths.max()) if desired_length is None and len(self._lengths) else desired_length or 0
        places = torch.arange(length, device=self._values.device)
        is_there_BL = places < to_device(self._lengths, places.device).unsqueeze(1)
        found = (to_device(self.offsets()[:-1], places.device).unsqueeze(1) + places)[is_there_BL]
        padded = self._values.new_full((len(self._lengths), length, self._values.shape[1]), padding_value)
        return padded.index_put((is_there_BL,), self._values[found])


class _Feature(NamedTuple):
    name: str
    table: str
    output: str
    """Name of the feature in the output: with its table where several read it."""


class AdaptiveEmbeddingCollection(nn.Module):
    """Looks up the features of a KeyedJaggedTensor row by row, as TorchRec's EmbeddingCollection does.

    `tables` are `EmbeddingBagConfig`s, or TorchRec's EmbeddingConfigs, all of one dim. The input may be any object with
    ``keys()``, ``values()`` and ``lengths()`` (or ``offsets()``). ``optimizer=`` must be given, as for `AdaptiveEmbedding`. A
    feature of several tables is named ``feature@table``. Each distinct row is updated once a step, however often it is looked up.
    """

    def __init__(
        self,
        tables: Sequence[Any],
        device: torch.device | str | None = None,
        *,
        dtype: torch.dtype | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__()
        check_tables(tables)
        if len(dims := {table.embedding_dim for table in tables}) > 1:
            raise ConfigError(f"embedding_dim of all tables must be the same, got {sorted(dims)}")
        self._tables = list(tables)
        place = torch.device(device) if device is not None and str(device) != "meta" else torch.get_default_device()
        setup = setup_from(options, place)
        self.runtime = EmbeddingRuntime(
            specs_of(tables, setup), setup, rates_from(options), dtype or type_of_tables(tables)
        )
        self.runtime.register("embeddings", self)
        follow_optimizers(self.runtime)
        self.embeddings = nn.ModuleDict()
        for number, table in enumerate(tables):
            if not setup.raw:
                self.runtime.set_first_rows(number, partial(init_rows, table))
            weight = TieredWeight(self.runtime, number)
            self.runtime.hold(number, weight)
            self.embeddings[table.name] = AdaptiveEmbedding.over(weight)
        read = [(name, table.name) for table in tables for name in table.feature_names]
        shared = {name for name, _ in read if sum(name == other for other, _ in read) > 1}
        self._number_of = {table.name: number for number, table in enumerate(tables)}
        self._features = [_Feature(name, t, f"{name}@{t}" if name in shared else name) for name, t in read]

    def embedding_configs(self) -> list[Any]:
        return self._tables

    def embedding_dim(self) -> int:
        return int(self._tables[0].embedding_dim)

    @torch.compiler.disable  # a compiled model calls it uncompiled
    def forward(self, features: Any) -> dict[str, JaggedVectors]:
        """Return the vectors of each feature. Raises ValueError where one is missing."""
        return {
            feature.output: JaggedVectors(self._vectors(feature, ids), lengths)
            for feature, ids, lengths in self._numbered(features)
        }

    def parts(self, given: Any) -> Iterator[tuple[CallKey, Bags]]:
        """Yield the lookups of a KeyedJaggedTensor, for `EmbeddingRuntime.prefetch`."""
        for feature, ids, _ in self._numbered(given, ahead=True):
            weight: Any = self.embeddings[feature.table].weight
            yield weight.key(None, None, ids), weight.single_bags(ids)

    def _vectors(self, feature: _Feature, ids: Tensor) -> Tensor:
        """Return the rows (N, D) of a feature's ids, which are numbers of rows."""
        module: Any = self.embeddings[feature.table]
        vectors: Tensor = module(ids) if self.runtime.raw_ids is None else module.weight.embedding(ids)
        return vectors

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

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse `copy.copy`, `copy.deepcopy` and pickling, which all come here."""
        raise TypeError(
            f"{type(self).__name__} must be saved and copied by its state_dict() (and runtime.state_dict()), "
            "as its rows live in the runtime's tiers"
        )

    def extra_repr(self) -> str:
        return "\n".join(f"{table.name}: {', '.join(table.feature_names)}" for table in self._tables)

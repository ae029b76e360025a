"""TorchRec's types for the examples: its KeyedJaggedTensor where it is installed, otherwise a small stand-in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

try:
    from torchrec import KeyedJaggedTensor
except ImportError:

    class KeyedJaggedTensor:  # type: ignore[no-redef]
        """Bags of several features, ordered by feature: the ids of all bags, and the length of each."""

        def __init__(
            self, keys: list[str], values: Tensor, weights: Tensor | None = None, lengths: Tensor | None = None
        ):
            assert lengths is not None
            self._keys, self._values, self._weights, self._lengths = keys, values, weights, lengths

        def keys(self) -> list[str]:
            return self._keys

        def values(self) -> Tensor:
            return self._values

        def weights(self) -> Tensor:
            assert self._weights is not None, "this KeyedJaggedTensor has no weights"
            return self._weights

        def lengths(self) -> Tensor:
            return self._lengths

        def offsets(self) -> Tensor:
            return torch.cat([self._lengths.new_zeros(1), self._lengths.cumsum(0)])


RULES = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "lazy_adam": torch.optim.SparseAdam}
"""torch optimizers for sparse gradients, by adaptive-rec's names of the rules."""


@dataclass
class EmbeddingBagConfig:
    """A table and the features that look it up."""

    name: str
    embedding_dim: int
    num_embeddings: int
    feature_names: list[str]
    pooling: str = "sum"
    init_fn: Callable[[Tensor], Tensor] | None = None


@dataclass
class KeyedTensor:
    """Pooled vectors (B, D) by feature."""

    found: dict[str, Tensor] = field(default_factory=dict)

    def keys(self) -> list[str]:
        return list(self.found)

    def values(self) -> Tensor:
        return torch.cat(list(self.found.values()), dim=1)

    def to_dict(self) -> dict[str, Tensor]:
        return self.found


class EmbeddingBagCollection(nn.Module):
    """TorchRec's class in plain torch: an nn.EmbeddingBag with sparse gradients for each table."""

    def __init__(self, tables: list[EmbeddingBagConfig], is_weighted: bool = False) -> None:
        super().__init__()
        self.tables, self.weighted, self.embedding_bags = tables, is_weighted, nn.ModuleDict()
        for table in tables:
            rows = torch.empty(table.num_embeddings, table.embedding_dim)
            (table.init_fn or nn.init.normal_)(rows)
            self.embedding_bags[table.name] = nn.EmbeddingBag.from_pretrained(
                rows, freeze=False, mode=table.pooling, sparse=True, include_last_offset=True
            )

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        names, offsets = features.keys(), features.offsets().long()
        samples = (len(offsets) - 1) // len(names)
        times = {name: sum(name in table.feature_names for table in self.tables) for name in names}
        out = KeyedTensor()
        for table in self.tables:
            for name in table.feature_names:
                first = names.index(name) * samples
                own = offsets[first : first + samples + 1]
                part = slice(int(own[0]), int(own[-1]))
                weights = features.weights()[part] if self.weighted else None
                pooled = self.embedding_bags[table.name](features.values()[part], own - own[0], weights)
                out.found[name if times[name] == 1 else f"{name}@{table.name}"] = pooled
        return out

"""A stand-in for KeyedJaggedTensor with the methods that a collection may call, and random bags for it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Jagged:
    """Bags of several features, one feature after the other."""

    names: list[str]
    ids: Tensor
    counts: Tensor
    scale: Tensor | None = None

    def keys(self) -> list[str]:
        return self.names

    def values(self) -> Tensor:
        return self.ids

    def lengths(self) -> Tensor:
        return self.counts

    def offsets(self) -> Tensor:
        return torch.cat([self.counts.new_zeros(1), self.counts.cumsum(0).to(self.counts.dtype)])

    def weights(self) -> Tensor:
        assert self.scale is not None, "asked for weights that there are not"
        return self.scale

    def stride(self) -> int:
        return len(self.counts) // len(self.names)

    def of(self, name: str) -> tuple[Tensor, Tensor, Tensor | None]:
        """Ids, offsets without the last one and weights of one feature, as nn.EmbeddingBag takes them."""
        at, size, ends = self.names.index(name), self.stride(), self.offsets().long()
        own = ends[at * size : (at + 1) * size + 1]
        part = slice(int(own[0]), int(own[-1]))
        return self.ids[part].long(), own[:-1] - own[0], None if self.scale is None else self.scale[part]


class OffsetsOnly:
    """The same with no lengths()."""

    def __init__(self, of: Jagged) -> None:
        self.keys, self.values, self.offsets, self.weights = of.keys, of.values, of.offsets, of.weights


class LengthsOnly:
    """The same with no offsets()."""

    def __init__(self, of: Jagged) -> None:
        self.keys, self.values, self.lengths, self.weights = of.keys, of.values, of.lengths, of.weights


def draw(
    rows: dict[str, int], size: int, seed: int, longest: int = 3, weighted: bool = False, one_hot: bool = False
) -> Jagged:
    """Bags of features that have so many ids; some are empty."""
    dice = torch.Generator().manual_seed(seed)
    counts = [
        torch.ones(size, dtype=torch.int64) if one_hot else torch.randint(0, longest + 1, (size,), generator=dice)
        for _ in rows
    ]
    ids = [
        (count * torch.rand(int(own.sum()), generator=dice) ** 4).long()
        for count, own in zip(rows.values(), counts, strict=True)
    ]
    scale = torch.rand(sum(map(len, ids)), generator=dice) + 0.5 if weighted else None
    return Jagged(list(rows), torch.cat(ids), torch.cat(counts), scale)

"""Layers of the dense models: MLPs, maps of pooled rows to one dim, and the cross network.

Initialisation is that of the DLRM reference code: weights with variance 2 / (inputs + outputs), biases with variance 1 / outputs,
both normal around 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adaptive_rec.placement import RowSpace


def mlp(widths: Sequence[int], generator: torch.Generator, last: type[nn.Module] | None) -> nn.Sequential:
    """Build linear layers from the first width to the last, with a ReLU after each, and `last` or nothing after the last."""
    layers: list[nn.Module] = []
    for inputs, outputs in zip(widths[:-1], widths[1:], strict=True):
        layers += [linear(inputs, outputs, generator), nn.ReLU()]
    return nn.Sequential(*layers[:-1], *([last()] if last else []))


def linear(inputs: int, outputs: int, generator: torch.Generator, bias: bool = True) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=bias)
    with torch.no_grad():
        layer.weight.normal_(0, (2 / (inputs + outputs)) ** 0.5, generator=generator)
        if bias:
            layer.bias.normal_(0, (1 / outputs) ** 0.5, generator=generator)
    return layer


class RowMaps(nn.Module):
    """Pooled rows (S, F, dim) of all features from a tensor (S, T, D) for each pool; linear maps without bias change other dims.

    There is one map for each dim and one order of features, so that weights do not depend on how tables form pools.
    """

    def __init__(self, space: RowSpace, dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.maps = nn.ModuleList(
            nn.Identity() if of_dim == dim else linear(of_dim, dim, generator, bias=False) for of_dim in space.dims
        )
        self.map_of_pool = [space.dims.index(pool.dim) for pool in space.pools]
        self.by_feature = Reordered(space.vector_order.tolist())

    def forward(self, pooled: Sequence[Tensor]) -> Tensor:
        mapped = [self.maps[number](part) for number, part in zip(self.map_of_pool, pooled, strict=True)]
        if len(mapped) == 1:
            return mapped[0]
        vectors: Tensor = self.by_feature(torch.cat([part.to(mapped[0].dtype) for part in mapped], dim=1))
        return vectors


class Reordered(nn.Module):
    """A permutation of vectors (S, F, D): vector i of the output is vector `order[i]` of the input."""

    def __init__(self, order: Sequence[int]) -> None:
        super().__init__()
        self.order: Tensor
        self.register_buffer("order", torch.tensor(order, dtype=torch.int64), persistent=False)
        self.places: Tensor
        self.register_buffer("places", self.order.argsort(), persistent=False)
        self.as_is = list(order) == sorted(order)

    def forward(self, vectors: Tensor) -> Tensor:
        reordered: Tensor = vectors if self.as_is else _Reorder.apply(vectors, self.order, self.places)
        return reordered


class _Reorder(torch.autograd.Function):
    """A permutation whose backward is a permutation too; autograd would set zeros and add with atomics."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, order: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        return vectors.index_select(1, order)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0].index_select(1, ctx.saved_tensors[0]), None, None


class CrossInteraction(nn.Module):
    """A low-rank cross network over V vectors side by side: to (S, V D).

    Paper: Wang et al., "DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale Learning to Rank Systems"
    (WWW 2021). A layer maps x to x0 * (W V x + b) + x, with V (rank, V D) and W (V D, rank). Both start as Glorot's normal,
    N(0, 2 / (rank + V D)), the bias as 0, as in TorchRec and in MLPerf's DLRM-DCNv2.
    """

    def __init__(self, vectors: int, dim: int, layers: int, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        self.width = vectors * dim
        self.down = nn.ModuleList(linear(self.width, rank, generator, bias=False) for _ in range(layers))
        self.up = nn.ModuleList(linear(rank, self.width, generator) for _ in range(layers))
        with torch.no_grad():
            for layer in self.up:
                layer.get_parameter("bias").zero_()

    def forward(self, first: Tensor, parts: Sequence[Tensor]) -> Tensor:
        """`first` (S, D) is the bottom MLP's vector, `parts` (S, T, D) are the others; they are rounded to its precision."""
        vectors = torch.cat([first.unsqueeze(1), *(part.to(first.dtype) for part in parts)], dim=1)
        x0 = x = vectors.flatten(1)
        for down, up in zip(self.down, self.up, strict=True):
            x = x0 * up(down(x)) + x
        return x

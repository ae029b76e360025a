"""DLRM, the dense part: bottom MLP, dot interaction, top MLP.

Paper: Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems" (arXiv 1906.00091).
Initialisation as the reference code: weights N(0, 2 / (inputs + outputs)), biases N(0, 1 / outputs) (second argument: variance).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adaptive_rec.placement import RowSpace


class DLRM(nn.Module):
    """Logits (S,) from dense features (S, X) and pooled rows, a tensor (S, T, D) for each pool.

    Pools whose dim differs from the model's are brought to it by a linear map without bias.
    """

    def __init__(
        self,
        space: RowSpace,
        dense_features: int,
        dim: int,
        bottom_mlp: Sequence[int],
        top_mlp: Sequence[int],
        seed: int,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        vectors = len(space.features) + 1
        self.bottom = _mlp([dense_features, *bottom_mlp, dim], generator, last_relu=True)
        self.maps = nn.ModuleList(
            nn.Identity() if pool.dim == dim else _linear(pool.dim, dim, generator, bias=False) for pool in space.pools
        )
        self.top = _mlp([dim + vectors * (vectors - 1) // 2, *top_mlp, 1], generator, last_relu=False)
        low, high = torch.tril_indices(vectors, vectors, offset=-1)
        place_VV = torch.zeros((vectors, vectors), dtype=torch.int64)
        place_VV[low, high] = place_VV[high, low] = torch.arange(len(low))
        self.pairs: Tensor
        self.register_buffer("pairs", low * vectors + high, persistent=False)
        self.places: Tensor
        self.register_buffer("places", place_VV.flatten(), persistent=False)

    def forward(self, dense_SX: Tensor, pooled: Sequence[Tensor]) -> Tensor:
        bottom_SD = self.bottom(dense_SX)
        mapped = [to_dim(part) for to_dim, part in zip(self.maps, pooled, strict=True)]
        vectors = torch.cat([bottom_SD.unsqueeze(1), *(part.to(bottom_SD.dtype) for part in mapped)], dim=1)
        top: Tensor = self.top(torch.cat([bottom_SD, _PairProducts.apply(vectors, self.pairs, self.places)], dim=1))
        return top.squeeze(1)


class _PairProducts(torch.autograd.Function):
    """Dot products (S, P) of all pairs of V vectors (S, V, D).

    With a backward of its own: a product's gradient G stands at both of its places in a symmetric matrix, and G times the
    vectors is the gradient. Autograd would scatter G with atomics and multiply twice.
    """

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, pairs: Tensor, places: Tensor) -> Tensor:
        """`pairs` are the places of P products in a matrix (V, V); `places` names a product for each of its elements."""
        ctx.save_for_backward(vectors, places)
        return torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, pairs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        vectors, places = ctx.saved_tensors
        count = vectors.shape[1]
        symmetric = grads[0].index_select(1, places).view(-1, count, count)
        symmetric.diagonal(dim1=1, dim2=2).zero_()  # a vector with itself is no pair
        return torch.bmm(symmetric, vectors), None, None


def _mlp(widths: Sequence[int], generator: torch.Generator, last_relu: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in zip(widths[:-1], widths[1:], strict=True):
        layers += [_linear(inputs, outputs, generator), nn.ReLU()]
    return nn.Sequential(*(layers if last_relu else layers[:-1]))


def _linear(inputs: int, outputs: int, generator: torch.Generator, bias: bool = True) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=bias)
    with torch.no_grad():
        layer.weight.normal_(0, (2 / (inputs + outputs)) ** 0.5, generator=generator)
        if bias:
            layer.bias.normal_(0, (1 / outputs) ** 0.5, generator=generator)
    return layer

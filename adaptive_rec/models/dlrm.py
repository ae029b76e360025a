"""DLRM, the dense part: bottom MLP, dot interaction, top MLP.

Paper: Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems" (arXiv 1906.00091).
Initialisation as the reference code: weights N(0, 2 / (inputs + outputs)), biases N(0, 1 / outputs) (second argument: variance).
"""

from __future__ import annotations

from collections.abc import Sequence

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
        self.pairs: Tensor
        self.register_buffer("pairs", low * vectors + high, persistent=False)

    def forward(self, dense_SX: Tensor, pooled: Sequence[Tensor]) -> Tensor:
        bottom_SD = self.bottom(dense_SX)
        mapped = [to_dim(part) for to_dim, part in zip(self.maps, pooled, strict=True)]
        vectors = torch.cat([bottom_SD.unsqueeze(1), *(part.to(bottom_SD.dtype) for part in mapped)], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        top: Tensor = self.top(torch.cat([bottom_SD, products.index_select(1, self.pairs)], dim=1))
        return top.squeeze(1)


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

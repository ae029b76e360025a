"""The dense part of DLRM: bottom MLP, interaction, top MLP.

Paper: Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation Systems" (arXiv 1906.00091).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from adaptive_rec.dense.models.dot_interaction import DotInteraction
from adaptive_rec.dense.models.layers import CrossInteraction, RowMaps, mlp
from adaptive_rec.placement import RowSpace


@dataclass(frozen=True)
class Interaction:
    """Settings of the interaction of a sample's vectors."""

    name: Literal["dot", "dcnv2"] = "dot"
    cross_layers: int = 3
    cross_rank: int = 512

    def build(self, vectors: int, dim: int, generator: torch.Generator) -> DotInteraction | CrossInteraction:
        if self.name == "dot":
            return DotInteraction(vectors, dim)
        return CrossInteraction(vectors, dim, self.cross_layers, self.cross_rank, generator)


DOT = Interaction()


class Tower(nn.Module):
    """Maps dense features (S, X) and `rows` vectors of each sample, in parts (S, T, D), to outputs (S, `top_mlp[-1]`)."""

    def __init__(
        self,
        dense_features: int,
        rows: int,
        dim: int,
        bottom_mlp: Sequence[int],
        top_mlp: Sequence[int],
        interaction: Interaction,
        generator: torch.Generator,
        last: type[nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.bottom = mlp([dense_features, *bottom_mlp, dim], generator, last=nn.ReLU)
        self.interaction = interaction.build(rows + 1, dim, generator)
        self.top = mlp([self.interaction.width, *top_mlp], generator, last=last)

    def forward(self, dense_SX: Tensor, parts: Sequence[Tensor]) -> Tensor:
        outputs: Tensor = self.top(self.interaction(self.bottom(dense_SX), parts))
        return outputs


class DLRM(Tower):
    """Maps dense features (S, X) and pooled rows, a tensor (S, T, D) for each pool, to logits (S,)."""

    def __init__(
        self,
        space: RowSpace,
        dense_features: int,
        dim: int,
        bottom_mlp: Sequence[int],
        top_mlp: Sequence[int],
        seed: int,
        interaction: Interaction = DOT,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        super().__init__(dense_features, len(space.features), dim, bottom_mlp, [*top_mlp, 1], interaction, generator)
        self.rows = RowMaps(space, dim, generator)

    def forward(self, dense_SX: Tensor, pooled: Sequence[Tensor]) -> Tensor:
        return super().forward(dense_SX, [self.rows(pooled)]).squeeze(1)

"""The choice of a dense part by the configuration."""

from __future__ import annotations

from torch import nn

from adaptive_rec.config import Config
from adaptive_rec.models.dlrm import DLRM
from adaptive_rec.placement import RowSpace


def build_model(config: Config, space: RowSpace, dense_features: int) -> nn.Module:
    """The dense part that `model.name` names, initialised from the run's seed."""
    wanted = config.model
    return DLRM(space, dense_features, wanted.embedding_dim, wanted.bottom_mlp, wanted.top_mlp, config.run.seed)

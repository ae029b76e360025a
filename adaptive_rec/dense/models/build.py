"""Construction of the dense model that the configuration names."""

from __future__ import annotations

from torch import nn

from adaptive_rec.batch import SequenceSpec
from adaptive_rec.config.tree import Config
from adaptive_rec.dense.models.dlrm import DLRM, Interaction
from adaptive_rec.errors import ConfigError
from adaptive_rec.placement import RowSpace


def build_model(
    config: Config, space: RowSpace, dense_features: int, sequence: SequenceSpec | None = None
) -> nn.Module:
    """Build the dense model that `model.name` names, initialised from the run's seed."""
    wanted, seed = config.model, config.run.seed
    interaction = Interaction(wanted.interaction, wanted.cross_layers, wanted.cross_rank)
    shape = (wanted.embedding_dim, wanted.bottom_mlp, wanted.top_mlp)
    if wanted.name == "dlrm":
        return DLRM(space, dense_features, *shape, seed, interaction)
    if sequence is None:
        raise ConfigError(
            f"model.name tbsm needs data whose samples have a history (prepare it with data prepare --format globo_sequence or "
            f"taobao), got data.source {config.data.source!r}"
        )
    from adaptive_rec.dense.models.tbsm import TBSM

    return TBSM(space, dense_features, sequence, *shape, wanted.attention_mlp, wanted.final_mlp, seed, interaction)

"""The settings of the dense part and of the optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, PositiveInt, model_validator

from adaptive_rec.config.knobs import Frozen, knob
from adaptive_rec.kernels.update_rules import NAMED_RULES, names_with

if TYPE_CHECKING:
    RuleName = str
else:
    RuleName = Literal[tuple(NAMED_RULES)]


class ModelConfig(Frozen):
    name: Literal["dlrm", "tbsm"] = knob(
        "dlrm", "name", "The dense part; tbsm runs a DLRM over each step of a history and needs data that has one."
    )
    interaction: Literal["dot", "dcnv2"] = knob(
        "dot", "name", "How a sample's vectors meet: products of all pairs, or DCN-v2's low-rank cross network."
    )
    embedding_dim: PositiveInt = knob(16, "components", "Dim of every embedding row.")
    table_dims: tuple[PositiveInt, ...] = Field(
        (),
        description="Dim of each table where they differ; a linear map brings them to embedding_dim.",
        json_schema_extra={"unit": "components"},
        strict=False,
    )
    bottom_mlp: tuple[PositiveInt, ...] = Field(
        (512, 256, 64),
        description="Hidden widths of the bottom MLP.",
        json_schema_extra={"unit": "units"},
        strict=False,
    )
    top_mlp: tuple[PositiveInt, ...] = Field(
        (512, 256),
        description="Hidden widths of the top MLP; of tbsm all its widths, the last one that of a step's vector.",
        json_schema_extra={"unit": "units"},
        strict=False,
    )
    cross_layers: PositiveInt = knob(3, "layers", "dcnv2: layers of the cross network.")
    cross_rank: PositiveInt = knob(512, "units", "dcnv2: rank of its weight matrices.")
    attention_mlp: tuple[PositiveInt, ...] = Field(
        (15, 15),
        description="tbsm: hidden widths of the MLP that weighs a history's steps.",
        json_schema_extra={"unit": "units"},
        strict=False,
    )
    final_mlp: tuple[PositiveInt, ...] = Field(
        (60,),
        description="tbsm: hidden widths of the MLP over context and candidate.",
        json_schema_extra={"unit": "units"},
        strict=False,
    )

    @model_validator(mode="after")
    def _check_tower(self) -> ModelConfig:
        if self.name == "tbsm" and not self.top_mlp:
            raise ValueError("top_mlp must have at least one width where name is tbsm, got []")
        return self


class OptimizerConfig(Frozen):
    embedding: RuleName = knob("rowwise_adagrad", "name", "Update rule of embedding rows; each moves only touched rows.")
    embedding_lr: float = knob(0.02, "rate", "Learning rate of embedding rows.", gt=0)
    dense: str = knob("Adagrad", "name", "Any optimizer of torch.optim, by its class name.")
    dense_lr: float = knob(0.01, "rate", "Learning rate of the dense part.", gt=0)
    dense_options: dict[str, float | bool] = knob({}, "table", "Further arguments of the dense optimizer.")
    eps: float = knob(1e-8, "number", f"Added to the denominator by {names_with('eps')}.", gt=0)
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = Field(
        (0.9, 0.999),
        description=f"Decay of the moments of {names_with('betas')}; where it is not set, the rule's own.",
        json_schema_extra={"unit": "ratio"},
        strict=False,
    )
    warmup_steps: int = knob(0, "steps", "Steps over which both learning rates rise linearly from 0.", ge=0)
    decay_start: int = knob(0, "steps", "Step at which both learning rates begin to fall.", ge=0)
    decay_steps: int = knob(0, "steps", "Steps over which they fall quadratically to 0; 0 is never.", ge=0)

    @model_validator(mode="before")
    @classmethod
    def _set_betas(cls, values: Any) -> Any:
        """Set the betas of the update rule where none are given."""
        name = values.get("embedding") if isinstance(values, dict) and "betas" not in values else None
        rule = NAMED_RULES.get(name) if isinstance(name, str) else None
        return values if rule is None else {**values, "betas": rule.betas}

"""The table of update rules: what derives from it is what torch does, what settings take, and what the docs say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from adaptive_rec.config.model import OptimizerConfig
from adaptive_rec.config.reference import choices
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.kernels.update_rules import NAMED_RULES, RULE_OF_CODE, UPDATE_RULES, TorchOptimizer, as_markdown
from adaptive_rec.modules.loop.rates import named_rates, row_rule_of

MODELS = Path(__file__).parents[2] / "docs" / "models.md"
OPTIMIZERS = [pytest.param(one, id=f"{one.name} {one.option}".strip()) for rule in UPDATE_RULES for one in rule.torch]


def test_each_rule_has_a_code_and_a_name_of_its_own() -> None:
    assert len(RULE_OF_CODE) == len({rule.name for rule in UPDATE_RULES}) == len(UPDATE_RULES)


def test_settings_name_the_rules_and_have_their_options() -> None:
    assert choices(OptimizerConfig.model_fields["embedding"]) == tuple(NAMED_RULES)
    for name, spec in NAMED_RULES.items():
        config = OptimizerConfig(embedding=name, eps=0.25)
        assert set(spec.options) <= {"eps", "betas"}
        assert config.betas == (spec.betas if "betas" in spec.options else OptimizerConfig().betas)
        assert OptimizerConfig(embedding=name, betas=(0.1, 0.2)).betas == (0.1, 0.2)
        rule = RowRule.of(config)
        assert [rule.option(option) for option in spec.options] == [getattr(config, option) for option in spec.options]
        own = named_rates(name, 0.1, None, None).rule
        assert [own.option(option) for option in spec.options] == [getattr(spec, option) for option in spec.options]


@pytest.mark.parametrize("like", OPTIMIZERS)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_the_state_of_rows_is_that_of_the_optimizer_of_torch(like: TorchOptimizer, decay: float) -> None:
    if like.name == "SparseAdam" and decay:
        pytest.skip("SparseAdam has no decay")
    weight = torch.nn.Parameter(torch.ones(4, 3))
    options: dict[str, Any] = {"weight_decay": decay} if decay else {}
    if like.option:
        options[like.option] = 0.5
    optimizer = getattr(torch.optim, like.name)([weight], lr=0.1, **options)
    assert bool(optimizer.state[weight]) == like.state_at_once
    weight.grad = torch.ones(4, 3).to_sparse(1) if like.name == "SparseAdam" else torch.ones(4, 3)
    optimizer.step()

    name, rule = row_rule_of(optimizer, optimizer.param_groups[0])

    state = optimizer.state[weight]
    kept = {key: value for key, value in state.items() if value is not None}
    assert rule.like_torch is not None
    assert replace(rule.like_torch, name=like.name) == like  # Adam's and AdamW's states are alike
    assert rule.catches_up == (like.every_row or decay > 0)
    assert name == (like.name if rule.catches_up else rule.spec.name)
    assert tuple(key for key in kept if key != "step") == rule.state_names
    assert rule.state_width(3) == 3 * len(rule.state_names) + rule.catches_up
    if rule.state_names:
        kinds = {"tensor": torch.Tensor, "number": int, "none": type(None)}
        assert isinstance(kept.get("step"), kinds[like.step])


def test_the_docs_show_the_table() -> None:
    how = "paste the output of python -m adaptive_rec.kernels.update_rules into docs/models.md"
    assert as_markdown() in MODELS.read_text(), how

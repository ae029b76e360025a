"""TBSM's dense part against a plain re-implementation with loops; steps that a history does not have; how it begins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from adaptive_rec.batch import FeatureSpec, SequenceSpec, TableSpec
from adaptive_rec.config.tree import load_config
from adaptive_rec.dense.models.build import build_model
from adaptive_rec.dense.models.dlrm import DOT, Interaction
from adaptive_rec.dense.models.tbsm import TBSM
from adaptive_rec.errors import ConfigError
from adaptive_rec.placement import RowSpace

STEPS, DENSE = 3, 7
LENGTH = 2
AGES = (4, 6, 3)
"""Dense columns of the steps, oldest first; 2 is the length, and 0, 1, 5 belong to the sample."""
LAYOUTS: dict[str, Any] = {
    "one column": ([4, 4], [0, 0, 0, 0, 1], ((0, 1, 2, 3),)),
    "two columns, mixed": ([4, 2, 4], [0, 1, 2, 0, 0, 1, 1, 0, 1], ((0, 3, 4, 7), (1, 5, 6, 8))),
    "nothing of the sample's own": ([4], [0, 0, 0, 0], ((1, 2, 3, 0),)),
}


def made(layout: str, seed: int = 1, interaction: Interaction = DOT, per_table: bool = False) -> Any:
    dims, readers, columns = LAYOUTS[layout]
    tables = tuple(TableSpec(f"T{i}", 5, dim) for i, dim in enumerate(dims))
    space = RowSpace.of(tables, tuple(FeatureSpec(f"F{i}", t) for i, t in enumerate(readers)), per_table)
    sequence = SequenceSpec(columns, (AGES,), LENGTH)
    model = TBSM(space, DENSE, sequence, 4, (5,), (6, 3), (5,), (7,), seed, interaction).double()
    return model, space, sequence


def inputs(space: RowSpace, sequence: SequenceSpec) -> tuple[torch.Tensor, list[torch.Tensor], list[int]]:
    """Samples of histories of all lengths; bags of missing steps are empty, so their pooled vectors 0."""
    random = torch.Generator().manual_seed(3)
    lengths = [0, 1, 2, 3, 3]
    dense = torch.randn(len(lengths), DENSE, generator=random, dtype=torch.float64)
    dense[:, LENGTH] = torch.tensor(lengths)
    vectors = {
        f: torch.randn(len(lengths), space.tables[feature.table].dim, generator=random, dtype=torch.float64)
        for f, feature in enumerate(space.features)
    }
    for column in sequence.features:
        for step in range(STEPS):
            for sample, length in enumerate(lengths):
                if step < STEPS - length:
                    vectors[column[step]][sample] = 0
                    dense[sample, AGES[step]] = 0
    return dense, [torch.stack([vectors[int(f)] for f in pool.features], dim=1) for pool in space.pools], lengths


def layers(net: nn.Sequential) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(m.weight.detach().numpy(), m.bias.detach().numpy()) for m in net if isinstance(m, nn.Linear)]


def apply(net: nn.Sequential, x: np.ndarray, last: str) -> np.ndarray:
    parts = layers(net)
    for number, (weight, bias) in enumerate(parts):
        x = weight @ x + bias
        if number + 1 < len(parts) or last == "relu":
            x = np.maximum(x, 0)
        elif last == "sigmoid":
            x = 1 / (1 + np.exp(-x))
    return x


def by_hand(model: TBSM, space: RowSpace, sequence: SequenceSpec, dense: np.ndarray, pooled: list[np.ndarray]) -> Any:
    """Sample by sample and step by step."""
    of_dim = dict(zip(space.dims, model.rows.maps, strict=True))

    def row(sample: int, feature: int) -> np.ndarray:
        pool = next(p for p in range(len(space.pools)) if feature in space.pools[p].features)
        vector = pooled[pool][sample][space.pools[pool].features.tolist().index(feature)]
        to_dim = of_dim[space.pools[pool].dim]
        mapped: np.ndarray = to_dim.weight.detach().numpy() @ vector if isinstance(to_dim, nn.Linear) else vector
        return mapped

    def tower(sample: int, step: int) -> np.ndarray:
        own = [dense[sample, AGES[step]] if step < STEPS else 0.0]
        shared = [dense[sample, x] for x in (0, 1, 5)]
        vectors = [apply(model.tower.bottom, np.array([step / (STEPS + 1), *own, *shared]), "relu")]
        vectors += [row(sample, column[step]) for column in sequence.features]
        of_sequence = [f for column in sequence.features for f in column]
        vectors += [row(sample, f) for f in range(len(space.features)) if f not in of_sequence]
        products = [float(vectors[i] @ vectors[j]) for i in range(len(vectors)) for j in range(i)]
        output = apply(model.tower.top, np.concatenate([vectors[0], products]), "relu")
        return output / max(float(np.linalg.norm(output)), 1e-12)

    form = model.form.detach().numpy()
    answers = []
    for sample in range(len(dense)):
        candidate = tower(sample, STEPS)
        there = [step >= STEPS - dense[sample, LENGTH] for step in range(STEPS)]
        history = [tower(sample, step) if there[step] else np.zeros_like(candidate) for step in range(STEPS)]
        weights = apply(model.attention, np.array([h @ (form.T @ (form @ candidate)) for h in history]), "sigmoid")
        context = sum((w * h for w, h in zip(weights, history, strict=True)), np.zeros_like(candidate))
        answers.append(apply(model.final, np.concatenate([context, candidate]), "")[0])
    return np.array(answers)


@pytest.mark.parametrize("per_table", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_output_equals_a_plain_implementation(layout: str, per_table: bool) -> None:
    model, space, sequence = made(layout, per_table=per_table)
    dense, pooled, _ = inputs(space, sequence)
    logits = model(dense, pooled)
    assert logits.shape == (5,)
    expected = by_hand(model, space, sequence, dense.numpy(), [p.numpy() for p in pooled])
    np.testing.assert_allclose(logits.detach().numpy(), expected, rtol=1e-12)
    assert np.std(expected) > 1e-3


@pytest.mark.parametrize("interaction", [DOT, Interaction("dcnv2", 2, 3)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_are_those_of_the_function(layout: str, interaction: Interaction) -> None:
    model, space, sequence = made(layout, seed=4, interaction=interaction)
    dense, pooled, _ = inputs(space, sequence)
    for part in pooled:
        part.requires_grad_(True)
    assert torch.autograd.gradcheck(lambda *parts: model(dense, list(parts)), tuple(pooled))
    model(dense, pooled).sum().backward()
    missing = [p for p, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()]
    assert not missing


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_that_is_not_there_changes_nothing_and_one_that_is_does(layout: str) -> None:
    model, space, sequence = made(layout)
    with torch.no_grad():
        model.tower.top[-2].bias.fill_(3.0)  # nothing is cut off by the ReLU
        model.attention[0].bias.fill_(3.0)
    dense, pooled, lengths = inputs(space, sequence)
    before = model(dense, pooled).detach()
    for step in range(STEPS):
        features = {int(column[step]) for column in sequence.features}
        changed = [part.clone() for part in pooled]
        for pool, part in zip(space.pools, changed, strict=True):
            part[:, [i for i, f in enumerate(pool.features) if int(f) in features]] += 1.5
        aged = dense.clone()
        aged[:, AGES[step]] += 1.5
        moved = (model(aged, changed).detach() != before).tolist()
        assert moved == [step >= STEPS - length for length in lengths]


def test_outputs_that_are_all_zero_are_no_nan() -> None:
    model, space, sequence = made("one column")
    with torch.no_grad():
        model.tower.top[-2].bias.fill_(-1e3)
    dense, pooled, _ = inputs(space, sequence)
    for part in pooled:
        part.requires_grad_(True)
    logits = model(dense, pooled)
    logits.sum().backward()
    assert torch.isfinite(logits).all()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    assert pooled[0].grad is not None
    assert torch.isfinite(pooled[0].grad).all()


def test_in_bf16_it_is_near() -> None:
    model, space, sequence = made("two columns, mixed")
    dense, pooled, _ = inputs(space, sequence)
    model, dense, pooled = model.float(), dense.float(), [part.float() for part in pooled]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        near = model(dense, pooled)
    np.testing.assert_allclose(near.float().detach(), model(dense, pooled).detach(), atol=3e-2)


def test_weights_depend_on_the_seed_alone_and_the_form_has_its_variance() -> None:
    torch.manual_seed(0)
    one = made("one column", seed=5)[0]
    torch.manual_seed(99)
    same, other = made("one column", seed=5)[0], made("one column", seed=6)[0]
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    space, sequence = made("one column")[1:]
    wide = TBSM(space, DENSE, sequence, 4, (5,), (6, 200), (5,), (7,), seed=2)
    assert wide.form.std().item() == pytest.approx(200**-0.5, rel=0.02), "2 / (inputs + outputs), as all weights"


def test_data_without_histories_are_refused() -> None:
    config = load_config(None, {}, ["model.name=tbsm"])
    with pytest.raises(ConfigError, match=r"model.name tbsm needs data whose samples have a history .* 'synthetic'"):
        build_model(config, made("one column")[1], DENSE)
    with pytest.raises(ConfigError, match=r"top_mlp must have at least one width"):
        load_config(None, {}, ["model.name=tbsm", "model.top_mlp=[]"])

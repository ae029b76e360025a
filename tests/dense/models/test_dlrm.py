"""The dense part against a plain re-implementation with loops, and its initialisation against its documentation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from adaptive_rec.batch import FeatureSpec, TableSpec
from adaptive_rec.dense.models.dlrm import DLRM, DOT, Interaction
from adaptive_rec.dense.models.layers import CrossInteraction
from adaptive_rec.placement import RowSpace


def space_of(dims: list[int], readers: list[int] | None = None) -> RowSpace:
    tables = tuple(TableSpec(f"T{i}", 5, dim) for i, dim in enumerate(dims))
    return RowSpace.of(tables, tuple(FeatureSpec(f"F{i}", t) for i, t in enumerate(readers or range(len(dims)))))


def model_of(
    dims: list[int],
    seed: int = 1,
    dim: int = 4,
    readers: list[int] | None = None,
    interaction: Interaction = DOT,
) -> tuple[DLRM, RowSpace]:
    space = space_of(dims, readers)
    model = DLRM(space, dense_features=3, dim=dim, bottom_mlp=(7,), top_mlp=(6, 5), seed=seed, interaction=interaction)
    return model.double(), space


def inputs(space: RowSpace, samples: int = 5) -> tuple[torch.Tensor, list[torch.Tensor]]:
    random = torch.Generator().manual_seed(3)
    dense = torch.randn(samples, 3, generator=random, dtype=torch.float64)
    return dense, [
        torch.randn(samples, len(p.features), p.dim, generator=random, dtype=torch.float64) for p in space.pools
    ]


def by_hand(model: DLRM, space: RowSpace, dense: np.ndarray, pooled: list[np.ndarray]) -> np.ndarray:
    """Sample by sample: bottom MLP, mapped vectors, all pairs of dot products below the diagonal or crosses, top MLP."""

    def layers(net: nn.Sequential) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(m.weight.detach().numpy(), m.bias.detach().numpy()) for m in net if isinstance(m, nn.Linear)]

    answers = []
    for s in range(len(dense)):
        x = dense[s]
        for weight, bias in layers(model.bottom):
            x = np.maximum(weight @ x + bias, 0)
        of_feature = {}
        for pool, to_dim, part in zip(space.pools, model.rows.maps, pooled, strict=True):
            matrix = to_dim.weight.detach().numpy() if isinstance(to_dim, nn.Linear) else np.eye(part.shape[2])
            of_feature |= {int(f): matrix @ vector for f, vector in zip(pool.features, part[s], strict=True)}
        vectors = [x, *(of_feature[f] for f in range(len(of_feature)))]
        if isinstance(model.interaction, CrossInteraction):
            y = crossed(model.interaction, np.concatenate(vectors))
        else:
            products = [float(vectors[i] @ vectors[j]) for i in range(len(vectors)) for j in range(i)]
            y = np.concatenate([x, products])
        top = layers(model.top)
        for k, (weight, bias) in enumerate(top):
            y = weight @ y + bias
            if k + 1 < len(top):
                y = np.maximum(y, 0)
        answers.append(y[0])
    return np.array(answers)


def crossed(net: CrossInteraction, first: np.ndarray) -> np.ndarray:
    """Element by element: x0 times the low-rank image of x, plus x."""
    x = first
    for down, up in zip(net.down, net.up, strict=True):
        small = [sum(w * v for w, v in zip(line, x, strict=True)) for line in down.get_parameter("weight").tolist()]
        lines = zip(up.get_parameter("weight").tolist(), up.get_parameter("bias").tolist(), strict=True)
        image = [sum(w * v for w, v in zip(line, small, strict=True)) + bias for line, bias in lines]
        x = np.array([f * i + v for f, i, v in zip(first, image, x, strict=True)])
    return x


@pytest.mark.parametrize("interaction", [DOT, Interaction("dcnv2", cross_layers=3, cross_rank=2)])
@pytest.mark.parametrize(
    ("dims", "readers"),
    [([4], None), ([4, 4, 4], None), ([4, 2, 4, 6], None), ([2], None), ([4, 2], [0, 1, 0, 1, 1]), ([4, 3, 2], [0, 2])],
)
def test_output_equals_a_plain_implementation(
    dims: list[int], readers: list[int] | None, interaction: Interaction
) -> None:
    """Mixed dims, shared tables and a pool that no feature reads included."""
    model, space = model_of(dims, readers=readers, interaction=interaction)
    dense, pooled = inputs(space)
    logits = model(dense, pooled)
    assert logits.shape == (5,)
    np.testing.assert_allclose(
        logits.detach().numpy(), by_hand(model, space, dense.numpy(), [p.numpy() for p in pooled]), rtol=1e-12
    )
    assert np.std(logits.detach().numpy()) > 1e-3


def test_only_pools_of_another_dim_are_mapped_and_without_bias() -> None:
    model, _ = model_of([4, 2, 4, 6])
    kinds = [type(part) for part in model.rows.maps]
    assert kinds == [nn.Identity, nn.Linear, nn.Linear]
    assert [tuple(part.weight.shape) for part in model.rows.maps if isinstance(part, nn.Linear)] == [(4, 2), (4, 6)]
    assert all(part.bias is None for part in model.rows.maps if isinstance(part, nn.Linear))


@pytest.mark.parametrize("interaction", [DOT, Interaction("dcnv2", cross_layers=2, cross_rank=3)])
def test_gradients_are_those_of_the_function(interaction: Interaction) -> None:
    model, space = model_of([4, 2], interaction=interaction)
    dense, pooled = inputs(space, samples=3)
    dense.requires_grad_(True)
    for part in pooled:
        part.requires_grad_(True)
    assert torch.autograd.gradcheck(lambda d, *p: model(d, list(p)), (dense, *pooled))


def test_weights_start_with_the_documented_variance() -> None:
    """N(0, 2 / (inputs + outputs)) and N(0, 1 / outputs), the second argument being the variance."""
    model = DLRM(space_of([64, 32]), dense_features=300, dim=64, bottom_mlp=(500, 400), top_mlp=(450,), seed=2)
    linears: list[Any] = [m for m in model.modules() if isinstance(m, nn.Linear)]
    assert len(linears) == 6
    for layer in linears:
        outputs, inputs = layer.weight.shape
        n = layer.weight.numel()
        assert layer.weight.std().item() == pytest.approx((2 / (inputs + outputs)) ** 0.5, rel=4 / (2 * n) ** 0.5)
        assert abs(layer.weight.mean().item()) < 4 * (2 / (inputs + outputs) / n) ** 0.5
        if layer.bias is not None and outputs > 1:
            assert layer.bias.std().item() == pytest.approx(outputs**-0.5, rel=4 / (2 * outputs) ** 0.5)


def test_a_cross_network_starts_as_torchrecs() -> None:
    """Glorot's normal in both matrices, biases 0: MLPerf's DLRM-DCNv2 is TorchRec's."""
    net = CrossInteraction(20, 16, 2, 50, torch.Generator().manual_seed(1))
    assert net.width == 320
    for layer in (*net.down, *net.up):
        weight = layer.get_parameter("weight")
        assert weight.std().item() == pytest.approx((2 / (320 + 50)) ** 0.5, rel=4 / (2 * weight.numel()) ** 0.5)
    assert not any(layer.get_parameter("bias").any() for layer in net.up)


def test_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(0)
    one, _ = model_of([4, 2], seed=5)
    torch.manual_seed(99)
    same, other = model_of([4, 2], seed=5)[0], model_of([4, 2], seed=6)[0]
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_the_pairs_are_no_part_of_a_checkpoint() -> None:
    model, _ = model_of([4, 2])
    assert not [name for name in model.state_dict() if "pairs" in name or "order" in name]

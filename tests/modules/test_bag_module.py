"""AdaptiveEmbeddingBag as a module: state dict, attributes and parameters; and the options that it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from adaptive_rec import AdaptiveEmbeddingBag
from adaptive_rec.errors import AdaptiveRecError

from .both import ERRORS, Both, each_kind, fused
from .cases import failures

# What is refused -----------------------------------------------------------------------------------------------------

IDS, OFFSETS = torch.ones(12, dtype=torch.int64), torch.tensor([0, 4, 8])
BAD_CALLS = {
    "2-D input with offsets": (IDS.view(3, 4), OFFSETS),
    "1-D input without offsets": (IDS,),
    "3-D input": (IDS.view(3, 2, 2),),
    "0-D input": (IDS[0],),
    "2-D offsets": (IDS, OFFSETS.view(1, 3)),
    "the first offset is not 0": (IDS, torch.tensor([1, 4, 8])),
    "an offset beyond the ids": (IDS, torch.tensor([0, 4, 100])),
    "an id too large": (torch.tensor([[0, 10]]),),
    "a negative id": (torch.tensor([[-1, 0]]),),
    "an id too large, int32": (torch.tensor([[0, 10]], dtype=torch.int32),),
    "a negative id, int32": (torch.tensor([[-1, 0]], dtype=torch.int32),),
    "an id out of all bounds": (torch.tensor([[0, 1 << 62]]),),
    "float ids": (torch.ones(2, 3),),
    "float offsets": (IDS, OFFSETS.double()),
    "weights of another type": (IDS, OFFSETS, torch.randn(12, dtype=torch.float32)),
    "too few weights": (IDS, OFFSETS, torch.randn(11)),
    "weights of another shape": (IDS.view(3, 4), None, torch.randn(12)),
}


@each_kind
def test_calls_that_torch_refuses_are_refused(kind: str) -> None:
    both = Both(kind, 10, 4, mode="sum")

    def check(call: str) -> None:
        before = both.ours.weight.detach().clone()
        with pytest.raises(ERRORS):
            both.theirs(*BAD_CALLS[call])
        with pytest.raises(ERRORS) as refusal:
            both.ours(*BAD_CALLS[call])
        assert len(str(refusal.value)) > 10
        assert torch.equal(both.ours.weight, before)
        both.check_often(IDS, OFFSETS)

    assert failures(BAD_CALLS, check) == {}


@pytest.mark.parametrize("kind", ["cold", "hot"])
def test_falling_offsets_are_refused(kind: str) -> None:
    """torch reads memory that is nobody's; here nothing may be read."""
    both = Both(kind, 10, 4, mode="sum")
    with pytest.raises(ERRORS, match="offsets"):
        both.ours(IDS, torch.tensor([0, 8, 4]))
    with pytest.raises(ERRORS, match="offsets"):
        both.ours(IDS, torch.tensor([0, -4, 8]))
    both.check_often(IDS, OFFSETS)


@each_kind
def test_weights_of_lookups_need_mode_sum(kind: str) -> None:
    both = Both(kind, 10, 4, mode="mean")
    with pytest.raises(NotImplementedError):
        both.theirs(IDS, OFFSETS, torch.randn(12))
    with pytest.raises(ERRORS, match="mean"):
        both.ours(IDS, OFFSETS, torch.randn(12))


UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"mode": "max"}, "max"), ({"mode": "median"}, "median"), ({"max_norm": 2.0}, "max_norm"),
    ({"scale_grad_by_freq": True}, "scale_grad_by_freq"), ({"_weight": torch.zeros(4, 4)}, "weight"),
]  # fmt: skip
INVALID: list[tuple[dict[str, Any], str]] = [
    ({"budget": "1MiB"}, "budget"), ({"lr": 0.1}, "lr"), ({"optimizer": "adagrad"}, "lr"),
    ({"optimizer": "adagrd", "lr": 0.1}, "adagrad"), ({"optimizer": "adagrad", "lr": -0.1}, "lr"),
    ({"optimizer": "adagrad", "lr": 0.1, "budget": "much"}, "budget"),
    ({"optimizer": "adagrad", "lr": 0.1, "budget": -5}, "budget"),
    ({"optimizer": "adagrad", "lr": 0.1, "knobs": {"reclasify_every": 5}}, "reclassify_every"),
    ({"optimizer": "adagrad", "lr": 0.1, "policy": "hotlin"}, "hotline"),
    ({"optimizer": "adagrad", "lr": 0.1, "policy": "fae"}, "fae"),
    ({"optimizer": "lazy_adam", "lr": 0.1, "betas": (0.9, 1.5)}, "betas"),
    ({"optimizer": "adagrad", "lr": 0.1, "eps": -1.0}, "eps"),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["unfused", "cold"])
def test_unsupported_options_are_refused(kind: str) -> None:
    def check(number: int) -> None:
        options, match = UNSUPPORTED[number]
        with pytest.raises(ERRORS, match=match):
            AdaptiveEmbeddingBag(10, 4, **options, **fused(kind))

    assert failures(range(len(UNSUPPORTED)), check) == {}


def test_invalid_options_of_the_update_are_refused() -> None:
    def check(number: int) -> None:
        options, match = INVALID[number]
        with pytest.raises(ERRORS, match=match):
            AdaptiveEmbeddingBag(10, 4, **options)

    assert failures(range(len(INVALID)), check) == {}


# As a module ---------------------------------------------------------------------------------------------------------


@each_kind
def test_a_state_dict_loads_into_torch_and_back(kind: str) -> None:
    both = Both(kind, 12, 3, mode="sum")
    both.check_often(torch.randint(12, (6, 2)))
    state = both.ours.state_dict()
    assert list(state) == ["weight"]
    assert not state["weight"].requires_grad
    both.theirs.load_state_dict(state)
    torch.testing.assert_close(both.theirs.weight.detach(), both.ours.weight.detach(), rtol=0, atol=0)
    other = torch.randn(12, 3)
    both.theirs.weight.data.copy_(other)
    assert str(both.ours.load_state_dict(both.theirs.state_dict())) == "<All keys matched successfully>"
    assert torch.equal(both.ours.weight.detach(), other)
    both.theirs.weight.data.fill_(0)
    assert torch.equal(both.ours.weight.detach(), other), "a copy, not the tensor that was given"
    both.check_often(torch.randint(12, (6, 2)))
    with pytest.raises(RuntimeError, match="weight"):
        both.ours.load_state_dict({"weight": torch.randn(13, 3)})
    with pytest.raises(RuntimeError, match="weight"):
        both.ours.load_state_dict({})
    with pytest.raises(RuntimeError, match="bias"):
        both.ours.load_state_dict({"weight": other, "bias": other})


@each_kind
def test_state_dicts_do_not_change_with_later_steps(kind: str) -> None:
    """Inside of another module, under its name; what was loaded is trained on."""
    model = nn.ModuleDict({"bag": Both(kind, 12, 3, mode="sum").ours})
    target = {"bag.weight": torch.randn(12, 3)}
    model.load_state_dict(target)
    assert list(model.state_dict()) == ["bag.weight"]
    torch.testing.assert_close(model.state_dict()["bag.weight"], target["bag.weight"], rtol=0, atol=0)


@each_kind
def test_attributes_and_first_rows_are_those_of_torch(kind: str) -> None:
    torch.manual_seed(5)
    theirs = nn.EmbeddingBag(9, 4, mode="mean", include_last_offset=True, padding_idx=2)
    torch.manual_seed(5)
    ours = AdaptiveEmbeddingBag(9, 4, mode="mean", include_last_offset=True, padding_idx=2, **fused(kind))
    torch.testing.assert_close(ours.weight.detach(), theirs.weight.detach(), rtol=0, atol=0)
    for name in ("num_embeddings", "embedding_dim", "mode", "include_last_offset", "padding_idx", "sparse"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert "9, 4" in repr(ours)
    assert isinstance(ours, nn.Module)
    assert (ours.runtime is None) == (kind == "unfused")
    assert [(tuple(one.shape), one.requires_grad) for one in ours.parameters()] == [((9, 4), True)]
    assert isinstance(ours, nn.EmbeddingBag)
    assert isinstance(ours.weight, nn.Parameter)


def test_positional_parameters_are_those_of_torch() -> None:
    weight = torch.randn(7, 2)
    args = (7, 2, None, 2.0, False, "sum", True, weight, True, 3)
    theirs, ours = nn.EmbeddingBag(*args), AdaptiveEmbeddingBag(*args)
    ids, offsets = torch.randint(7, (6,)), torch.tensor([0, 2, 6])
    torch.testing.assert_close(ours(ids, offsets), theirs(ids, offsets))
    assert isinstance(ours.weight, nn.Parameter)


def test_a_weight_that_was_set_is_read() -> None:
    """With the fused update off `weight` is a parameter as any other."""
    ours, other = AdaptiveEmbeddingBag(6, 2, mode="sum"), torch.randn(6, 2)
    ours.weight = nn.Parameter(other.clone())
    torch.testing.assert_close(ours(torch.tensor([[1, 2]])), other[1:3].sum(0, keepdim=True))
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.5)
    ours(torch.tensor([[1, 2]])).sum().backward()
    optimizer.step()
    torch.testing.assert_close(ours.weight.detach()[1], other[1] - 0.5)


def test_a_weight_in_tiers_is_written_in_place_and_not_replaced() -> None:
    ours = AdaptiveEmbeddingBag(6, 2, mode="sum", **fused("cold"))
    with torch.no_grad():
        ours.weight.fill_(5.0)
    assert ours(torch.tensor([[1, 2]])).tolist() == [[10.0, 10.0]]
    with pytest.raises(ERRORS, match="weight"):
        ours.weight = nn.Parameter(torch.randn(6, 2))


@each_kind
def test_an_empty_table(kind: str) -> None:
    """torch has it; here it is refused."""
    for rows, dim in ((0, 3), (3, 0)):
        with pytest.raises(AdaptiveRecError, match="at least 1"):
            AdaptiveEmbeddingBag(rows, dim, mode="sum", **fused(kind))

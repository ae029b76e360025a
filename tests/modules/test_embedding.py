"""`AdaptiveEmbedding` has torch's constructor, first rows and errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptive_rec import AdaptiveEmbedding
from adaptive_rec.errors import AdaptiveRecError

from .test_weight import modules
from .training import QUICK_WINDOWS


def test_an_embedding_has_torch_s_constructor_and_first_rows() -> None:
    for given in (
        {"padding_idx": 2}, {"padding_idx": -1}, {"_weight": torch.rand(9, 4)}, {"dtype": torch.float32}, {"sparse": True},
    ):  # fmt: skip
        torch.manual_seed(5)
        theirs = nn.Embedding(9, 4, **given)
        torch.manual_seed(5)
        ours = AdaptiveEmbedding(9, 4, **given, optimizer="sgd", lr=0.1, budget="1KiB")
        assert torch.equal(ours.weight.detach() + 0, theirs.weight.detach())
        for name in ("num_embeddings", "embedding_dim", "padding_idx", "max_norm", "sparse", "scale_grad_by_freq"):
            assert getattr(ours, name) == getattr(theirs, name)
        assert isinstance(ours, nn.Embedding)
        assert repr(ours).startswith("AdaptiveEmbedding(9, 4")


def test_an_embedding_without_an_optimizer_is_torch_s() -> None:
    ours = AdaptiveEmbedding(9, 4, padding_idx=1)
    assert type(ours.weight) is nn.Parameter
    assert ours.runtime is None
    assert ours(torch.tensor([[1, 2]])).shape == (1, 2, 4)
    with pytest.raises(AdaptiveRecError, match="budget"):
        AdaptiveEmbedding(9, 4, budget="1KiB")


@pytest.mark.parametrize("freeze", [True, False])
def test_an_embedding_from_given_rows(freeze: bool) -> None:
    rows = torch.rand(9, 4)
    ours = AdaptiveEmbedding.from_pretrained(rows, freeze=freeze, padding_idx=1, optimizer="sgd", lr=0.1, budget="1KiB")
    assert ours.weight.requires_grad is not freeze
    found = ours(torch.arange(9))
    assert torch.equal(found, rows)
    if not freeze:
        found.sum().backward()
    expected = rows if freeze else rows - 0.1 * (torch.arange(9) != 1).unsqueeze(1)
    torch.testing.assert_close(ours.weight.detach() + 0, expected)


def test_an_optimizer_made_of_its_parameters_updates_an_embedding() -> None:
    torch.manual_seed(5)
    theirs = nn.Embedding(200, 4, sparse=True)
    ours = AdaptiveEmbedding(
        200, 4, _weight=theirs.weight.detach(), optimizer=torch.optim.SparseAdam, budget="2KiB", knobs=QUICK_WINDOWS
    )
    optimizers = [torch.optim.SparseAdam(one.parameters(), lr=0.1) for one in (theirs, ours)]
    for number in range(30):
        ids = (200 * torch.rand(6, 5, generator=torch.Generator().manual_seed(number)) ** 3).long()
        for one, optimizer in zip((theirs, ours), optimizers, strict=True):
            optimizer.zero_grad()
            one(ids).sin().sum().backward()
            optimizer.step()
    torch.testing.assert_close(ours.weight.detach() + 0, theirs.weight.detach(), rtol=0, atol=1e-12)
    assert ours.runtime is not None
    assert ours.runtime.stats().migrated_rows > 0


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"max_norm": 1.0}, "max_norm"), ({"scale_grad_by_freq": True}, "scale_grad_by_freq"),
        ({"padding_idx": 9}, "padding_idx"), ({"_weight": torch.zeros(3, 3)}, "_weight"), ({"dtype": torch.int32}, "int32"),
    ],
)  # fmt: skip
def test_what_an_embedding_cannot_do_is_refused(given: dict[str, Any], match: str) -> None:
    with pytest.raises(AdaptiveRecError, match=match):
        AdaptiveEmbedding(9, 4, **given, optimizer="sgd", lr=0.1)


@pytest.mark.parametrize("ids", [torch.tensor([1.0]), torch.tensor([9]), torch.tensor([[-1]])])
def test_ids_that_torch_refuses_are_refused(ids: Tensor) -> None:
    ours = AdaptiveEmbedding(9, 4, optimizer="sgd", lr=0.1)
    with pytest.raises((ValueError, AdaptiveRecError)):
        ours(ids)
    with pytest.raises((RuntimeError, IndexError)):
        nn.Embedding(9, 4)(ids)


def test_options_of_functional_calls_that_rows_cannot_follow_are_refused() -> None:
    _, ours = modules("some hot")
    ids = torch.tensor([1])
    for call, match in (
        (lambda: F.embedding(ids, ours.weight, max_norm=1.0), "max_norm"),
        (lambda: F.embedding(ids, ours.weight, scale_grad_by_freq=True), "scale_grad_by_freq"),
        (lambda: F.embedding_bag(ids.view(1, 1), ours.weight, mode="max"), "mode"),
        (lambda: F.embedding_bag(ids.view(1, 1), ours.weight, max_norm=1.0), "max_norm"),
    ):
        with pytest.raises(AdaptiveRecError, match=match):
            call()

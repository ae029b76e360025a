"""A head that is tied to a table: a layer with the table's weight trains as in torch, wherever the rows are, or is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import adaptive_rec
from adaptive_rec.errors import ConfigError
from adaptive_rec.system.group import Alone, Group

from .ranks import FIRST, patch_ranks
from .training import QUICK_WINDOWS

ROWS, DIM, SAMPLES = 60, 8, 12
RULES: dict[str, Any] = {"adagrad": torch.optim.Adagrad, "sgd": torch.optim.SGD, "adam": torch.optim.Adam}
HOMES: dict[str, Any] = {"some hot": {"budget": "1KiB"}, "cold": {"budget": 0}, "disk": {"host_memory": "4KiB"}}


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.rest = nn.Embedding(ROWS, DIM), nn.Linear(DIM, DIM)
        self.head = nn.Linear(DIM, ROWS, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor, following: Tensor) -> Tensor:
        return functional.cross_entropy(self.head(self.rest(self.tokens(tokens))), following)


def trained(group: Group, rule: str, home: dict[str, Any] | None, steps: int) -> tuple[list[float], dict[str, Tensor]]:
    """Train on a rank's part of each batch, without `home` in plain PyTorch; returns the losses of the whole batches."""
    with FIRST:
        model = LanguageModel()
    optimizer = RULES[rule](model.parameters(), lr=0.05)
    if home is not None:
        adaptive_rec.wrap(model, optimizer=optimizer, knobs=QUICK_WINDOWS, **home)
    losses, own = [], group.part_of(SAMPLES)
    for step in range(steps):
        tokens, following = torch.randint(ROWS, (2, SAMPLES), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = model(tokens[own], following[own])
        loss.backward()
        for parameter in model.rest.parameters():
            assert parameter.grad is not None
            group.add("gradients", parameter.grad.numpy())
            parameter.grad /= group.ranks
        optimizer.step()
        losses.append(float(group.total(loss.detach().numpy().reshape(1))[0]) / group.ranks)
    return losses, copy.deepcopy(model.state_dict())


def assert_same(ours: tuple[list[float], dict[str, Tensor]], theirs: tuple[list[float], dict[str, Tensor]]) -> None:
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-12, atol=0)
    assert ours[1].keys() == theirs[1].keys() > {"head.weight", "tokens.weight"}
    for name, value in theirs[1].items():
        torch.testing.assert_close(ours[1][name], value, rtol=0, atol=1e-12, msg=name)


@pytest.mark.parametrize(
    ("home", "rule"),
    [
        ("some hot", "adam"), ("disk", "adagrad"),
        *(pytest.param(home, rule, marks=pytest.mark.slow) for home in HOMES for rule in RULES),
    ],
)  # fmt: skip
def test_a_tied_head_trains_as_in_torch(home: str, rule: str, tmp_path: Path) -> None:
    where = {**HOMES[home], **({"disk": tmp_path} if home == "disk" else {})}
    assert_same(trained(Alone(), rule, where, 10), trained(Alone(), rule, None, 10))


@pytest.mark.parametrize(("home", "ranks"), [("some hot", 2), pytest.param("disk", 3, marks=pytest.mark.slow)])
def test_a_tied_head_trains_on_ranks_as_in_torch(
    home: str, ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = {**HOMES[home], **({"disk": tmp_path} if home == "disk" else {})}
    theirs = trained(Alone(), "adagrad", None, 6)
    for ours in patch_ranks(monkeypatch)(ranks, lambda group: trained(group, "adagrad", where, 6)):
        assert_same(ours, theirs)


def test_a_tied_head_is_refused_where_its_gradient_would_be_lost() -> None:
    model = LanguageModel()
    with pytest.raises(ConfigError, match=r"modules that can be moved, tokens: its weight is head.weight too"):
        adaptive_rec.wrap(model, optimizer="sgd", lr=0.1, budget="1KiB")  # rows would be updated in the backward pass
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=r"a module with raw ids must be an nn.Embedding .*, a module Linear has the weight"):
        adaptive_rec.wrap(model, optimizer=optimizer, ids="raw", keys={"tokens": None}, budget="1KiB")

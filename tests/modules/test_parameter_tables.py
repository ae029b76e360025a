"""Tables that are parameters of the user's own modules: `wrap` reports them, and moves those that `tables=` names."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaptive_rec
from adaptive_rec.errors import ConfigError
from adaptive_rec.modules.tensors.weight import TieredWeight

from .training import QUICK_WINDOWS, assert_moved


class Model(nn.Module):
    """It reads rows of two parameters, beside a module of torch. Its own names are some that modules of ours have too."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Parameter(torch.randn(300, 4))
        self.items = nn.ParameterList([nn.Parameter(torch.randn(80, 4))])
        self.hours = nn.Embedding(24, 4)
        self.mix = nn.Parameter(torch.randn(4, 4))
        self.bias = nn.Parameter(torch.zeros(300))
        self.runtime: Any = None
        self.raw_ids = 7

    def parts(self, ids: Tensor) -> Tensor:
        return self.users[ids] + nn.functional.embedding(ids % 80, self.items[0]) + self.hours(ids % 24)

    def forward(self, ids: Tensor) -> Tensor:
        assert self.raw_ids == 7
        return (self.parts(ids) @ self.mix).sum(-1) + self.bias[ids]


OPTIMIZERS = {
    "Adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.1),
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
}


def batches(steps: int) -> list[Tensor]:
    dice = torch.Generator().manual_seed(1)
    return [(300 * torch.rand(16, 2, generator=dice) ** 3).long() for _ in range(steps)]


def train(model: nn.Module, optimizer: Any, some: list[Tensor]) -> None:
    for ids in some:
        optimizer.zero_grad()
        (model(ids) - 1).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("rule", OPTIMIZERS)
def test_named_parameters_train_as_in_torch(rule: str) -> None:
    plain = Model()
    ours = copy.deepcopy(plain)
    optimizers = [OPTIMIZERS[rule](model) for model in (plain, ours)]
    runtime = adaptive_rec.wrap(
        ours, tables=["users", "items.0"], optimizer=optimizers[1], budget="2KiB", knobs=QUICK_WINDOWS
    )
    ours.runtime = runtime
    assert [type(one) for one in (ours.users, ours.items[0], ours.hours.weight)] == [TieredWeight] * 3
    assert sorted(runtime.stats().tables) == ["hours", "items.0", "users"]
    assert "users: 300 rows x 4" in runtime.report.replaced
    assert runtime.report.left == ()
    for model, optimizer in zip((plain, ours), optimizers, strict=True):
        train(model, optimizer, batches(40))
    assert_moved(runtime)
    state = {name: rows.clone() for name, rows in ours.state_dict().items()}
    for name, rows in plain.state_dict().items():
        torch.testing.assert_close(state[name], rows, rtol=0, atol=1e-11)
    ours.runtime = None  # a runtime cannot be copied
    assert type(copy.deepcopy(ours).users) is nn.Parameter
    ours.load_state_dict(plain.state_dict())
    adaptive_rec.unwrap(ours, optimizers[1])
    assert type(ours) is Model
    assert type(ours.users) is nn.Parameter
    for model, optimizer in zip((plain, ours), optimizers, strict=True):
        train(model, optimizer, batches(5))
    for name, rows in plain.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], rows, rtol=0, atol=1e-11)


def test_a_model_without_modules_of_embeddings_is_served_by_names() -> None:
    class Only(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.zeros(40, 4))

    message = r"table: a parameter of 40 rows x 4, 1.2KiB, .* wrap\(\.\.\., tables=\[\"table\"\]\) moves it too"
    with pytest.raises(ConfigError, match=message):
        adaptive_rec.wrap(Only(), optimizer="sgd", lr=1.0)
    model = Only()
    runtime = adaptive_rec.wrap(model, tables=["table"], optimizer="sgd", lr=1.0)
    model.table[torch.tensor([3, 3, 5])].sum().backward()
    assert model.state_dict()["table"][:6, 0].tolist() == [0, 0, 0, -2, 0, -1]
    assert (runtime.stats().steps, runtime.stats().lookups) == (1, 3)


def test_parameters_that_may_be_tables_are_reported_with_their_size() -> None:
    runtime = adaptive_rec.wrap(Model(), optimizer="sgd", lr=0.1, budget="2KiB")
    left = dict(runtime.report.left)
    assert sorted(left) == ["items.0", "users"]
    assert left["users"].startswith("a parameter of 300 rows x 4, 9.4KiB, and no module of embeddings")
    assert 'wrap(..., tables=["items.0"])' in str(runtime.report)
    many = nn.ModuleDict({"films": nn.Embedding(9, 4), "many": nn.ParameterList(torch.zeros(9, 2) for _ in range(23))})
    left = dict(adaptive_rec.wrap(many, optimizer="sgd", lr=0.1, budget="2KiB").report.left)
    assert len(left) == 21
    assert left["..."] == "3 more parameters with more rows than dims"


@pytest.mark.parametrize(
    ("named", "words"),
    [
        (["user"], "tables must name parameters of the model, got user; did you mean users"),
        ("users", "tables must be a list of names of parameters, got the text 'users'"),
        (["bias"], r"got bias: of shape \(300,\), a table has rows and a dim"),
        (["largest.weight"], "got largest.weight: mode must be sum or mean"),
        (["frozen"], "got frozen: frozen"),
    ],
)
def test_names_that_are_no_tables_are_refused_and_change_nothing(named: Any, words: str) -> None:
    model: Any = Model()
    model.largest = nn.EmbeddingBag(20, 4, mode="max")
    model.frozen = nn.Parameter(torch.zeros(9, 4), requires_grad=False)
    with pytest.raises(ConfigError, match=words):
        adaptive_rec.wrap(model, tables=named, optimizer="sgd", lr=0.1)
    assert type(model) is Model
    assert type(model.users) is nn.Parameter


def test_raw_ids_are_for_modules() -> None:
    with pytest.raises(ConfigError, match='tables must be left out where ids="raw"'):
        adaptive_rec.wrap(Model(), tables=["users"], ids="raw", keys={"hours": None}, optimizer="sgd", lr=0.1)


# Budgets -------------------------------------------------------------------------------------------------------------


def tables(dtype: torch.dtype = torch.float32) -> nn.ModuleDict:
    return nn.ModuleDict({"wide": nn.Embedding(90, 16, dtype=dtype), "thin": nn.EmbeddingBag(50, 4, mode="sum", dtype=dtype)})


@pytest.mark.parametrize(
    ("optimizer", "dtype", "least"),
    [("sgd", torch.float32, 64), ("adagrad", torch.float32, 128), ("adagrad", torch.float64, 256), ("sgd", torch.bfloat16, 32)],
)
def test_a_budget_under_which_no_row_fits_is_refused_with_the_least(optimizer: str, dtype: torch.dtype, least: int) -> None:
    """A row of 16 components with as many of state; pools share the budget by their lookups, so a thin row needs more."""
    for budget in (1, f"{least - 1}B"):
        model = tables(dtype)
        with pytest.raises(ConfigError, match=rf"budget must be 0, for no hot rows, or at least {least} bytes"):
            adaptive_rec.wrap(model, optimizer=optimizer, lr=0.1, budget=budget)
        assert type(model["wide"]) is nn.Embedding
    runtime = adaptive_rec.wrap(tables(dtype), optimizer=optimizer, lr=0.1, budget=least)
    assert sum(runtime.store.hot.tier.capacities) == 1
    with pytest.raises(ConfigError, match=rf"hot_budget_bytes must be 0, .* at least {least} bytes.* got {least - 1}"):
        runtime.set_knobs(hot_budget_bytes=least - 1)
    runtime.set_knobs(hot_budget_bytes=0)


def test_a_budget_without_a_hot_tier_is_left_alone() -> None:
    adaptive_rec.wrap(tables(), optimizer="sgd", lr=0.1, budget=0)
    adaptive_rec.wrap(tables(), optimizer="sgd", lr=0.1, budget=1, policy="hybrid")
    runtime = adaptive_rec.wrap(tables(), optimizer="sgd", lr=0.1, budget=1, policy="device_only")
    assert sum(runtime.store.hot.tier.capacities) == 140


def test_the_budget_of_modules_and_collections_is_checked_too() -> None:
    with pytest.raises(ConfigError, match="at least 64 bytes"):
        adaptive_rec.AdaptiveEmbedding(50, 16, dtype=torch.float32, optimizer="sgd", lr=0.1, budget="63B")
    table = adaptive_rec.EmbeddingBagConfig("t", 16, 50, ["f"])
    for kind in (adaptive_rec.AdaptiveEmbeddingBagCollection, adaptive_rec.AdaptiveEmbeddingCollection):
        with pytest.raises(ConfigError, match="at least 64 bytes"):
            kind([table], dtype=torch.float32, optimizer="sgd", lr=0.1, budget=63)

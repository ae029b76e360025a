"""Tables of one model under optimizers of their own: one budget, one report, and the results of plain torch."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaptive_rec
from adaptive_rec.errors import ConfigError

from .cases import failures
from .ranks import patch_ranks

MAKERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.1),
    "momentum": lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adagrad": lambda weights: torch.optim.Adagrad(weights, lr=0.1),
    "adam": lambda weights: torch.optim.Adam(weights, lr=0.02),
    "fast adam": lambda weights: torch.optim.Adam(weights, lr=0.05, betas=(0.8, 0.9)),
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=0.02, weight_decay=0.1),
    "rmsprop": lambda weights: torch.optim.RMSprop(weights, lr=0.01, momentum=0.5),
}
STEPS = 6


class Model(nn.Module):
    """Two tables of one dim, one of another, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.users, self.items, self.bags = nn.Embedding(60, 4), nn.Embedding(50, 4), nn.EmbeddingBag(40, 6, mode="sum")
        self.top = nn.Linear(6, 4)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return ((self.users(batch["users"]) + self.top(self.bags(batch["bags"]))) * self.items(batch["items"])).sum(1)


def batches(count: int = STEPS) -> list[dict[str, Tensor]]:
    dice = torch.Generator().manual_seed(1)
    shapes = {"users": (60, (8,)), "items": (50, (8,)), "bags": (40, (8, 3))}
    return [{name: torch.randint(rows, shape, generator=dice) for name, (rows, shape) in shapes.items()} for _ in range(count)]


def optimizers_of(model: Model, names: tuple[str, ...]) -> list[torch.optim.Optimizer]:
    """Return an optimizer of the users, one of items and bags, and one of the dense layer."""
    weights = [model.users.weight], [model.items.weight, model.bags.weight]
    made = [MAKERS[name](own) for name, own in zip(names, weights, strict=True)]
    return [*made, torch.optim.SGD(model.top.parameters(), lr=0.1)]


def step(model: Model, optimizers: list[torch.optim.Optimizer], batch: dict[str, Tensor]) -> None:
    for each in optimizers:
        each.zero_grad()
    nn.functional.softplus(model(batch)).mean().backward()
    for each in optimizers:
        each.step()


def train(
    names: tuple[str, ...], adaptive: bool, ahead: bool = False, start: Model | None = None, **options: Any
) -> tuple[Model, list[Any], Any]:
    model = copy.deepcopy(start) if start is not None else Model()
    optimizers = optimizers_of(model, names)
    runtime = None
    if adaptive:
        options = {"budget": "2KiB", "optimizer": optimizers, "knobs": {"reclassify_every": 2}} | options
        runtime = adaptive_rec.wrap(model, **options)
    loop: Any = batches()
    if ahead and runtime is not None:
        loop = runtime.prefetch(loop, sparse=dict)
    for batch in loop:
        step(model, optimizers, batch)
    return model, optimizers, runtime


def assert_equal(ours: nn.Module, theirs: nn.Module) -> None:
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-11, atol=1e-12)


PAIRS = [("adagrad", "sgd"), ("sgd", "adam"), ("adam", "fast adam"), ("momentum", "adamw"), ("rmsprop", "adagrad")]


def compare(names: tuple[str, ...], **options: Any) -> None:
    ours, own, runtime = train(names, True, **options)
    theirs, plain, _ = train(names, False)
    assert_equal(ours, theirs)
    for mine, other in zip(own, plain, strict=True):
        torch.testing.assert_close(
            copy.deepcopy(mine.state_dict()["state"]), other.state_dict()["state"], rtol=1e-11, atol=1e-12
        )
    assert runtime.stats().device_bytes <= runtime.stats().budget_bytes


@pytest.mark.parametrize("ahead", [False, True], ids=["", "ahead"])
def test_each_table_is_trained_as_by_its_optimizer_in_torch(ahead: bool) -> None:
    assert failures(PAIRS, lambda names: compare(names, ahead=ahead)) == {}


@pytest.mark.slow
def test_all_pairs_of_optimizers_train_as_in_torch() -> None:
    assert failures(itertools.product(MAKERS, repeat=2), compare) == {}


def test_rows_on_a_disk_are_trained_as_in_torch(tmp_path: Path) -> None:
    compare(("adam", "adagrad"), budget=None, host_memory="1MiB", disk=tmp_path)


def test_rows_of_raw_ids_have_their_optimizers() -> None:
    """A dictionary of ids of every row: the rows are those of the plain model."""
    keys = {name: torch.arange(rows) * 7 for name, rows in (("users", 60), ("items", 50), ("bags", 40))}
    theirs, _, _ = train(("adagrad", "sgd"), False)
    model = Model()
    optimizers = optimizers_of(model, ("adagrad", "sgd"))
    adaptive_rec.wrap(model, budget="2KiB", optimizer=optimizers, ids="raw", keys=keys)
    for batch in batches():
        step(model, optimizers, {name: ids * 7 for name, ids in batch.items()})
    for name in keys:
        (ids, rows), *_ = getattr(model, name).keys_and_rows()
        torch.testing.assert_close(rows, getattr(theirs, name).weight.detach()[ids // 7], rtol=1e-11, atol=1e-12)


def test_ranks_train_each_table_as_its_optimizer_does(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, _, _ = train(("adam", "adagrad"), False)
    start = Model()  # threads share the dice of torch

    def work(group: Any) -> dict[str, Tensor]:
        return train(("adam", "adagrad"), True, start=start)[0].state_dict()

    for state in patch_ranks(monkeypatch)(2, work):
        tables = {name: state[name] for name in ("users.weight", "items.weight", "bags.weight")}
        expected = {name: theirs.state_dict()[name] for name in tables}
        torch.testing.assert_close(tables, expected, rtol=1e-11, atol=1e-12)


def test_rows_are_updated_in_the_backward_pass_at_the_rates_of_their_optimizers() -> None:
    ours, _, _ = train(("adagrad", "sgd"), True, update="backward")
    theirs, _, _ = train(("adagrad", "sgd"), False)
    assert_equal(ours, theirs)


def test_one_report_and_one_budget() -> None:
    _, _, runtime = train(("adagrad", "momentum"), True, ahead=True)
    assert "3 tables, 150 rows in two tiers: policy hotline, updates adagrad, SGD, up to 2.0KiB" in str(runtime.report)
    stats = runtime.stats()
    assert stats.budget_bytes == 2048
    assert stats.steps == 2 * STEPS, "a step of each optimizer"
    assert stats.looked_up_ahead_ratio == 0.5, "the first step of an item ends what was looked up ahead"
    assert runtime.lr == 0.1
    with pytest.raises(ConfigError, match="lr must be set in the param groups"):
        runtime.lr = 0.2


def test_a_learning_rate_is_that_of_the_tables_own_optimizer() -> None:
    found = []
    for adaptive in (False, True):
        model = Model()
        optimizers = optimizers_of(model, ("sgd", "adam"))
        if adaptive:
            adaptive_rec.wrap(model, budget="2KiB", optimizer=optimizers)
        schedules = [torch.optim.lr_scheduler.ExponentialLR(each, 0.5 + 0.1 * n) for n, each in enumerate(optimizers)]
        for batch in batches():
            step(model, optimizers, batch)
            for each in schedules:
                each.step()
        found.append(model)
    assert_equal(found[1], found[0])


def test_a_loop_resumes_from_its_state_and_from_those_of_its_optimizers() -> None:
    names, more = ("adam", "adagrad"), batches(9)[STEPS:]
    theirs, plain, _ = train(names, False)
    first, own, runtime = train(names, True)
    states = copy.deepcopy([each.state_dict() for each in own])
    kept, rows = runtime.state_dict(), copy.deepcopy(first.state_dict())
    for batch in more:
        step(theirs, plain, batch)
    for by_runtime in (True, False):
        model = Model()
        optimizers = optimizers_of(model, names)
        again = adaptive_rec.wrap(model, budget="2KiB", optimizer=optimizers)
        model.load_state_dict(rows)
        if by_runtime:
            again.load_state_dict(kept)
        else:
            for optimizer, state in zip(optimizers, states, strict=True):
                optimizer.load_state_dict(copy.deepcopy(state))
        for batch in more:
            step(model, optimizers, batch)
        assert_equal(model, theirs)


@pytest.mark.parametrize("given", [True, False], ids=["given", "left"])
def test_an_unwrapped_model_goes_on_under_all_optimizers(given: bool) -> None:
    names, more = ("adam", "momentum"), batches(9)[STEPS:]
    theirs, plain, _ = train(names, False)
    ours, own, _ = train(names, True)
    adaptive_rec.unwrap(ours, own if given else None)
    for batch in more:
        step(theirs, plain, batch)
        step(ours, own, batch)
    assert_equal(ours, theirs)


def test_what_does_not_fit_is_refused_by_name() -> None:
    model = Model()
    users, rest, top = optimizers_of(model, ("sgd", "adam"))
    both = torch.optim.Adagrad([model.users.weight, model.items.weight], lr=0.1)
    wrong: dict[str, Any] = {
        "table users must be held by one of the 2 optimizers given, it is by none": [rest, top],
        "table users must be held by one of the 3 optimizers given, it is by SGD and Adagrad": [users, rest, both],
        "must have each optimizer once, got 3": [users, rest, users],
        "must have each optimizer once, got 0": [],
        "hold the tables, got Adam$": [users, torch.optim.Adam],
        "hold the tables, got 'sgd'$": [users, "sgd"],
        "must hold the weights of all 3 tables, got 1 .*give wrap a list": users,
        "got NAdam": [users, torch.optim.NAdam([model.items.weight, model.bags.weight])],
    }

    def refused(text: str) -> None:
        with pytest.raises(ConfigError, match=text):
            adaptive_rec.wrap(model, budget="2KiB", optimizer=wrong[text])
        assert type(model.users) is nn.Embedding

    assert failures(wrong, refused) == {}
    with pytest.raises(ConfigError, match="lr must be left to the optimizer that is given"):
        adaptive_rec.wrap(model, budget="2KiB", optimizer=[users, rest], lr=0.1)


def test_an_optimizer_that_is_not_the_tables_own_is_refused_at_its_step() -> None:
    model = Model()
    optimizers = optimizers_of(model, ("sgd", "adam"))
    adaptive_rec.wrap(model, budget="2KiB", optimizer=optimizers)
    other = torch.optim.Adam([model.users.weight], lr=0.1)
    model(batches(1)[0]).sum().backward()
    with pytest.raises(ConfigError, match="rows must be updated as wrap was told, by sgd"):
        other.step()


def test_pools_of_one_dim_stand_together_whatever_the_rules() -> None:
    """The first and the last table have one dim and two rules, the table between them another dim."""
    found = []
    for wrapped in (False, True):
        torch.manual_seed(3)
        dims = {"a": 2, "b": 3, "c": 2}
        model = nn.ModuleDict({name: nn.Embedding(4, dim, dtype=torch.float64) for name, dim in dims.items()})
        rules = [
            torch.optim.SGD([model[name].weight], lr=0.1, momentum=momentum)
            for name, momentum in zip("abc", (0.0, 0.0, 0.9), strict=True)
        ]
        if wrapped:
            adaptive_rec.wrap(model, budget=0, optimizer=rules)
        for step in range(3):
            for rule in rules:
                rule.zero_grad()
            sum(table(torch.tensor([step, 1])).sin().sum() for table in model.values()).backward()
            for rule in rules:
                rule.step()
        found.append([table.weight.detach().clone() for table in model.values()])
    for plain, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-14)

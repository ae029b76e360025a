"""Adam and AdamW over a table: rows that are not touched move as in torch, whenever they are looked at."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaptive_rec
from adaptive_rec.embedding.adam_steps import FIRST_SERIES_STEP
from adaptive_rec.errors import AdaptiveRecError, ConfigError
from adaptive_rec.modules.loop.dense_steps import DenseSteps

from .cases import few_or_many_steps
from .training import QUICK_WINDOWS, wrapped

ROWS, DIM = 400, 6
KINDS = {
    "adam": lambda weights: torch.optim.Adam(weights, lr=0.01),
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=0.01, weight_decay=0.05, betas=(0.8, 0.99), eps=1e-6),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def model_of() -> nn.Module:
    torch.manual_seed(0)
    return nn.ModuleDict({"table": nn.Embedding(ROWS, DIM), "dense": nn.Linear(DIM, 1)})


def train(model: Any, optimizer: Any, steps: range, scheduler: Any = None) -> list[float]:
    losses = []
    for number in steps:
        dice = torch.Generator().manual_seed(number)
        ids = (ROWS * torch.rand(8, 3, generator=dice) ** 4).long()
        optimizer.zero_grad()
        loss = (model["dense"](model["table"](ids)).squeeze(-1) - torch.sin(ids)).square().mean()
        loss.backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(loss.item())
    return losses


def both(kind: str, **options: Any) -> list[tuple[Any, Any]]:
    models = [model_of(), model_of()]
    optimizers = [KINDS[kind](model.parameters()) for model in models]
    wrapped(models[1], optimizers[1], budget=4000, **options)
    return list(zip(models, optimizers, strict=True))


def same(theirs: Any, ours: Any, atol: float = 1e-12) -> None:
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=0, atol=atol)


@each_kind
def test_steps_late_in_a_training_are_those_of_torch(kind: str) -> None:
    """From the step on from which many missed steps are made at once, under a schedule. Most steps before it are said, not made:
    moments are what they would be had all gradients been like the first ones."""
    models = [model_of(), model_of()]
    optimizers = [KINDS[kind](model.parameters()) for model in models]
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer, range(10))
        for state in optimizer.state.values():
            for name, beta in zip(("exp_avg", "exp_avg_sq"), optimizer.param_groups[0]["betas"], strict=True):
                state[name] /= 1 - beta**10
            state["step"] += FIRST_SERIES_STEP
    wrapped(models[1], optimizers[1], budget=4000)
    losses = []
    for model, optimizer in zip(models, optimizers, strict=True):
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
        losses.append(train(model, optimizer, range(10, 100), scheduler))
    assert losses[1] == pytest.approx(losses[0], rel=1e-9)
    same(*models, atol=1e-11)
    assert models[1]["table"].weight.runtime.stats().migrated_rows > 0


@pytest.mark.slow
@each_kind
def test_thousands_of_steps_are_those_of_torch(kind: str) -> None:
    """Beyond the step from which many missed steps are made at once, under a schedule."""
    losses, pairs, steps = [], both(kind), FIRST_SERIES_STEP + 500
    for model, optimizer in pairs:
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        losses.append(train(model, optimizer, range(steps), scheduler))
    assert losses[1] == pytest.approx(losses[0], rel=1e-9)
    same(pairs[0][0], pairs[1][0], atol=1e-11)
    assert pairs[1][0]["table"].weight.runtime.stats().migrated_rows > 0


def test_a_missed_catch_up_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison sees a fault that is planted: rows are read as their last step left them."""
    (theirs, optimizer), (ours, own) = both("adam")
    monkeypatch.setattr(DenseSteps, "catch_up", lambda *given: None)
    assert train(ours, own, range(60)) != pytest.approx(train(theirs, optimizer, range(60)), rel=1e-6)


@few_or_many_steps(15, 40, kind=KINDS)
def test_a_state_that_was_handed_over_goes_on(kind: str, steps: int) -> None:
    models = [model_of(), model_of()]
    optimizers = [KINDS[kind](model.parameters()) for model in models]
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer, range(steps))
    wrapped(models[1], optimizers[1], budget=4000)
    losses = [train(model, optimizer, range(steps, 3 * steps)) for model, optimizer in zip(models, optimizers, strict=True)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-10)
    same(*models)
    adaptive_rec.unwrap(models[1], optimizers[1])
    losses = [train(model, optimizer, range(3 * steps, 4 * steps)) for model, optimizer in zip(models, optimizers, strict=True)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-10)
    same(*models)


@few_or_many_steps(30, 70, kind=KINDS, runtime_first=[True, False])
def test_a_saved_state_goes_on(kind: str, runtime_first: bool, steps: int) -> None:
    (theirs, optimizer), (ours, own) = both(kind)
    for model, one in ((theirs, optimizer), (ours, own)):
        train(model, one, range(steps))
    runtime = ours["table"].weight.runtime
    parts = {"runtime": runtime.state_dict, "model": ours.state_dict}
    saved = {name: parts[name]() for name in (parts if runtime_first else reversed(parts))}
    dense = {"state": own.state_dict()["state"], "param_groups": own.state_dict()["param_groups"]}
    again = model_of()
    its = KINDS[kind](again.parameters())
    resumed = wrapped(again, its, budget=4000)
    train(again, its, range(3))  # it must all come from what was saved
    again.load_state_dict(saved["model"])
    its.load_state_dict(dense)
    resumed.load_state_dict(saved["runtime"])
    found, wanted = (train(*one, range(steps, 2 * steps)) for one in ((again, its), (theirs, optimizer)))
    assert found == pytest.approx(wanted, rel=1e-10)
    same(theirs, again)


@each_kind
def test_a_write_finds_the_moments_of_the_present_step(kind: str) -> None:
    (theirs, optimizer), (ours, own) = both(kind)
    for model, one in ((theirs, optimizer), (ours, own)):
        train(model, one, range(30))
        with torch.no_grad():
            model["table"].weight[5] = 1.0
            model["table"].weight[torch.tensor([300, 301])].mul_(2.0)
        train(model, one, range(30, 50))
        with torch.no_grad():
            model["table"].weight.mul_(0.5)
        train(model, one, range(50, 70))
    same(theirs, ours)


def test_tables_that_are_left_out_of_a_step_miss_it_in_torch_too() -> None:
    found = []
    for adaptive in (False, True):
        torch.manual_seed(0)
        tables = nn.ModuleList([nn.Embedding(50, 4), nn.Embedding(60, 4)])
        optimizer = torch.optim.AdamW(tables.parameters(), lr=0.05)
        if adaptive:
            wrapped(tables, optimizer, budget=2000)
        for number in range(60):
            optimizer.zero_grad()
            ids = torch.randint(50, (4,), generator=torch.Generator().manual_seed(number))
            which = [tables[0]] if number % 3 else list(tables)
            torch.stack([table(ids).sin().sum() for table in which]).sum().backward()
            optimizer.step()
        found.append(tables.state_dict())
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "match"),
    [({"policy": "slipstream"}, "Adam, which moves every row"), ({"device": "meta"}, "Adam, which moves every row")],
)
def test_where_adam_is_not_dense_is_refused(options: dict[str, Any], match: str) -> None:
    model = model_of()
    with pytest.raises(AdaptiveRecError, match=match):
        adaptive_rec.wrap(model, optimizer=torch.optim.Adam(model.parameters()), knobs=QUICK_WINDOWS, **options)
    assert type(model["table"]) is nn.Embedding


@pytest.mark.parametrize(
    "optimizer",
    [
        torch.optim.Adam, torch.optim.RMSprop, partial(torch.optim.SGD, momentum=0.9),
        partial(torch.optim.Adagrad, weight_decay=0.1),
    ],
)
@pytest.mark.parametrize("policy", ["slipstream", "random_skip", "adaptive"])
def test_a_policy_that_skips_is_refused_later_too(optimizer: Any, policy: str) -> None:
    model = model_of()
    runtime = adaptive_rec.wrap(model, optimizer=optimizer(model.parameters(), lr=0.1), budget="8KiB", knobs=QUICK_WINDOWS)
    with pytest.raises(ConfigError, match=f"policy must be exact .* which moves every row at every step, got {policy}"):
        runtime.set_knobs(policy=policy)
    assert runtime.stats().policy == "hotline"


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad])
def test_an_eps_of_zero_is_refused(kind: Any) -> None:
    model = model_of()
    with pytest.raises(ConfigError, match="eps must be greater than 0, got 0.0"):
        adaptive_rec.wrap(model, optimizer=kind(model.parameters(), lr=0.1, eps=0.0))


def test_knobs_of_the_guard_are_refused_in_a_loop() -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match="guard_ratio must be 0.0625 in a user's loop, which gives no losses of single samples"):
        adaptive_rec.wrap(model, optimizer=optimizer, policy="adaptive", knobs={"guard_ratio": 0.5})


def test_rows_of_padding_decay_and_get_no_gradient() -> None:
    found: list[Tensor] = []
    for adaptive in (False, True):
        torch.manual_seed(0)
        model = nn.ModuleDict({"table": nn.Embedding.from_pretrained(torch.rand(9, 3), freeze=False, padding_idx=2)})
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
        if adaptive:
            wrapped(model, optimizer)
        for _ in range(12):
            optimizer.zero_grad()
            model["table"](torch.tensor([1, 2, 2])).sum().backward()
            optimizer.step()
        found.append(model["table"](torch.arange(9)).detach())
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-14)

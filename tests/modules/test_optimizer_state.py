"""Optimizer state as torch has it: it belongs to an optimizer, is read, changed, saved, loaded, cleared and copied."""

from __future__ import annotations

import copy
import io
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaptive_rec
from adaptive_rec.modules.loop.row_states import RowState
from tests.matrix import always, grid

MAKERS: dict[str, Any] = {
    "adam": lambda weights: torch.optim.Adam(weights, lr=0.05),
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=0.05, weight_decay=0.1),
    "momentum": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
    "rmsprop": lambda weights: torch.optim.RMSprop(weights, lr=0.01),
    "adagrad": lambda weights: torch.optim.Adagrad(weights, lr=0.1),
    "sparse adam": lambda weights: torch.optim.SparseAdam(list(weights), lr=0.1),
}
each_maker = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
NAMES = list(MAKERS)


def now_or_slow(names: list[str]) -> pytest.MarkDecorator:
    """Some makers run in `make test`, the others in `make check`: to unwrap a model takes long."""
    marks = {name: [] if name in names else [pytest.mark.slow] for name in MAKERS}
    return pytest.mark.parametrize("make", [pytest.param(MAKERS[name], id=name, marks=marks[name]) for name in MAKERS])


def steps(model: nn.Module, optimizer: Any, count: int = 3, first: int = 0) -> None:
    for step in range(count):
        optimizer.zero_grad()
        model(torch.arange(first + step, first + step + 8)).square().sum().backward()
        optimizer.step()


def rows_after(loop: Any, make: Any) -> list[Tensor]:
    """Return what a loop leaves, plain and in tiers."""
    found = []
    for adaptive in (False, True):
        torch.manual_seed(0)
        model = nn.Embedding(50, 4, sparse=make is MAKERS["sparse adam"])
        optimizer = make(model.parameters())
        if adaptive:
            adaptive_rec.wrap(model, budget="1KiB", optimizer=optimizer, knobs={"reclassify_every": 2})
        found.append(loop(model, optimizer).detach().clone())
    return found


def assert_equal(loop: Any, make: Any) -> None:
    theirs, ours = rows_after(loop, make)
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)


@each_maker
def test_another_optimizer_starts_from_nothing(make: Any) -> None:
    def loop(model: nn.Module, optimizer: Any) -> Tensor:
        steps(model, optimizer)
        steps(model, make(model.parameters()), first=5)
        return model.weight

    assert_equal(loop, make)


@each_maker
def test_two_optimizers_in_turn_have_a_state_each(make: Any) -> None:
    def loop(model: nn.Module, optimizer: Any) -> Tensor:
        other = make(model.parameters())
        for turn in range(4):
            steps(model, optimizer if turn % 2 else other, 2, first=turn)
        return model.weight

    assert_equal(loop, make)


@pytest.mark.parametrize("make", [MAKERS[name] for name in ("adam", "momentum", "rmsprop", "sparse adam")])
def test_a_cleared_state_is_cleared(make: Any) -> None:
    def loop(model: nn.Module, optimizer: Any) -> Tensor:
        steps(model, optimizer)
        optimizer.state.clear()
        steps(model, optimizer, first=4)
        return model.weight

    assert_equal(loop, make)


@each_maker
@pytest.mark.parametrize("through_a_file", [False, True])
def test_a_state_dict_takes_the_state_back(make: Any, through_a_file: bool) -> None:
    def loop(model: nn.Module, optimizer: Any) -> Tensor:
        steps(model, optimizer)
        if through_a_file:
            file = io.BytesIO()
            torch.save(optimizer.state_dict(), file)
            file.seek(0)
        saved = None if through_a_file else copy.deepcopy(optimizer.state_dict())
        steps(model, optimizer, first=2)
        optimizer.load_state_dict(torch.load(file, weights_only=True) if through_a_file else saved)
        steps(model, optimizer, first=20)
        return model.weight

    assert_equal(loop, make)


def moved(found: Any) -> Any:
    """What accelerate makes of a state that it moves to a device: anew, by its type."""
    if isinstance(found, Mapping):
        made: Any = type(found)
        return made(OrderedDict((key, moved(each)) for key, each in found.items()))
    return found.to("cpu") if isinstance(found, Tensor) else found


@each_maker
@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("whole", [True, False])
def test_a_state_that_is_made_anew_by_its_type_goes_on(make: Any, before: int, whole: bool) -> None:
    def loop(model: nn.Module, optimizer: Any) -> Tensor:
        steps(model, optimizer, before)
        if whole:
            optimizer.load_state_dict(moved(optimizer.state_dict()))
        else:
            for weight, state in optimizer.state.items():
                optimizer.state[weight] = moved(state)
        steps(model, optimizer, first=5)
        return model.weight

    assert_equal(loop, make)


@each_maker
def test_the_state_can_be_read_and_changed(make: Any) -> None:
    def loop(model: nn.Module, optimizer: Any) -> Tensor:
        steps(model, optimizer)
        state = optimizer.state[model.weight]
        for name in sorted(state):
            if name != "step":
                state[name].mul_(0.25)
        kept = torch.cat([state[name].clone() for name in sorted(state) if name != "step"], dim=1)
        steps(model, optimizer, first=2)
        return torch.cat([model.weight.detach().clone(), kept], dim=1)

    assert_equal(loop, make)


@each_maker
def test_a_copy_of_model_and_optimizer_trains_on(make: Any) -> None:
    def loop(model: nn.Module, optimizer: Any) -> Tensor:
        steps(model, optimizer)
        copied, its_optimizer = copy.deepcopy((model, optimizer))
        steps(copied, its_optimizer, first=3)
        steps(model, optimizer, 1)
        return torch.cat([copied.weight, model.weight])

    assert_equal(loop, make)


@now_or_slow(["adam", "momentum"])
def test_unwrapping_gives_every_optimizer_its_state(make: Any) -> None:
    def loop(model: nn.Module, optimizer: Any) -> Tensor:
        steps(model, optimizer)
        if isinstance(model, adaptive_rec.AdaptiveEmbedding):
            adaptive_rec.unwrap(model)
        steps(model, optimizer, first=3)
        return model.weight

    assert_equal(loop, make)


@pytest.mark.parametrize("named", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_state_that_was_changed_before_unwrapping_stays_changed(named: bool) -> None:
    def loop(model: nn.Module, optimizer: Any) -> Tensor:
        steps(model, optimizer)
        optimizer.state[model.weight]["exp_avg"].mul_(0.25)
        if isinstance(model, adaptive_rec.AdaptiveEmbedding):
            adaptive_rec.unwrap(model, optimizer if named else None)
        steps(model, optimizer, first=3)
        return model.weight

    assert_equal(loop, MAKERS["adam"])


def test_nothing_is_exported_unless_it_is_read() -> None:
    model = nn.Embedding(50, 4)
    optimizer = torch.optim.Adam(model.parameters())
    adaptive_rec.wrap(model, budget="1KiB", optimizer=optimizer)
    steps(model, optimizer)
    entry = optimizer.state[model.weight]
    assert isinstance(entry, RowState)
    assert repr(entry) == "RowState(in tiers)"
    optimizer.state_dict()
    copy.deepcopy(optimizer.state_dict())
    assert not entry.was_read
    assert set(entry) == {"step", "exp_avg", "exp_avg_sq"}
    assert entry.was_read
    steps(model, optimizer, 1)
    assert not optimizer.state[model.weight].was_read


@grid(
    always,
    lambda cases: [case for case in cases if tuple(case.values()) in {("adamw", True), ("rmsprop", False)}],
    name=NAMES,
    read=[True, False],
)
def test_a_state_that_was_loaded_before_unwrapping_is_kept(name: str, read: bool) -> None:
    def loop(model: nn.Module, optimizer: Any) -> Tensor:
        steps(model, optimizer)
        saved = copy.deepcopy(optimizer.state_dict())
        steps(model, optimizer, first=3)
        optimizer.load_state_dict(saved)
        if read:
            optimizer.state_dict()
        if isinstance(model, adaptive_rec.AdaptiveEmbedding):
            adaptive_rec.unwrap(model, optimizer)
        steps(model, optimizer, first=6)
        return model.weight

    assert_equal(loop, MAKERS[name])


@grid(
    always,
    lambda cases: [case for case in cases if tuple(case.values()) in {("adagrad", "adam"), ("adam", "sparse adam")}],
    before=["adagrad", "adam"],
    after=NAMES,
)
def test_unwrapping_for_a_new_optimizer_gives_it_no_state(before: str, after: str) -> None:
    def loop(model: nn.Module, optimizer: Any) -> Tensor:
        steps(model, optimizer)
        another = MAKERS[after](model.parameters())
        if isinstance(model, adaptive_rec.AdaptiveEmbedding):
            adaptive_rec.unwrap(model, another)
        if after == "sparse adam":
            model.sparse = True
        steps(model, another, first=3)
        return model.weight

    assert_equal(loop, MAKERS[before])

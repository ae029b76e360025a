"""State dictionaries that are kept without a copy, beside plain torch: there they hold the live tensors (torch 2.13.0), so
loading one back changes nothing. Ours hold copies: they give the same, or are refused by name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaptive_rec
from adaptive_rec.errors import ConflictError

MAKERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adam": lambda weights: torch.optim.Adam(weights, lr=0.05),
    "momentum": lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.9),
    "rmsprop": lambda weights: torch.optim.RMSprop(weights, lr=0.01, momentum=0.9, centered=True),
    "adagrad": lambda weights: torch.optim.Adagrad(weights, lr=0.1),
    "sparse adam": lambda weights: torch.optim.SparseAdam(list(weights), lr=0.05),
}
each_maker = pytest.mark.parametrize("name", MAKERS)


class Model(nn.Module):
    """Two modules over one table, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.again = nn.Embedding(40, 4), nn.Embedding(40, 4)
        self.again.weight = self.items.weight
        self.top = nn.Linear(4, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.top(self.items(ids) * self.again(ids + 1))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, first: int = 0) -> None:
    optimizer.zero_grad()
    model(torch.arange(first, first + 20)).square().mean().backward()
    optimizer.step()


def results(loop: Callable[[nn.Module, torch.optim.Optimizer], object], make: Any = MAKERS["adam"], model: Any = Model) -> None:
    """Hold the parameters that a loop leaves in a wrapped model to those of a plain one."""
    found = []
    for wrapped in (False, True):
        torch.manual_seed(0)
        made = model()
        optimizer = make(made.parameters())
        if wrapped:
            adaptive_rec.wrap(made, budget="1KiB", optimizer=optimizer, knobs={"reclassify_every": 2})
        loop(made, optimizer)
        found.append([one.detach().clone() for one in made.parameters()])
    torch.testing.assert_close(found[1], found[0], rtol=1e-11, atol=1e-12)


def trained(make: Any = MAKERS["adam"], model: Any = Model) -> tuple[nn.Module, torch.optim.Optimizer]:
    made = model()
    optimizer = make(made.parameters())
    adaptive_rec.wrap(made, budget="1KiB", optimizer=optimizer)
    step(made, optimizer)
    return made, optimizer


# Rows ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kept", [dict, lambda state: state, lambda state: {name: one.detach() for name, one in state.items()}], ids=range(3)
)
def test_rows_of_before_later_steps_are_refused(kept: Any) -> None:
    model, optimizer = trained()
    best = kept(model.state_dict())
    step(model, optimizer, 5)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ConflictError, match=r"copy of an earlier state, items\.weight is .* copy\.deepcopy"):
        model.load_state_dict(best)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_rows_of_before_wrap_are_refused_after_a_step() -> None:
    model = Model()
    first = model.state_dict()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    adaptive_rec.wrap(model, budget="1KiB", optimizer=optimizer)
    model.load_state_dict(first)  # nothing has changed since
    step(model, optimizer)
    with pytest.raises(ConflictError, match="items.weight"):
        model.load_state_dict(first)


def test_rows_that_are_loaded_at_once_are_those_of_torch() -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        step(model, optimizer)
        state = model.state_dict()
        for _ in range(2):
            model.load_state_dict(state)
            step(model, optimizer)
            state = model.state_dict()
            state["items.weight"].mul_(0.5)  # of both names, as they are of one table
            model.load_state_dict(state)
            model.load_state_dict(state)
        model.load_state_dict(model.state_dict(keep_vars=True))

    results(loop)


def test_copies_and_states_of_other_models_are_loaded() -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        step(model, optimizer)
        best, cloned = copy.deepcopy(model.state_dict()), {name: one.clone() for name, one in model.state_dict().items()}
        for state in (best, cloned, best):
            step(model, optimizer, 5)
            model.load_state_dict(state)
        other = Model()
        other.load_state_dict(model.state_dict())
        step(model, optimizer)
        model.load_state_dict(other.state_dict())
        step(model, optimizer)

    results(loop)


def test_rows_from_before_other_data_was_given_are_former_ones_as_in_torch() -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        step(model, optimizer)
        state: Any = model.items.state_dict()
        model.items.weight.data = torch.ones(40, 4)
        step(model, optimizer, 5)
        model.items.load_state_dict(state)

    results(loop)


def test_a_write_to_a_state_that_is_not_loaded_is_an_error_before_the_next_step() -> None:
    model, optimizer = trained()
    state = model.state_dict()
    state["again.weight"].zero_()
    before = model.items.weight.detach().clone()
    with pytest.raises(ConflictError, match="rows of items in a state dictionary are a copy, and were written to"):
        step(model, optimizer)
    assert torch.equal(model.items.weight, before)
    del state
    step(model, optimizer)


# Optimizer state -----------------------------------------------------------------------------------------------------


def table() -> nn.Module:
    return nn.Embedding(40, 4)


def sparse_table() -> nn.Module:
    return nn.Embedding(40, 4, sparse=True)


def tensors(state: Any) -> list[Tensor]:
    return [part for part in state.values() if isinstance(part, Tensor) and part.dim()]


def kept_and_loaded(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    step(model, optimizer)
    state = optimizer.state_dict()
    dict(state["state"][0])
    for first in (5, 0):
        step(model, optimizer, first)
    optimizer.load_state_dict(state)
    step(model, optimizer)


def kept_and_loaded_twice(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    step(model, optimizer)
    state = optimizer.state_dict()
    for first in (5, 0):
        step(model, optimizer, first)
        optimizer.load_state_dict(state)
    step(model, optimizer)


def left_for_another(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """The state that was kept is no longer the live one when another is loaded."""
    step(model, optimizer)
    former = copy.deepcopy(optimizer.state_dict())
    step(model, optimizer)
    state = optimizer.state_dict()
    optimizer.load_state_dict(former)
    step(model, optimizer, 5)
    optimizer.load_state_dict(state)
    step(model, optimizer)


def changed(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    step(model, optimizer)
    optimizer.load_state_dict(optimizer.state_dict())
    for part in tensors(optimizer.state[model.weight]):
        part.mul_(0.5)
    step(model, optimizer, 5)


def kept_before_the_first_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """torch has no live state then, so what is loaded is none."""
    state = optimizer.state_dict()
    dict(optimizer.state.get(model.weight) or {})
    also = optimizer.state_dict()
    for kept in (state, also):
        step(model, optimizer)
        step(model, optimizer, 5)
        optimizer.load_state_dict(kept)
    step(model, optimizer)


@each_maker
def test_a_state_that_is_kept_is_that_of_torch(name: str) -> None:
    model = sparse_table if name == "sparse adam" else table
    loops = [kept_and_loaded, left_for_another, changed, kept_before_the_first_step]
    if name != "sparse adam":  # its number of steps is that of the first load, in torch
        loops.append(kept_and_loaded_twice)
    for loop in loops:
        results(loop, MAKERS[name], model)


def test_parts_of_a_state_of_before_later_steps_are_refused() -> None:
    model, optimizer = trained(model=table)
    state = optimizer.state_dict()
    kept = {**state, "state": {0: dict(state["state"][0])}}
    step(model, optimizer, 5)
    optimizer.load_state_dict(kept)
    before = model.weight.detach().clone()
    with pytest.raises(ConflictError, match="load a copy of an earlier state, that of table weight is"):
        step(model, optimizer)
    assert torch.equal(model.weight, before)
    optimizer.load_state_dict(state)
    step(model, optimizer)


def test_a_state_that_is_loaded_twice_without_a_copy_is_refused() -> None:
    """torch goes on with the tensors that it is given, so that the second load changes nothing."""
    model, optimizer = trained(model=table)
    best = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(best)
    step(model, optimizer)
    optimizer.load_state_dict(best)
    with pytest.raises(ConflictError, match="load a copy"):
        step(model, optimizer)


def test_a_write_to_a_part_of_before_the_last_step_is_an_error() -> None:
    model, optimizer = trained(model=table)
    part = optimizer.state[model.weight]["exp_avg"]
    step(model, optimizer)
    part.zero_()
    with pytest.raises(ConflictError, match="state of table weight that was read before the last step is a copy"):
        step(model, optimizer)

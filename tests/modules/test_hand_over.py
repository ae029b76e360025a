"""`wrap` takes tables, rates and state over from an optimizer, or a rule by its name."""

from __future__ import annotations

import copy
import functools
import io
from collections import defaultdict
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

import adaptive_rec
from adaptive_rec.modules.loop.row_states import RowState

from .training import CASES, QUICK_WINDOWS, RULES, Loop, assert_moved, assert_same, data, tables_of, wrapped


def test_an_optimizer_goes_on_to_hold_the_tables_and_hands_over_their_state() -> None:
    model = CASES["dlrm"].make()
    others = [*model.bot_l.parameters(), *model.top_l.parameters()]
    everything = {id(one) for one in model.parameters()}
    optimizer = torch.optim.Adagrad([{"params": tables_of(model), "lr": 0.3}, {"params": others, "lr": 0.01}])
    tables = tables_of(model)
    runtime = wrapped(model, optimizer)
    held = [one for group in optimizer.param_groups for one in group["params"]]
    assert {id(one) for one in held} == {id(one) for one in model.parameters()} == everything
    assert all(isinstance(optimizer.state[table], RowState) for table in tables)
    assert runtime.lr == 0.3
    optimizer.param_groups[0]["lr"] = 0.2
    assert runtime.lr == 0.2
    optimizer.step()
    copy.deepcopy(optimizer.state_dict())


@pytest.mark.parametrize("rule", RULES)
def test_one_optimizer_may_hold_the_whole_model(rule: str) -> None:
    """As dlrm_s_pytorch.py has it; SparseAdam takes no dense gradients, so there the dense part stands still."""
    results = []
    for adaptive in (False, True):
        torch.manual_seed(4)
        model = CASES["dlrm"].make()
        if rule == "sparse_adam":
            model.bot_l.requires_grad_(False)
            model.top_l.requires_grad_(False)
        optimizer = RULES[rule]([one for one in model.parameters() if one.requires_grad])
        runtime = wrapped(model, optimizer) if adaptive else None
        losses = []
        for batch in data.clicks(30, 32):
            optimizer.zero_grad()
            loss = CASES["dlrm"].loss(model, batch)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        results.append(losses)
    assert results[1] == pytest.approx(results[0], rel=1e-12)
    assert_moved(runtime)


@pytest.mark.parametrize("rule", RULES)
def test_an_optimizer_that_has_made_steps_hands_over_its_state(rule: str) -> None:
    theirs = Loop(CASES["dlrm"], rule)
    ours = Loop(CASES["dlrm"], rule)
    batches = list(data.clicks(40, 32))
    first, rest = batches[:15], batches[15:]
    for loop in (theirs, ours):
        loop.case = copy.copy(loop.case)
        loop.case.batches = lambda steps: first[:steps]
        loop.run(15)
        loop.case.batches = lambda steps: rest[:steps]
    ours.runtime = wrapped(ours.model, ours.sparse)
    assert_same(ours.run(25), theirs.run(25))
    assert_moved(ours.runtime)


def test_adagrad_s_sums_begin_where_its_option_says() -> None:
    results = []
    for adaptive in (False, True):
        torch.manual_seed(4)
        bag = nn.ModuleList([nn.EmbeddingBag(30, 4, mode="sum", sparse=True)])
        optimizer = torch.optim.Adagrad(bag.parameters(), lr=0.1, initial_accumulator_value=0.5, eps=1e-3)
        if adaptive:
            wrapped(bag, optimizer, budget=2000)
        for step in range(12):
            ids = torch.randint(30, (6, 2), generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            bag[0](ids).square().sum().backward()
            optimizer.step()
        results.append(bag[0].weight.detach().clone())
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-12)


def clear_entry(optimizer: torch.optim.Adagrad, weight: nn.Parameter) -> None:
    optimizer.state.pop(weight, None)


def clear_all(optimizer: torch.optim.Adagrad, weight: nn.Parameter) -> None:
    optimizer.state = defaultdict(dict)


def clear_in_place(optimizer: torch.optim.Adagrad, weight: nn.Parameter) -> None:
    optimizer.state[weight].clear()


@pytest.mark.parametrize("after", [0, 3], ids=["before a step", "after steps"])
@pytest.mark.parametrize("clear", [clear_entry, clear_all, clear_in_place])
def test_adagrad_s_sums_begin_there_again_where_its_state_was_dropped(
    clear: Callable[[torch.optim.Adagrad, nn.Parameter], None], after: int
) -> None:
    """torch's step gives a parameter without a state one that begins with `initial_accumulator_value`."""
    results = []
    for adaptive in (False, True):
        torch.manual_seed(4)
        bag = nn.EmbeddingBag(30, 4, mode="sum", sparse=True, dtype=torch.float64)
        optimizer = torch.optim.Adagrad(bag.parameters(), lr=0.1, initial_accumulator_value=0.5, eps=1e-3)
        if adaptive:
            wrapped(nn.ModuleList([bag]), optimizer, budget=2000)
        for step in range(8):
            if step == after:
                clear(optimizer, bag.weight)
            optimizer.zero_grad()
            bag(torch.randint(30, (6, 2), generator=torch.Generator().manual_seed(step))).square().sum().backward()
            optimizer.step()
        results.append((bag.weight.detach().clone(), optimizer.state_dict()["state"][0]["sum"]))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-12)


def test_adagrad_s_sums_begin_there_for_a_table_that_was_added_to_it_later() -> None:
    results = []
    for adaptive in (False, True):
        torch.manual_seed(4)
        bag, other = nn.EmbeddingBag(30, 4, mode="sum", dtype=torch.float64), nn.Linear(1, 1)
        optimizer = torch.optim.Adagrad(other.parameters(), lr=0.1, initial_accumulator_value=0.5)
        optimizer.add_param_group({"params": [bag.weight]})
        if adaptive:
            wrapped(nn.ModuleList([bag]), optimizer, budget=2000)
        for step in range(4):
            optimizer.zero_grad()
            bag(torch.randint(30, (6, 2), generator=torch.Generator().manual_seed(step))).square().sum().backward()
            optimizer.step()
        results.append(bag.weight.detach().clone())
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-12)


def test_a_dropped_state_of_adagrad_counts_the_step_by_which_it_is_made_for_a_checkpoint() -> None:
    """`get_state_dict` makes a step with gradients and a rate of 0 where an optimizer has no state."""
    results = []
    for adaptive in (False, True):
        torch.manual_seed(4)
        bag = nn.EmbeddingBag(30, 4, mode="sum", dtype=torch.float64)
        model = nn.ModuleList([bag])
        optimizer = torch.optim.Adagrad(bag.parameters(), lr=0.1, lr_decay=0.5)
        if adaptive:
            wrapped(model, optimizer, budget=2000)
        optimizer.state = defaultdict(dict)
        get_optimizer_state_dict(model, optimizer)
        for _ in range(2):
            bag(torch.tensor([[1, 2]])).square().sum().backward()
            optimizer.step()
        results.append((bag.weight.detach().clone(), optimizer.state_dict()["state"][0]["step"]))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("first", [0.0, 0.25])
def test_what_an_optimizer_saves_before_its_first_step_goes_on_with_an_ordinary_model(first: float) -> None:
    """A state that torch can write to, also where the optimizer was made after `wrap`."""
    bag = nn.EmbeddingBag(30, 4, mode="sum", sparse=True)
    adaptive_rec.wrap(
        bag, budget=2000, optimizer=functools.partial(torch.optim.Adagrad, initial_accumulator_value=first), knobs=QUICK_WINDOWS
    )
    optimizer = torch.optim.Adagrad(bag.parameters(), lr=0.1, initial_accumulator_value=first)
    saved = io.BytesIO()
    torch.save((bag, optimizer.state_dict(), optimizer), saved)
    saved.seek(0)
    plain, state, whole = torch.load(saved, weights_only=False)
    fresh = torch.optim.Adagrad(plain.parameters(), lr=0.1)
    fresh.load_state_dict(copy.deepcopy(state))
    for one in (fresh, whole):
        plain(torch.tensor([[1, 2]])).sum().backward()
        one.step()
        assert one.state[plain.weight]["sum"][:3].tolist() == [[first] * 4, *[[first + 1] * 4] * 2]
        one.zero_grad()


@pytest.mark.parametrize(("name", "rule"), [("sgd", "sgd"), ("adagrad", "adagrad"), ("lazy_adam", "sparse_adam")])
def test_a_named_rule_has_torch_s_constants(name: str, rule: str) -> None:
    lr = {"sgd": 0.05, "adagrad": 0.05, "sparse_adam": 0.01}[rule]
    theirs = Loop(CASES["two_tower"], rule).run(20)
    ours = Loop(CASES["two_tower"], rule)
    ours.runtime = adaptive_rec.wrap(ours.model, budget=60_000, optimizer=name, lr=lr, knobs=QUICK_WINDOWS)
    ours.sparse = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    assert_same(ours.run(20), theirs)


def test_row_wise_adagrad_keeps_one_number_a_row() -> None:
    """Against its definition: the mean square of a row's gradient."""
    torch.manual_seed(1)
    model = nn.ModuleList([nn.EmbeddingBag(6, 3, mode="sum")])
    rows, sums = model[0].weight.detach().clone(), torch.zeros(6)
    adaptive_rec.wrap(model, budget=10_000, optimizer="rowwise_adagrad", lr=0.1, eps=1e-6, knobs=QUICK_WINDOWS)
    for step in range(15):
        ids = torch.randint(6, (4, 2), generator=torch.Generator().manual_seed(step))
        gradient = torch.zeros(6, 3).index_add_(0, ids.flatten(), 2 * rows[ids].sum(1).repeat_interleave(2, 0))
        model[0](ids).square().sum().backward()
        touched = ids.unique()
        sums[touched] += gradient[touched].square().mean(1)
        rows[touched] -= 0.1 * gradient[touched] / (sums[touched].sqrt() + 1e-6).unsqueeze(1)
        torch.testing.assert_close(model[0].weight, rows, rtol=0, atol=1e-12)

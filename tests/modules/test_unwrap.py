"""`unwrap` makes a model ordinary again; what cannot be served is refused, or warned of by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import adaptive_rec
from adaptive_rec.errors import AdaptiveRecError, ConfigError, ConflictError
from adaptive_rec.modules.loop import checks as loop_checks
from adaptive_rec.modules.loop.row_gradient import RowGradient
from adaptive_rec.modules.tensors.weight import TieredWeight

from .cases import few_or_many_steps
from .training import CASES, RULES, Loop, assert_same, data, wrapped


@few_or_many_steps(8, 20, case=["two_tower", "sasrec"], rule=RULES)
def test_an_unwrapped_model_goes_on_as_if_it_had_never_been_wrapped(case: str, rule: str, steps: int) -> None:
    theirs, ours = Loop(CASES[case], rule), Loop(CASES[case], rule, {})
    first = [loop.run(steps) for loop in (theirs, ours)]
    assert_same(first[1], first[0])
    assert adaptive_rec.unwrap(ours.model, ours.sparse) is ours.model
    assert ours.runtime.closed
    assert {type(one) for one in ours.model.modules()} == {type(one) for one in theirs.model.modules()}
    assert all(type(one) is nn.Parameter for one in ours.model.parameters())
    ours.runtime = None
    more = 3 * steps // 4
    assert_same(ours.run(more), theirs.run(more))


def test_an_unwrapped_model_exports(tmp_path: Any) -> None:
    loop = Loop(CASES["sasrec"], "adagrad", {})
    loop.run(5)
    batch = next(iter(data.sequences(1, 4)))
    items = adaptive_rec.unwrap(nn.Sequential(loop.model.items, nn.Linear(16, 2)))
    exported = torch.export.export(items, (batch.viewed,))
    torch.testing.assert_close(exported.module()(batch.viewed), items(batch.viewed))
    torch.testing.assert_close(torch.jit.trace(items, (batch.viewed,))(batch.viewed), items(batch.viewed))


def test_only_a_wrapped_model_is_unwrapped() -> None:
    with pytest.raises(AdaptiveRecError, match="must be wrapped"):
        adaptive_rec.unwrap(nn.Embedding(3, 2))


def test_a_pending_gradient_stays_when_a_model_is_unwrapped() -> None:
    model = nn.ModuleDict({"table": nn.Embedding(9, 2)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    runtime = wrapped(model, optimizer)
    model["table"](torch.tensor([[1, 1], [2, 3]])).sum().backward()
    (gradient,) = runtime.gradients().values()
    assert isinstance(gradient, RowGradient)
    assert (gradient.rows.tolist(), gradient.values[:, 0].tolist()) == ([1, 2, 3], [2.0, 1.0, 1.0])
    adaptive_rec.unwrap(model)
    assert model["table"].weight.grad[:, 0].tolist() == [0, 2, 1, 1, 0, 0, 0, 0, 0]


# Where rows are updated in the backward pass ---------------------------------------------------------------------------


def in_backward(caplog: pytest.LogCaptureFixture, passes: int) -> str:
    model = nn.ModuleDict({"table": nn.Embedding(9, 2), "dense": nn.Linear(2, 1)})
    runtime = adaptive_rec.wrap(model, optimizer="sgd", lr=0.1, budget="1KiB")
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(5):
        for _ in range(passes):
            model["dense"](model["table"](torch.tensor([1, 2]))).sum().backward()
        optimizer.step()
    runtime.close()
    return caplog.text


def test_sums_over_passes_that_rows_do_not_follow_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    assert "backward passes" not in in_backward(caplog, 1)
    assert in_backward(caplog, 3).count("rows were updated in each of 3 backward passes") == 1


def test_a_term_on_a_weight_that_would_be_lost_is_refused() -> None:
    model = nn.ModuleDict({"table": nn.Embedding(9, 2)})
    adaptive_rec.wrap(model, optimizer="sgd", lr=0.1, budget="1KiB")
    with pytest.raises(AdaptiveRecError, match="must not use the weight of a table as a whole"):
        model["table"].weight.square().sum().backward()
    assert model["table"].weight.grad is None
    model["table"](torch.tensor([1])).sum().backward()


def test_a_process_group_that_is_opened_after_wrap_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.ModuleDict({"table": nn.Embedding(9, 2)})
    wrapped(model, torch.optim.SGD(model.parameters(), lr=0.1))
    monkeypatch.setattr(loop_checks, "ranks_of_script", lambda: 2)
    with pytest.raises(AdaptiveRecError, match="init_process_group must be called before .* there are 2 processes"):
        model["table"](torch.tensor([1]))


def test_a_loss_that_is_held_is_named_and_nothing_is_unwrapped() -> None:
    model = nn.ModuleDict({"first": nn.Embedding(20, 4), "second": nn.Embedding(20, 4)})
    adaptive_rec.wrap(model, budget=0, optimizer=torch.optim.SGD)
    loss: Any = (model["second"].weight.T @ torch.ones(20, requires_grad=True)).sum()
    with pytest.raises(adaptive_rec.ConfigError, match=r"computed from second\.weight must not be held"):
        adaptive_rec.unwrap(model)
    assert isinstance(model["first"].weight, TieredWeight)
    loss = None
    adaptive_rec.unwrap(model)
    assert loss is None
    assert type(model["first"].weight) is nn.Parameter


HOOKS = {
    "register_hook": lambda calls: lambda gradient: calls.append("hook"),
    "register_post_accumulate_grad_hook": lambda calls: lambda weight: calls.append("hook"),
}


@pytest.mark.parametrize("update", ["step", "backward"])
@pytest.mark.parametrize("kind", HOOKS)
def test_a_kept_hook_is_no_way_back_and_later_hooks_are_called(kind: str, update: str) -> None:
    """torch keeps what hooks need with the contents of a tensor, which change when it is wrapped and unwrapped."""
    model, calls = nn.ModuleDict({"t": nn.Embedding(9, 2)}), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weight = model["t"].weight

    def passes() -> int:
        calls.clear()
        handle = getattr(weight, kind)(HOOKS[kind](calls))
        model["t"](torch.tensor([1, 2])).sum().backward()
        handle.remove()
        return len(calls)

    assert passes() == 1
    optimizer.zero_grad()
    for _ in range(2):
        adaptive_rec.wrap(model, budget="1KiB", optimizer=optimizer, update=update)
        if update == "step":
            assert passes() == 1
            handle = getattr(weight, kind)(HOOKS[kind](calls))
            with pytest.raises(ConfigError, match=r"t\.weight must have no hooks when it is unwrapped"):
                adaptive_rec.unwrap(model, optimizer)
            handle.remove()
        adaptive_rec.unwrap(model, optimizer)
        assert passes() == 1
        optimizer.zero_grad()


def test_a_weight_with_hooks_is_not_unwrapped_until_they_are_removed() -> None:
    model = nn.ModuleDict({"t": nn.Embedding(4, 2)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    adaptive_rec.wrap(model, budget=0, optimizer=optimizer)
    handle = model["t"].weight.register_hook(lambda gradient: gradient * 0.5)
    with pytest.raises(ConfigError, match=r"t\.weight must have no hooks when it is unwrapped"):
        adaptive_rec.unwrap(model, optimizer)
    handle.remove()
    adaptive_rec.unwrap(model, optimizer)
    assert type(model["t"]) is nn.Embedding


def test_what_was_handed_out_before_is_live_afterwards() -> None:
    """As in torch, where all of it is the parameter's memory: loading it back changes nothing."""
    model = nn.Sequential(nn.Embedding(9, 2), nn.Linear(2, 1))
    weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.tensor([1, 2])).sum().backward()
        optimizer.step()

    of_before = model.state_dict()
    adaptive_rec.wrap(model, budget="1KiB", optimizer=optimizer)
    first = model.state_dict()
    step()
    held = [of_before["0.weight"], first["0.weight"], model.state_dict()["0.weight"], weight.detach(), weight.data]
    adaptive_rec.unwrap(model, optimizer)
    for _ in range(2):
        assert all(torch.equal(one, weight) for one in held)
        step()
    before = [one.clone() for one in model.state_dict().values()]
    model.load_state_dict(first)
    assert all(map(torch.equal, before, model.state_dict().values()))
    adaptive_rec.wrap(model, budget="1KiB", optimizer=optimizer)
    step()
    adaptive_rec.unwrap(model, optimizer)
    assert all(torch.equal(one, weight) for one in held[:3])
    adaptive_rec.wrap(model, budget="1KiB", optimizer=optimizer)
    step()
    with pytest.raises(ConflictError, match=r"load_state_dict must be given a copy of an earlier state, 0\.weight"):
        model.load_state_dict(first)


def test_a_refused_unwrap_leaves_what_was_handed_out() -> None:
    model = nn.ModuleDict({"t": nn.Embedding(4, 2)})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    adaptive_rec.wrap(model, budget=0, optimizer=optimizer)
    weight = model["t"].weight

    def step() -> None:
        optimizer.zero_grad()
        model["t"](torch.tensor([1, 2])).sum().backward()
        optimizer.step()

    step()
    state, alias, held = optimizer.state[weight]["exp_avg"], weight.detach(), model.state_dict()
    step()
    state.mul_(2)
    with pytest.raises(ConflictError, match="optimizer state of table t that was read before the last step is a copy"):
        adaptive_rec.unwrap(model, optimizer)
    del state
    step()
    assert torch.equal(alias, weight)
    with pytest.raises(ConflictError, match="load_state_dict must be given a copy of an earlier state"):
        model.load_state_dict(held)


def test_a_dictionary_that_was_written_to_must_be_loaded_before() -> None:
    model = nn.ModuleDict({"t": nn.Embedding(4, 2)})
    adaptive_rec.wrap(model, budget=0, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    held = model.state_dict()
    held["t.weight"][1] = 5.0
    with pytest.raises(ConflictError, match="load_state_dict before the model is unwrapped"):
        adaptive_rec.unwrap(model)
    model.load_state_dict(held)
    adaptive_rec.unwrap(model)
    assert model["t"].weight[1].tolist() == [5.0, 5.0]


def test_a_loop_over_prefetch_must_end_before() -> None:
    loop = Loop(CASES["two_tower"], "sgd", {})
    items = loop.runtime.prefetch(range(3), lambda item: {})
    next(items)
    with pytest.raises(ConfigError, match=r"no loop over prefetch must be under way when \S+ is unwrapped"):
        adaptive_rec.unwrap(loop.model)
    items.close()
    assert adaptive_rec.unwrap(loop.model) is loop.model

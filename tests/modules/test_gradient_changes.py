"""What loops do to ``weight.grad`` between the backward pass and the step: through views, aliases, hooks, whole and in parts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaptive_rec
from adaptive_rec.modules.loop.row_gradient import FOLDED_CALLS, RowGradient

ROWS, DIM = 50, 4
IDS = torch.arange(8)
SGD = lambda weights: torch.optim.SGD(weights, lr=0.1)  # noqa: E731
SPARSE_ADAM = lambda weights: torch.optim.SparseAdam(list(weights), lr=0.1)  # noqa: E731
Change = Callable[[Tensor], Any]


def both(loop: Callable[[nn.Module, Any, Any], Any], make: Any = SGD, sparse: bool = False) -> tuple[Tensor, Tensor, Any]:
    """Return the rows that a loop leaves, plain and in tiers, and the runtime."""
    found, runtime = [], None
    for adaptive in (False, True):
        torch.manual_seed(0)
        model = nn.Embedding(ROWS, DIM, sparse=sparse)
        optimizer = make(model.parameters())
        runtime = adaptive_rec.wrap(model, budget="1KiB", optimizer=optimizer) if adaptive else None
        loop(model, optimizer, runtime)
        found.append(model.weight.detach().clone())
    return found[0], found[1], runtime


def assert_equal(loop: Callable[[nn.Module, Any, Any], Any], make: Any = SGD, sparse: bool = False) -> Any:
    theirs, ours, runtime = both(loop, make, sparse)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
    return runtime


CHANGES: dict[str, Change] = {
    "grad.data.mul_": lambda g: g.data.mul_(3),
    "grad.data.clamp_": lambda g: g.data.clamp_(-0.1, 0.1),
    "grad.detach().mul_": lambda g: g.detach().mul_(2),
    "a row": lambda g: g.__setitem__(3, 0.0),
    "rows": lambda g: g.__setitem__(slice(0, 4), 0.0),
    "a row that was not looked up": lambda g: g.__setitem__(30, 1.0),
    "a column": lambda g: g[:, 0].zero_(),
    "a flat view": lambda g: g.view(-1).mul_(2),
    "a transposed view": lambda g: g.T.mul_(2),
    "two views": lambda g: (g[0].mul_(2), g[0:2].add_(1)),
    "a view, then all": lambda g: (view := g[1], g.mul_(2), view.add_(1)),
    "a mask": lambda g: g.__setitem__(torch.arange(ROWS) % 2 == 0, 0.0),
    "a factor for each row": lambda g: g.mul_((torch.arange(ROWS) % 2).double().unsqueeze(1)),
    "sign_": lambda g: g.sign_(),
    "nan_to_num_": lambda g: g.nan_to_num_(),
    "centred": lambda g: g.sub_(g.mean(1, keepdim=True)),
    "exp_": lambda g: g.exp_(),
    "foreach add": lambda g: torch._foreach_add_([g], [torch.ones(ROWS, DIM)]),
    "foreach copy": lambda g: torch._foreach_copy_([g], [torch.ones(ROWS, DIM)]),
    "out=": lambda g: torch.mul(g, 0.5, out=g),
    "its values": lambda g: (g.values if isinstance(g, RowGradient) else g).mul_(2),
}


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_changes_in_place_count(change: str, twice: bool) -> None:
    def loop(model: nn.Module, optimizer: Any, _: Any) -> None:
        for _ in range(3):
            optimizer.zero_grad()
            for _ in range(1 + twice):
                model(IDS).square().sum().backward()
                CHANGES[change](model.weight.grad)
            optimizer.step()

    runtime = assert_equal(loop)
    if twice:
        assert runtime.stats().lookups == 3 * 2 * len(IDS)


@pytest.mark.parametrize("change", [lambda g: g.__setitem__(slice(0, 4), 0.0), lambda g: g.__setitem__(30, 1.0)])
def test_a_hook_may_change_a_copy(change: Change) -> None:
    def loop(model: nn.Module, optimizer: Any, _: Any) -> None:
        def hook(gradient: Tensor) -> Tensor:
            made = gradient.clone()
            change(made)
            return made

        model.weight.register_hook(hook)
        for _ in range(3):
            optimizer.zero_grad()
            model(IDS).square().sum().backward()
            optimizer.step()

    assert_equal(loop)


def test_a_clone_does_not_follow() -> None:
    def loop(model: nn.Module, optimizer: Any, _: Any) -> None:
        model(IDS).square().sum().backward()
        kept = model.weight.grad.clone()
        model.weight.grad[0:3] = 0
        again = model.weight.grad.clone()
        again.mul_(7)
        kept.view(-1).zero_()
        optimizer.step()

    assert_equal(loop)


def test_clipping_by_the_largest_number_where_no_row_was_read() -> None:
    def loop(model: nn.Module, optimizer: Any, _: Any) -> None:
        model(IDS[:0]).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=float("inf"))
        optimizer.step()
        model(IDS).square().sum().backward()
        optimizer.zero_grad(set_to_none=False)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=float("inf"))
        optimizer.step()

    assert_equal(loop)


@pytest.mark.parametrize("ahead", [False, True])
def test_several_passes_through_one_lookup_add_up(ahead: bool) -> None:
    """Announced too, where the gradients of both passes are of the same bags."""

    def loop(model: nn.Module, optimizer: Any, runtime: Any) -> None:
        batches = [torch.arange(first, first + 8) for first in range(5)]
        announced = runtime is not None and ahead
        for ids in runtime.prefetch(batches, sparse=lambda ids: {"weight": ids}) if announced else batches:
            optimizer.zero_grad()
            read = model(ids)
            read.sum().backward(retain_graph=True)
            read.square().sum().backward()
            optimizer.step()

    assert_equal(loop)


def test_a_sparse_gradient_that_waits_at_wrap_keeps_its_rows() -> None:
    found = []
    for adaptive in (False, True):
        torch.manual_seed(0)
        model = nn.Embedding(ROWS, DIM, sparse=True)
        optimizer = SPARSE_ADAM(model.parameters())
        for ids in (IDS, torch.tensor([20])):
            optimizer.zero_grad()
            model(ids).square().sum().backward()
            if len(ids) > 1:
                optimizer.step()
        if adaptive:
            adaptive_rec.wrap(model, budget=0, optimizer=optimizer)
        optimizer.step()
        found.append(model.weight.detach().clone())
    torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_gradient_that_waits_at_unwrap_is_what_the_module_makes(sparse: bool) -> None:
    def loop(model: nn.Module, optimizer: Any, runtime: Any) -> None:
        model(IDS).square().sum().backward()
        if runtime is not None:
            adaptive_rec.unwrap(model, optimizer)
        assert model.weight.grad.is_sparse == sparse
        optimizer.step()

    assert_equal(loop, SPARSE_ADAM if sparse else SGD, sparse)


def test_fused_adam_under_a_scaler_may_have_no_gradient() -> None:
    def loop(model: nn.Module, optimizer: Any, _: Any) -> None:
        scaler, other = torch.amp.GradScaler("cpu", init_scale=4.0), nn.Linear(DIM, 1)
        second = SGD(other.parameters())
        scaler.scale(other(torch.ones(DIM)).sum()).backward()
        scaler.step(optimizer)
        scaler.step(second)
        scaler.update()

    assert_equal(loop, lambda weights: torch.optim.AdamW(weights, lr=0.05, fused=True))


def test_gradients_of_many_passes_are_folded_and_lookups_counted() -> None:
    """Memory by rows, not by lookups."""
    passes, ids = 4 * FOLDED_CALLS, 8192

    def loop(model: nn.Module, optimizer: Any, runtime: Any) -> None:
        dice = torch.Generator().manual_seed(1)
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(passes):
                model(torch.randint(ROWS, (ids,), generator=dice)).square().mean().backward()
            if runtime is not None:
                calls = model.weight.grad.calls
                assert calls is not None
                assert len(calls) < passes / 2
            optimizer.step()

    runtime = assert_equal(loop)
    assert runtime.stats().lookups == 2 * passes * ids


def test_many_lookups_in_one_pass_are_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    def loop(model: nn.Module, optimizer: Any, _: Any) -> None:
        sum(model(IDS + shift % 40).square().sum() for shift in range(100)).backward()  # type: ignore[union-attr]
        optimizer.step()

    assert_equal(loop)
    assert not caplog.records


def test_adamw_whose_decay_takes_a_row_whole_is_refused_by_name() -> None:
    model = nn.Embedding(ROWS, DIM)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, weight_decay=1.0)
    adaptive_rec.wrap(model, budget=0, optimizer=optimizer)
    before = copy.deepcopy(model.weight)
    model(IDS).sum().backward()
    with pytest.raises(adaptive_rec.ConfigError, match=r"lr \* weight_decay of AdamW must be below 1 .* got 1.0 \* 1.0"):
        optimizer.step()
    assert torch.equal(before, model.weight.detach().clone())

"""A loop around `wrap` trains as in plain torch: sums over passes, clipping, scaled losses, closures, terms on weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaptive_rec
from adaptive_rec.errors import AdaptiveRecError
from adaptive_rec.modules.loop.row_gradient import RowGradient
from tests.matrix import always, grid

from .cases import few_or_many_steps, in_turn
from .training import assert_moved, wrapped

ITEMS, PLACES, USERS, SIZE = 3000, 20, 500, 32
FEW, MANY = 14, 30
RULES: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.5),
    "adagrad": lambda weights: torch.optim.Adagrad(weights, lr=0.1, initial_accumulator_value=0.01),
    "adam": lambda weights: torch.optim.Adam(weights, lr=0.01),
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=0.01, weight_decay=0.1),
}


class Model(nn.Module):
    """A sequence model: one table read by itself twice, a small one, pooled bags, and if tied the softmax over all items."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.items = nn.Embedding(ITEMS, 16, padding_idx=0)
        self.places = nn.Embedding(PLACES, 16)
        self.users = nn.EmbeddingBag(USERS, 16, mode="mean")
        self.dense = nn.Linear(16, 16)
        self.relu = nn.ReLU(inplace=True)
        self.out = nn.Linear(16, ITEMS) if tied else None
        if self.out is not None:
            self.out.weight = self.items.weight

    def forward(self, viewed: Tensor, user: Tensor, candidates: Tensor) -> Tensor:
        state = self.relu(self.items(viewed) + self.places(torch.arange(viewed.shape[1])))
        state = self.dense(state.mean(1)) + self.users(user).mul_(0.5)
        return self.out(state) if self.out is not None else (state.unsqueeze(1) * self.items(candidates)).sum(-1)


def batches(steps: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    dice = torch.Generator().manual_seed(0)
    for _ in range(steps):
        viewed = (ITEMS * torch.rand(SIZE, PLACES, generator=dice) ** 3).long()
        viewed[torch.rand(SIZE, PLACES, generator=dice) < 0.3] = 0
        yield (
            viewed,
            torch.randint(USERS, (SIZE, 3), generator=dice),
            torch.randint(ITEMS, (SIZE, 4), generator=dice),
        )


@dataclass
class How:
    """What a loop does besides forward, backward and step."""

    tied: bool = False
    accumulate: int = 1
    clip_norm: float | None = None
    clip_value: float | None = None
    scaler: bool = False
    """Scaled losses, two of which are infinite."""
    closure: bool = False
    scheduler: bool = False
    keeps_zeros: bool = False
    never_zeroed: bool = False
    skips: int = 0
    """Every which step is left out."""
    l2: float = 0.0
    noise: bool = False
    """Whether a dense tensor is added to a gradient of rows."""
    late: bool = False
    """Whether the optimizer is made after `wrap`."""
    prefetch: bool = False
    two_losses: bool = False


def train(how: How, rule: str, adaptive: bool, steps: int) -> tuple[list[float], dict[str, Tensor], Any]:
    torch.manual_seed(0)
    model, runtime = Model(how.tied), None
    options = {"budget": 40 << 10}
    if how.late and adaptive:
        runtime = wrapped(model, type(RULES[rule]([torch.zeros(1)])), **options)
    optimizer = RULES[rule](model.parameters())
    if not how.late and adaptive:
        runtime = wrapped(model, optimizer, **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10) if how.scaler else None
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98) if how.scheduler else None
    stream: Any = batches(steps)
    if how.prefetch and runtime is not None:
        stream = runtime.prefetch(stream, sparse=lambda one: {"items": [one[0], one[2]], "users": one[1]})

    def loss_of(number: int, batch: Any) -> Tensor:
        loss = nn.functional.cross_entropy(model(*batch), torch.zeros(SIZE, dtype=torch.int64))
        loss = loss * float("inf") if scaler is not None and number in (7, 19) else loss
        return loss + how.l2 * model.items.weight.norm() ** 2 if how.l2 else loss

    def zero() -> None:
        if not how.never_zeroed:
            optimizer.zero_grad(set_to_none=not how.keeps_zeros)

    losses = []
    for number, batch in enumerate(stream):

        def closure(number: int = number, batch: Any = batch) -> float:
            zero()
            loss = loss_of(number, batch)
            loss.backward()
            return loss.item()

        if how.closure:
            losses.append(optimizer.step(closure))
            continue
        loss = loss_of(number, batch)
        losses.append(loss.item())
        (scaler.scale(loss) if scaler is not None else loss).backward()
        if how.two_losses:
            (0.1 * loss_of(number, batch)).backward()
        if (number + 1) % how.accumulate:
            continue
        if how.noise:
            gradient = model.items.weight.grad
            gradient += 0.001
        if not how.skips or number % how.skips:
            step(how, model, optimizer, scaler)
            if scheduler is not None:
                scheduler.step()
        zero()
    return losses, {name: value.clone() for name, value in model.state_dict().items()}, runtime


def step(how: How, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: Any) -> None:
    if scaler is not None:
        scaler.unscale_(optimizer)
    if how.clip_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), how.clip_norm)
    if how.clip_value is not None:
        nn.utils.clip_grad_value_(model.parameters(), how.clip_value)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()


LOOPS = {
    "as it is": How(),
    "two passes a step": How(accumulate=2, scheduler=True),
    "seven passes a step": How(accumulate=7),
    "clipped by norm": How(clip_norm=0.05),
    "clipped by value": How(clip_value=0.001),
    "scaled": How(scaler=True, clip_norm=0.5),
    "a closure": How(closure=True),
    "zeroed in place": How(keeps_zeros=True),
    "never zeroed": How(never_zeroed=True),
    "every third step left out": How(skips=3),
    "a penalty on a weight": How(l2=1e-4),
    "noise on a gradient": How(noise=True),
    "tied to the softmax": How(tied=True),
    "tied and clipped": How(tied=True, clip_norm=0.05),
    "an optimizer made later": How(late=True),
    "looked up ahead": How(prefetch=True),
    "looked up ahead, two passes a step": How(prefetch=True, accumulate=2),
    "two losses": How(two_losses=True),
}


@few_or_many_steps(FEW, MANY, loop=LOOPS, rule=RULES)
def test_a_loop_trains_as_in_torch(loop: str, rule: str, steps: int) -> None:
    how = LOOPS[loop]
    (theirs, rows, _), (ours, own_rows, runtime) = (train(how, rule, adaptive, steps) for adaptive in (False, True))
    finite = [number for number, loss in enumerate(theirs) if loss < float("inf")]
    assert len(finite) >= steps - 2
    assert not how.scaler or len(finite) < steps
    assert [ours[number] for number in finite] == pytest.approx([theirs[number] for number in finite], rel=1e-11)
    assert list(own_rows) == list(rows)
    for name, value in rows.items():
        torch.testing.assert_close(own_rows[name], value, rtol=0, atol=1e-11)
    if how.accumulate < 7:
        assert_moved(runtime)
    stats = runtime.stats()
    if how == How() or how.prefetch:
        assert stats.lookups == sum(
            int((viewed != 0).sum()) + PLACES + user.numel() + int((candidates != 0).sum())
            for viewed, user, candidates in batches(steps)
        )
    if how.prefetch and how.accumulate == 1:
        assert stats.looked_up_ahead_ratio == 1.0


@few_or_many_steps(FEW, MANY)
def test_lookups_count_whatever_becomes_of_the_gradients(steps: int) -> None:
    loops = ("as it is", "clipped by value", "a penalty on a weight")
    assert len({train(LOOPS[name], "sgd", True, steps)[2].stats().lookups for name in loops}) == 1


# Gradients are seen ----------------------------------------------------------------------------------------------------


def both(adaptive: bool) -> Model:
    torch.manual_seed(0)
    model = Model(False)
    if adaptive:
        wrapped(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return model


def gradients(adaptive: bool) -> tuple[Model, Tensor]:
    model, (viewed, user, candidates) = both(adaptive), next(batches(1))
    model(viewed, user, candidates).square().mean().backward()
    return model, model.items.weight.grad


def test_a_gradient_of_rows_equals_the_dense_one() -> None:
    (_, theirs), (model, ours) = gradients(False), gradients(True)
    assert isinstance(ours, RowGradient)
    assert (ours.shape, ours.dtype, ours.device) == (theirs.shape, theirs.dtype, theirs.device)
    torch.testing.assert_close(ours.dense(), theirs, rtol=0, atol=1e-15)
    assert torch.equal(ours.rows, theirs.abs().sum(1).nonzero().squeeze(1))
    torch.testing.assert_close(ours.values, theirs[ours.rows], rtol=0, atol=1e-15)
    for order in (1.0, 2.0, float("inf")):
        torch.testing.assert_close(ours.norm(order), theirs.norm(order), rtol=1e-13, atol=0)
    torch.testing.assert_close(ours.abs().sum(), theirs.abs().sum(), rtol=1e-13, atol=0)
    torch.testing.assert_close(ours[5], theirs[5], rtol=0, atol=1e-15)
    assert "RowGradient(3000 x 16" in repr(ours)
    model.items.weight.grad = None
    assert model.items.weight.grad is None


CHANGES: dict[str, Callable[[Tensor], Any]] = {
    "times a number": lambda gradient: gradient.mul_(3.0),
    "through a tensor": lambda gradient: gradient.div_(torch.tensor(4.0)),
    "clamped": lambda gradient: gradient.clamp_(-1e-4, 2e-4),
    "plus itself": lambda gradient: gradient.add_(gradient.clone(), alpha=0.5),
    "plus dense": lambda gradient: gradient.add_(torch.full((ITEMS, 16), 0.25)),
    "set": lambda gradient: gradient.copy_(torch.full((ITEMS, 16), 0.25)),
    "zeroed": lambda gradient: gradient.zero_(),
}


@grid(always, in_turn, change=list(CHANGES), before=[*CHANGES][::-1])
def test_a_gradient_of_rows_changes_in_place_as_a_dense_one(change: str, before: str) -> None:
    (_, theirs), (_, ours) = gradients(False), gradients(True)
    for one in (before, change):
        CHANGES[one](theirs)
        CHANGES[one](ours)
        torch.testing.assert_close(ours.dense(), theirs, rtol=0, atol=1e-14)
        torch.testing.assert_close(ours.norm(), theirs.norm(), rtol=1e-12, atol=1e-15)


def test_what_a_gradient_of_rows_cannot_do_is_refused() -> None:
    large = RowGradient(torch.empty(1).expand(1 << 26, 16), [], 0)
    with pytest.raises(NotImplementedError, match="1 GiB"):
        large.exp()


def test_parameters_that_are_asked_for_get_gradients() -> None:
    """`torch.autograd.grad` and ``backward(inputs=...)`` reach rows."""
    viewed, user, candidates = next(batches(1))
    found = []
    for adaptive in (False, True):
        model = both(adaptive)
        loss = model(viewed, user, candidates).square().mean()
        (gradient,) = torch.autograd.grad(loss, [model.items.weight], retain_graph=True)
        loss.backward(inputs=[model.users.weight])
        assert model.items.weight.grad is None
        found.append((gradient, model.users.weight.grad))
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours.dense(), theirs, rtol=0, atol=1e-15)


def test_a_frozen_table_is_read_and_not_updated() -> None:
    found = []
    for adaptive in (False, True):
        model = both(adaptive)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.items.requires_grad_(False)
        for batch in batches(4):
            optimizer.zero_grad()
            model(*batch).square().mean().backward()
            optimizer.step()
        assert model.items.weight.grad is None
        found.append(model.state_dict())
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=0, atol=1e-13)


# What is refused, or warned of ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda weights: torch.optim.Adam(weights, lr=0.1), "Adam"),
        (lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9), "momentum"),
        (lambda weights: torch.optim.Adagrad(weights, lr=0.1), r"as wrap was told, by sgd\(\), got adagrad\(eps=1e-10\)"),
        (lambda weights: torch.optim.SGD(weights, lr=0.1, weight_decay=0.1), "weight_decay"),
    ],
)
def test_an_optimizer_made_later_that_rows_cannot_follow_is_refused_in_its_step(
    make: Callable[[Any], torch.optim.Optimizer], match: str
) -> None:
    model = both(True)
    before = model.items.weight.detach().clone()
    optimizer = make(model.parameters())
    model(*next(batches(1))).square().mean().backward()
    with pytest.raises(AdaptiveRecError, match=match):
        optimizer.step()
    assert torch.equal(before, model.items.weight.detach())


def test_a_loop_without_steps_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    model = both(True)
    for batch in batches(80):
        model(*batch).square().mean().backward()
        model.zero_grad()
    model.users.weight.runtime.close()
    assert len([one for one in caplog.messages if "without steps they are not updated" in one]) <= 3


def test_where_rows_are_updated_must_fit_the_optimizer() -> None:
    model = Model(False)
    for options, match in (
        ({"optimizer": "sgd", "lr": 0.1, "update": "step"}, "update must be backward"),
        ({"optimizer": torch.optim.SGD, "update": "backward"}, "update must be step"),
        ({"optimizer": torch.optim.SGD, "lr": 0.1}, "lr must be left"),
        ({"optimizer": "sgd", "lr": 0.1, "update": "later"}, "update must be step or backward"),
        ({"optimizer": torch.optim.Rprop}, "SparseAdam"),
    ):
        with pytest.raises(AdaptiveRecError, match=match):
            adaptive_rec.wrap(model, budget="1KiB", **options)  # type: ignore[arg-type]
    assert type(model.items) is nn.Embedding

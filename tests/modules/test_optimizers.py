"""Many steps of each optimizer in float64 equal plain PyTorch's, with everything that a loop does around them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaptive_rec
from adaptive_rec.errors import AdaptiveRecError
from adaptive_rec.modules.loop import dense_steps
from adaptive_rec.modules.loop.dense_steps import DenseSteps

from .cases import few_or_many_steps
from .training import wrapped

ROWS, DIM = 300, 4
optim = torch.optim
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": partial(optim.SGD, lr=0.05),
    "SGD, weight decay": partial(optim.SGD, lr=0.05, weight_decay=0.01),
    "SGD, momentum": partial(optim.SGD, lr=0.02, momentum=0.9),
    "SGD, momentum, dampening, weight decay": partial(
        optim.SGD, lr=0.02, momentum=0.9, dampening=0.3, weight_decay=0.01
    ),
    "SGD, Nesterov, weight decay": partial(optim.SGD, lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adagrad": partial(optim.Adagrad, lr=0.05),
    "Adagrad, rate decay": partial(optim.Adagrad, lr=0.05, lr_decay=0.01),
    "Adagrad, weight decay": partial(optim.Adagrad, lr=0.05, weight_decay=0.01),
    "Adam": partial(optim.Adam, lr=0.01),
    "Adam, weight decay": partial(optim.Adam, lr=0.01, weight_decay=0.01),
    "AdamW": partial(optim.AdamW, lr=0.01, weight_decay=0.1),
    "RMSprop": partial(optim.RMSprop, lr=0.01),
    "RMSprop, momentum": partial(optim.RMSprop, lr=0.003, momentum=0.9),
    "RMSprop, centred, momentum, weight decay": partial(
        optim.RMSprop, lr=0.003, momentum=0.5, centered=True, weight_decay=0.01, eps=1e-4
    ),
    "SparseAdam": partial(optim.SparseAdam, lr=0.01),
}
IN_TURN = [list(OPTIMIZERS)[first::3] for first in range(3)]
"""Names of a third of them each: `make test` takes one third through each of three tests, `make check` all."""
CATCH_UP = [name for name in OPTIMIZERS if name not in ("SGD", "Adagrad", "Adagrad, rate decay", "SparseAdam")]


class Model(nn.Module):
    """One table read by bags and row by row, a second by bags alone."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.items = nn.Embedding(ROWS, DIM, sparse=sparse, padding_idx=0)
        self.seen = nn.EmbeddingBag(ROWS, DIM, mode="mean", sparse=sparse)
        self.seen.weight = self.items.weight
        self.users = nn.EmbeddingBag(80, DIM, mode="sum", sparse=sparse)
        self.top = nn.Linear(DIM, 1)

    def forward(self, seed: int) -> Tensor:
        dice = torch.Generator().manual_seed(seed)
        items = (ROWS * torch.rand(6, 3, generator=dice) ** 4).long()
        users = torch.randint(80, (6, 1), generator=dice)
        vectors = self.items(items).tanh().sum(1) + self.seen(items.flip(0)) + self.users(users)
        return (self.top(vectors).squeeze(-1) - torch.sin(users.double()).mean(1)).square().mean()


def sizes(names: list[str], few: int, many: int) -> list[Any]:
    return [*((name, few) for name in names), *(pytest.param(name, many, marks=pytest.mark.slow) for name in OPTIMIZERS)]


class Run:
    """A model, plain or wrapped, and its optimizers: one, or under SparseAdam a second for the dense part."""

    def __init__(self, name: str, adaptive: bool, **options: Any) -> None:
        self.sparse = name == "SparseAdam"
        self.model = Model(self.sparse)
        tables = [p for n, p in self.model.named_parameters() if not n.startswith("top")]
        every = tables if self.sparse else list(self.model.parameters())
        self.optimizers = [OPTIMIZERS[name](every)]
        if self.sparse:
            self.optimizers.append(torch.optim.Adam(self.model.top.parameters(), lr=0.01))
        self.runtime: Any = wrapped(self.model, self.optimizers[0], budget=3000, **options) if adaptive else None

    def train(self, steps: range, accumulate: int = 1, between: Callable[[int], None] = lambda number: None) -> list[float]:
        schedulers = [
            torch.optim.lr_scheduler.LambdaLR(one, lambda step: 1 / (1 + step / 100)) for one in self.optimizers
        ]
        losses = []
        for number in steps:
            for one in self.optimizers:
                one.zero_grad()
            for part in range(accumulate):
                loss = self.model(1000 * number + part) / accumulate
                loss.backward()
            if not self.sparse:  # torch takes no norm of sparse gradients
                nn.utils.clip_grad_norm_(self.model.parameters(), 0.05)
            for one in self.optimizers:
                one.step()
            for scheduler in schedulers:
                scheduler.step()
            between(number)
            losses.append(loss.item())
        return losses

    def change_budget(self, number: int, every: int) -> None:
        if self.runtime is not None and number % every == every - 1:
            self.runtime.set_knobs(hot_budget_bytes=[0, 6000, 1000][number // every % 3])


def assert_same(ours: Run, theirs: Run) -> None:
    found = ours.model.state_dict()
    for name, value in theirs.model.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-11)


@pytest.fixture(autouse=True)
def doubles() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("name", "accumulate", "steps"),
    [
        *((name, 3, 9) if number % 2 else (name, 1, 24) for number, name in enumerate(IN_TURN[0])),
        *(pytest.param(name, 1, 200, marks=pytest.mark.slow) for name in OPTIMIZERS),
        *(pytest.param(name, 3, 60, marks=pytest.mark.slow) for name in OPTIMIZERS),
    ],
)
def test_many_steps_equal_those_of_torch(name: str, accumulate: int, steps: int) -> None:
    """Under a schedule, with clipping over rows and dense part together, budgets that change, and a table that is shared."""
    theirs, ours = Run(name, adaptive=False), Run(name, adaptive=True)
    wanted, every = theirs.train(range(steps), accumulate), min(40, steps // 3)
    between = partial(ours.change_budget, every=every)
    assert ours.train(range(steps), accumulate, between) == pytest.approx(wanted, rel=1e-10, abs=1e-12)
    assert_same(ours, theirs)
    assert ours.runtime.stats().migrated_rows > 0


@pytest.mark.parametrize(("name", "steps"), sizes(IN_TURN[1], 7, 12))
def test_the_state_goes_in_and_out(name: str, steps: int) -> None:
    """An optimizer with steps behind it is handed over; unwrapped it goes on."""
    theirs, ours = Run(name, adaptive=False), Run(name, adaptive=False)
    parts = [range(part * steps, (part + 1) * steps) for part in range(3)]
    wanted = [theirs.train(part) for part in parts]
    losses = [ours.train(parts[0])]
    wrapped(ours.model, ours.optimizers[0], budget=3000)
    losses.append(ours.train(parts[1]))
    adaptive_rec.unwrap(ours.model, ours.optimizers[0])
    losses.append(ours.train(parts[2]))
    assert sum(losses, []) == pytest.approx(sum(wanted, []), rel=1e-10, abs=1e-12)
    assert_same(ours, theirs)


@pytest.mark.parametrize(("name", "steps"), sizes(IN_TURN[2], 10, 20))
def test_a_saved_loop_goes_on(name: str, steps: int) -> None:
    theirs, ours, again = Run(name, adaptive=False), Run(name, adaptive=True), Run(name, adaptive=True)
    theirs.train(range(steps))
    ours.train(range(steps))
    again.train(range(3))  # it must all come from what is loaded
    again.model.load_state_dict(ours.model.state_dict())
    for one, other in zip(again.optimizers, ours.optimizers, strict=True):
        one.load_state_dict(other.state_dict())
    again.runtime.load_state_dict(ours.runtime.state_dict())
    rest = range(steps, 2 * steps + 5)
    assert again.train(rest) == pytest.approx(theirs.train(rest), rel=1e-10, abs=1e-12)
    assert_same(again, theirs)


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        *((name, 26) for name in ("SGD", "Adam")),
        *(pytest.param(name, 60, marks=pytest.mark.slow) for name in ("SGD", "SGD, momentum", "Adagrad", "Adam", "RMSprop")),
    ],
)
def test_steps_with_infinite_gradients_are_left_out_by_a_scaler(name: str, steps: int) -> None:
    found = []
    for adaptive in (False, True):
        run = Run(name, adaptive)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=10)
        losses = []
        for number in range(steps):
            (optimizer,) = run.optimizers
            optimizer.zero_grad()
            loss = run.model(number)
            scaler.scale(loss * (torch.inf if number % 17 == 5 else 1.0)).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(run.model.parameters(), 0.05)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        found.append((losses, run))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-10)
    assert_same(found[1][1], found[0][1])


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("Adam, weight decay", 25),
        *(pytest.param(name, 60, marks=pytest.mark.slow) for name in ("SGD, momentum", "Adam", "Adam, weight decay")),
    ],
)
def test_every_row_moves_where_rows_are_updated_in_the_backward_pass(name: str, steps: int) -> None:
    """Without clipping: it does not concern the rows there."""
    found = []
    for adaptive in (False, True):
        run = Run(name, adaptive=False)
        if adaptive:
            wrapped(run.model, run.optimizers[0], budget=3000, update="backward")
        losses = []
        for number in range(steps):
            run.optimizers[0].zero_grad()
            loss = run.model(number)
            loss.backward()
            run.optimizers[0].step()
            losses.append(loss.item())
        found.append(losses)
    assert found[1] == pytest.approx(found[0], rel=1e-10)


def test_a_class_with_options_can_be_given() -> None:
    theirs, ours = Run("SGD, momentum", adaptive=False), Run("SGD, momentum", adaptive=False)
    wrapped(ours.model, partial(torch.optim.SGD, momentum=0.9), budget=3000)
    assert ours.train(range(20)) == pytest.approx(theirs.train(range(20)), rel=1e-10)


def test_another_optimizer_than_the_one_named_is_refused() -> None:
    ours = Run("SGD, momentum", adaptive=False)
    wrapped(ours.model, torch.optim.SGD, budget=3000)
    with pytest.raises(AdaptiveRecError, match=r"functools.partial\(torch.optim.SGD, momentum=0.9\)"):
        ours.train(range(1))


def test_an_option_that_changes_on_the_way_is_refused() -> None:
    ours = Run("RMSprop, momentum", adaptive=True)
    ours.train(range(2))
    ours.optimizers[0].param_groups[0]["momentum"] = 0.8
    with pytest.raises(AdaptiveRecError, match=r"momentum=0\.9.* got .*momentum=0\.8"):
        ours.train(range(2, 3))


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        *((name, 20) for name in ("SGD, momentum", "Adam")),
        *(pytest.param(name, 40, marks=pytest.mark.slow) for name in CATCH_UP),
    ],
)
def test_a_missed_catch_up_is_found(name: str, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison sees a fault that is planted: rows are read as their last step left them."""
    theirs, ours = Run(name, adaptive=False), Run(name, adaptive=True)
    monkeypatch.setattr(DenseSteps, "catch_up", lambda *given: None)
    wanted, found = theirs.train(range(steps)), ours.train(range(steps))
    assert found != pytest.approx(wanted, rel=1e-6)


def waiting_gradients(steps: int, drop: bool, adaptive: bool) -> tuple[list[float], int]:
    """Losses of a loop in which the users' optimizer steps every third time, and the number of rows that moved. `drop`: gradients
    that wait are dropped when rows move."""
    model = Model(sparse=False)
    optimizers = [torch.optim.SGD(table.parameters(), lr=0.5) for table in (model.items, model.users)]
    runtime: Any = wrapped(model, torch.optim.SGD, budget=3000) if adaptive else None
    losses = []
    for number in range(steps):
        loss = model(number)
        loss.backward()
        losses.append(loss.item())
        for one in optimizers[: 2 if number % 3 == 2 else 1]:
            before = runtime.stats().migrated_rows if drop else 0
            one.step()
            one.zero_grad()
            if drop and runtime.stats().migrated_rows > before:
                model.users.weight.grad = None
    return losses, runtime.stats().migrated_rows if adaptive else 0


@few_or_many_steps(24, 60)
def test_gradients_that_wait_outlast_a_migration(steps: int) -> None:
    found, moved = waiting_gradients(steps, drop=False, adaptive=True)
    assert found == pytest.approx(waiting_gradients(steps, drop=False, adaptive=False)[0], rel=1e-10)
    assert moved > 0
    assert waiting_gradients(steps, drop=True, adaptive=True)[0] != pytest.approx(found, rel=1e-6), "a planted fault"


@pytest.mark.parametrize(
    ("name", "longest", "steps"),
    [
        *((name, 6, 15) for name in ("SGD, momentum", "Adam")),
        *(pytest.param(name, 16, 40, marks=pytest.mark.slow) for name in CATCH_UP),
    ],
)
def test_the_memory_of_steps_is_bounded(name: str, longest: int, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_steps, "LONGEST_HISTORY", longest)
    theirs, ours = Run(name, adaptive=False), Run(name, adaptive=True)
    assert ours.train(range(steps)) == pytest.approx(theirs.train(range(steps)), rel=1e-10, abs=1e-12)
    assert_same(ours, theirs)
    assert all(len(missed) <= longest for missed in ours.runtime.tables.dense_steps._missed.values())


def test_a_learning_rate_that_is_set_on_the_runtime_is_that_of_the_optimizer() -> None:
    model = nn.ModuleDict({"table": nn.Embedding(20, 3)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    runtime = wrapped(model, optimizer)
    before = model["table"].weight.detach().clone()
    runtime.lr = 0.5
    model["table"](torch.tensor([4])).sum().backward()
    optimizer.step()
    assert optimizer.param_groups[0]["lr"] == runtime.lr == 0.5
    torch.testing.assert_close(before[4] - model["table"].weight.detach()[4], torch.full((3,), 0.5))

"""What several ranks cannot do is an error on all of them, by name; none of them waits for ever."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import adaptive_rec
from adaptive_rec.errors import AdaptiveRecError, ConfigError, GroupError, TrainingError
from adaptive_rec.system.group import Group

from .ranks import Model, patch_ranks, train

SGD = partial(torch.optim.SGD, lr=0.05)


@pytest.fixture
def on_ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    return patch_ranks(monkeypatch)


def evaluate(model: Model) -> None:
    with torch.no_grad():
        model.items(torch.tensor([1]))


def save(model: Model) -> None:
    model.state_dict()


def write(model: Model) -> None:
    with torch.no_grad():
        model.means.weight[torch.tensor([1])] = 0.0


@pytest.mark.parametrize(
    ("act", "named"),
    [
        (evaluate, "rank 0 looks up table sums in step 3 and rank 1 looks up table items in step 3"),
        (save, "rank 0 looks up table sums in step 3 and rank 1 reads the whole of table sums in step 3"),
        (write, "rank 1 looks up table means"),
    ],
)
def test_ranks_that_do_different_things_are_told_which(on_ranks: Any, act: Callable[..., None], named: str) -> None:
    def work(group: Group) -> None:
        with pytest.raises(GroupError, match=f"must make the same calls in the same order .*{named}"):
            train(group, SGD, 9, between=lambda model, step: act(model) if (step, group.rank) == (1, 1) else None)

    on_ranks(2, work)


def test_ranks_must_have_one_learning_rate(on_ranks: Any) -> None:
    def work(group: Group) -> None:
        own = 0.1 + group.rank
        rule = f"learning rates of rows must be the same on all ranks, those of rank 0 and rank 1 differ, here {own:g}: "
        with pytest.raises(GroupError, match=f"{rule}each updates table sums and 3 more in step 1"):
            train(group, partial(torch.optim.SGD, lr=0.1 + group.rank), 2)

    on_ranks(2, work)


@pytest.mark.parametrize("whole", [False, True])
def test_ranks_must_write_the_same_values(on_ranks: Any, whole: bool) -> None:
    def differ(group: Group) -> Callable[[Model, int], None]:
        def write(model: Model, step: int) -> None:
            with torch.no_grad():
                written = model.means.weight if whole else model.means.weight[torch.tensor([1, 2])]
                values = torch.full(written.shape, 1.0 + (group.rank if step else 0), dtype=written.dtype)
                if whole:
                    model.means.weight.copy_(values)
                else:
                    model.means.weight[torch.tensor([1, 2])] = values

        return write

    def work(group: Group) -> None:
        rule = "values written to rows or their optimizer state must be the same on all ranks, those of rank 0 and rank 1 differ"
        with pytest.raises(GroupError, match=f"{rule}: each writes to table means"):
            train(group, SGD, 3, between=differ(group))

    on_ranks(2, work)


def test_ranks_must_have_one_optimizer_and_the_same_tables(on_ranks: Any) -> None:
    def work(group: Group) -> None:
        rule = r"optimizer of rows must be the same on all ranks, got sgd\(\) on rank 0 and adagrad\(eps=1e-10\) on rank 1"
        with pytest.raises(ConfigError, match=rule):
            train(group, partial([torch.optim.SGD, torch.optim.Adagrad][group.rank], lr=0.1), 2)
        table = nn.Embedding(20 + group.rank, 2, sparse=True)
        rule = "tables must be the same on all ranks, got weight, 20 x 2, of .* on rank 0 and weight, 21 x 2, of .* on rank 1"
        with pytest.raises(ConfigError, match=rule):
            adaptive_rec.wrap(table, optimizer=torch.optim.SGD(table.parameters(), lr=1.0), budget=0)
        assert type(table) is nn.Embedding

    on_ranks(2, work)


def test_a_rank_that_ends_is_not_waited_for(on_ranks: Any) -> None:
    def work(group: Group) -> None:
        if group.rank:
            raise RuntimeError("this rank ends")
        train(group, SGD, 2)

    with pytest.raises(RuntimeError, match="this rank ends"):
        on_ranks(2, work)


def test_gradients_that_are_not_finite_on_one_rank_update_no_row(on_ranks: Any) -> None:
    def work(group: Group) -> Any:
        table = nn.Embedding(20, 2, sparse=True)
        optimizer = torch.optim.SGD(table.parameters(), lr=1.0)
        adaptive_rec.wrap(table, optimizer=optimizer, budget=0)
        before = table.weight.detach().clone()
        scale = torch.tensor([1.0, float("nan") if group.rank else 1.0])
        (table(torch.tensor([3, 5])).sum(1) * scale).sum().backward()
        with pytest.raises(TrainingError, match="step 1 on rank 1 do not; no row was updated"):
            optimizer.step()
        return torch.equal(before, table.weight.detach())

    assert all(on_ranks(2, work))


@pytest.mark.parametrize(("factor", "ids", "refused"), [(0.9, [3, 3], True), (1.0, [3], True), (0.9, [3], False)])
def test_the_sums_of_a_rank_and_the_mean_over_ranks_are_finite_or_no_row_is_updated(
    factor: float, ids: list[int], refused: bool, on_ranks: Any
) -> None:
    """The largest number of all could be rounded to infinity in the mean, so it is refused, on all ranks alike."""

    def work(group: Group) -> Any:
        table = nn.Embedding(20, 2, sparse=True)
        optimizer = torch.optim.SGD(table.parameters(), lr=1e-300)
        adaptive_rec.wrap(table, optimizer=optimizer, budget=0)
        before = table.weight.detach().clone()
        (table(torch.tensor(ids)) * (factor * torch.finfo(torch.float64).max)).sum().backward()
        if not refused:
            optimizer.step()
            return bool(table.weight.isfinite().all()) and not torch.equal(before, table.weight.detach())
        with pytest.raises(TrainingError, match="step 1 on rank 0 do not; no row was updated"):
            optimizer.step()
        return torch.equal(before, table.weight.detach())

    assert all(on_ranks(3, work))


def unscale(weight: torch.Tensor) -> None:
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.zeros(()))
    scaler.unscale_(torch.optim.SGD([weight], 0.1))


@pytest.mark.parametrize(
    "change",
    [
        lambda weight, loss: nn.utils.clip_grad_value_([weight], 1.0),
        lambda weight, loss: weight.grad.norm(dim=1),
        lambda weight, loss: weight.grad.abs(),
        lambda weight, loss: unscale(weight),
    ],
    ids=["clipped by value", "norm by row", "any other", "GradScaler"],
)
def test_gradients_are_not_changed_by_their_size_before_they_are_averaged(on_ranks: Any, change: Any) -> None:
    def work(group: Group) -> None:
        table = nn.Embedding(20, 2)
        adaptive_rec.wrap(table, optimizer=torch.optim.SGD, budget=0)
        loss = table(torch.tensor([group.rank])).sum()
        loss.backward()
        change(table.weight, loss)

    rule = "gradients of rows must only be added, scaled and clipped by their norm where several ranks train"
    with pytest.raises(ConfigError, match=rule):
        on_ranks(2, work)


def test_what_cannot_be_shared_is_refused_by_name(on_ranks: Any) -> None:
    def work(group: Group) -> None:
        adaptive_rec.wrap(nn.Embedding(20, 2), optimizer="sgd", lr=0.1, policy="slipstream")

    with pytest.raises(AdaptiveRecError, match="policy must skip no work where several processes .* got slipstream"):
        on_ranks(2, work)


def test_a_running_loop_refuses_the_same(on_ranks: Any) -> None:
    def work(group: Group) -> None:
        runtime = adaptive_rec.wrap(nn.Embedding(20, 2), optimizer="sgd", lr=0.1)
        with pytest.raises(ConfigError, match="got slipstream"):
            runtime.set_knobs(policy="slipstream")
        with pytest.raises(ConfigError, match="must be of one process, there are 2"):
            runtime.serve()

    on_ranks(2, work)


def test_batches_pass_through_prefetch_as_they_are(on_ranks: Any) -> None:
    def work(group: Group) -> None:
        runtime = adaptive_rec.wrap(nn.ModuleDict({"table": nn.Embedding(20, 2)}), optimizer="sgd", lr=0.1)
        batches = [torch.tensor([1, 2]), torch.tensor([3])]
        assert list(runtime.prefetch(batches, sparse=lambda batch: {"table": batch})) == batches

    on_ranks(2, work)

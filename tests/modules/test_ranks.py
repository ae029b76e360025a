"""Wrapped models on several ranks equal one process on the whole batch: losses to 1e-12, rows to 1e-11, over FEW steps, in
`make check` over 40 to 120. A gradient that is lost shows within FEW."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import adaptive_rec
from adaptive_rec.embedding.peers.asked_rows import AskedRows
from adaptive_rec.errors import ConflictError
from adaptive_rec.system.group import Alone, Group

from .cases import few_or_many_steps
from .jagged import Jagged
from .ranks import Trained, patch_ranks, train

FEW, STEPS, MANY = 7, 60, 120
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.05),
    "adagrad": partial(torch.optim.Adagrad, lr=0.05),
    "sparse_adam": partial(torch.optim.SparseAdam, lr=0.01),
}


@pytest.fixture
def on_ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    return patch_ranks(monkeypatch)


def assert_same(found: list[Trained], expected: Trained) -> None:
    for one in found:
        np.testing.assert_allclose(one.losses, expected.losses, rtol=1e-12, atol=0)
        for name, weight in expected.weights.items():
            torch.testing.assert_close(one.weights[name], weight, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("name", "ranks", "steps"),
    [
        ("adagrad", 3, FEW),
        *(pytest.param(*each, STEPS, marks=pytest.mark.slow) for each in (("sgd", 2), ("adagrad", 3), ("sparse_adam", 2))),
        *(pytest.param(name, ranks, MANY, marks=pytest.mark.slow) for name in OPTIMIZERS for ranks in (2, 3)),
    ],
)  # fmt: skip
def test_several_ranks_equal_plain_pytorch_on_the_whole_batch(on_ranks: Any, name: str, ranks: int, steps: int) -> None:
    found = on_ranks(ranks, lambda group: train(group, OPTIMIZERS[name], steps))

    assert_same(found, train(Alone(), OPTIMIZERS[name], steps, wrapped=False))
    for one in found:
        stats = one.runtime.stats()
        assert stats.migrated_rows > 0
        assert 0 < stats.hot_lookup_ratio < 1


@pytest.mark.parametrize(
    ("name", "steps"),
    [("adagrad", FEW), *(pytest.param(name, 40, marks=pytest.mark.slow) for name in ("adagrad", "momentum"))],
)
def test_rows_that_are_looked_up_at_once_are_the_same(on_ranks: Any, name: str, steps: int) -> None:
    make = {**OPTIMIZERS, "momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9)}[name]
    found = on_ranks(2, lambda group: train(group, make, steps, prefetch=True))

    assert_same(found, train(Alone(), make, steps))
    in_calls = on_ranks(2, lambda group: train(group, make, steps))
    sent, without = (sum(one[0].runtime.rows.group.meter.sent_bytes.values()) for one in (found, in_calls))
    assert 0 < sent < without


@pytest.mark.parametrize(
    ("rule", "steps"),
    [
        ("lazy_adam", FEW),
        *(pytest.param(rule, n, marks=pytest.mark.slow) for rule in ("rowwise_adagrad", "lazy_adam") for n in (STEPS, MANY)),
    ],
)
def test_rows_that_are_updated_in_the_backward_pass_equal_those_of_one_process(
    on_ranks: Any, rule: str, steps: int
) -> None:
    found = on_ranks(2, lambda group: train(group, None, steps, rule=rule))

    assert_same(found, train(Alone(), None, steps, rule=rule))


MISSED_STEPS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=0.01),
    "weight decay": partial(torch.optim.Adagrad, lr=0.05, weight_decay=0.01),
    "adamw": partial(torch.optim.AdamW, lr=0.01),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01),
}


@pytest.mark.parametrize(
    ("name", "steps"),
    [("momentum", FEW), *(pytest.param(name, 40, marks=pytest.mark.slow) for name in MISSED_STEPS)],
)
def test_rows_make_the_steps_that_they_missed(on_ranks: Any, name: str, steps: int) -> None:
    """Those of Adam are made on ranks in `test_disk.py` too."""
    make = MISSED_STEPS[name]
    found = on_ranks(2, lambda group: train(group, make, steps))

    assert_same(found, train(Alone(), make, steps))


@few_or_many_steps(FEW, 30)
def test_the_same_ranks_repeat_bit_by_bit(on_ranks: Any, steps: int) -> None:
    once, again = (on_ranks(3, lambda group: train(group, OPTIMIZERS["adagrad"], steps), seed) for seed in (1, 2))

    for name, weight in once[0].weights.items():
        assert torch.equal(weight, again[2].weights[name]), name


@few_or_many_steps(FEW, 30)
def test_gradients_are_clipped_by_the_norm_of_their_average(on_ranks: Any, steps: int) -> None:
    found = on_ranks(3, lambda group: train(group, OPTIMIZERS["sgd"], steps, clip=0.05))

    expected = train(Alone(), OPTIMIZERS["sgd"], steps, clip=0.05)
    assert_same(found, expected)
    assert expected.losses != train(Alone(), OPTIMIZERS["sgd"], steps).losses


def test_a_norm_is_that_of_the_average(on_ranks: Any) -> None:
    def norm(group: Group) -> list[tuple[float, float]]:
        table, plain = torch.nn.Embedding(9, 2), torch.nn.Embedding(9, 2)
        adaptive_rec.wrap(table, optimizer=torch.optim.SGD, budget=0)
        table(torch.tensor([1, 2 + group.rank])[: 1 + group.rank]).sum().backward()
        for ids in ([1], [1, 3]):  # of both ranks
            (plain(torch.tensor(ids)).sum() / 2).backward()
        found: list[Any] = [table.weight.grad, plain.weight.grad]
        return [tuple(float(one.norm(order)) for one in found) for order in (1, 2.5, float("inf"))]  # type: ignore[misc]

    for own, expected in (norms for of_rank in on_ranks(2, norm) for norms in of_rank):
        assert own == pytest.approx(expected, rel=1e-14)


@few_or_many_steps(FEW, 30)
def test_a_loss_of_a_whole_weight_reaches_all_its_rows(on_ranks: Any, steps: int) -> None:
    make = OPTIMIZERS["adagrad"]
    found = on_ranks(2, lambda group: train(group, make, steps, penalty=0.1, clip=0.05))

    assert_same(found, train(Alone(), make, steps, penalty=0.1, clip=0.05))


@pytest.mark.parametrize(
    ("ranks", "name", "steps"),
    [
        (3, "sparse_adam", 6),
        *(pytest.param(n, name, 20, marks=pytest.mark.slow) for n in (1, 3) for name in ("adagrad", "sparse_adam")),
    ],
)
def test_any_number_of_ranks_resumes_what_two_have_saved(on_ranks: Any, name: str, ranks: int, steps: int) -> None:
    """After a number of steps, for as many again."""
    make = OPTIMIZERS[name]

    def save(group: Group) -> Any:
        trained = train(group, make, steps)
        return trained.weights, trained.runtime.state_dict()

    model, runtime = on_ranks(2, save)[1]
    assert runtime["tables"]["sums"]["rows"] == len(runtime["optimizer"]["0"]) == 61
    state = {name: value.clone() for name, value in model.items()}, runtime
    found = on_ranks(ranks, lambda group: train(group, make, 2 * steps, first=steps, state=state))

    expected = train(Alone(), make, 2 * steps, wrapped=False)
    expected.losses = expected.losses[steps:]
    assert_same(found, expected)
    assert found[0].runtime.stats().steps == 2 * steps


@few_or_many_steps(FEW, 10)
def test_optimizers_show_and_take_the_state_of_whole_tables(on_ranks: Any, steps: int) -> None:
    make = OPTIMIZERS["adagrad"]

    def save_and_load(group: Group) -> Any:
        trained = train(group, make, steps)
        tables = trained.optimizers[0]
        saved = copy.deepcopy(tables.state_dict())
        for state in tables.state.values():
            state["sum"].mul_(9)
        tables.load_state_dict(saved)
        tables.step()
        return copy.deepcopy(tables.state_dict())["state"]

    states = on_ranks(2, save_and_load)
    theirs = train(Alone(), make, steps, wrapped=False).optimizers[0]
    theirs.step()
    expected = theirs.state_dict()["state"]
    for number, state in expected.items():
        for own in states:
            torch.testing.assert_close(own[number]["sum"], state["sum"], rtol=0, atol=1e-11)


def test_an_optimizers_state_of_before_later_steps_is_refused_on_all_ranks(on_ranks: Any) -> None:
    """In torch it is the live state; the optimizer's other states are."""

    def keep_and_load(group: Group) -> None:
        trained = train(group, OPTIMIZERS["adagrad"], FEW)
        tables = trained.optimizers[0]
        state = tables.state_dict()
        tables.load_state_dict(state)  # nothing has changed since
        tables.step()
        tables.load_state_dict(state)
        with pytest.raises(ConflictError, match="load a copy of an earlier state, that of table"):
            tables.step()

    on_ranks(2, keep_and_load)


def test_one_rank_may_save_what_all_have_asked_for(on_ranks: Any) -> None:
    def save(group: Group) -> bytes:
        trained = train(group, OPTIMIZERS["adagrad"], 3)
        states = [trained.model.state_dict(), *(optimizer.state_dict() for optimizer in trained.optimizers)]
        saved = io.BytesIO()
        if group.rank == 0:
            torch.save(states, saved)
        return saved.getvalue()

    weights, tables, *_ = torch.load(io.BytesIO(on_ranks(2, save)[0]), weights_only=True)
    assert len(weights["sums.weight"]) == 61
    assert any(len(state["sum"]) == 61 for state in tables["state"].values())


def test_writes_to_a_weight_reach_the_owners_of_its_rows(on_ranks: Any) -> None:
    def write(model: Any, step: int) -> None:
        with torch.no_grad():
            if step == 3:
                model.items.weight[torch.tensor([2, 7, 2])] = torch.arange(12.0).view(3, 4)
            if step == 5:
                model.sums.weight.copy_(torch.arange(61.0 * 4).view(61, 4) / 100)
            if step == 7:
                model.means.weight.mul_(0.5)

    found = on_ranks(3, lambda group: train(group, OPTIMIZERS["sgd"], 9, between=write))

    assert_same(found, train(Alone(), OPTIMIZERS["sgd"], 9, wrapped=False, between=write))


@few_or_many_steps(FEW, 10)
def test_an_unwrapped_model_has_all_rows_and_their_state(on_ranks: Any, steps: int) -> None:
    def unwrap(group: Group) -> Any:
        trained = train(group, OPTIMIZERS["adagrad"], steps)
        adaptive_rec.unwrap(trained.model, trained.optimizers[0])
        return trained.model.state_dict(), trained.optimizers[0].state[trained.model.means.weight]["sum"]

    expected = train(Alone(), OPTIMIZERS["adagrad"], steps, wrapped=False)
    for weights, sums in on_ranks(2, unwrap):
        torch.testing.assert_close(weights["means.weight"], expected.weights["means.weight"], rtol=0, atol=1e-11)
        state = expected.optimizers[0].state[expected.model.means.weight]["sum"]
        torch.testing.assert_close(sums, state, rtol=0, atol=1e-11)


def collection_of(rank: int) -> Any:
    def first(rows: torch.Tensor) -> None:
        rows.copy_((rank + 1) * torch.arange(120.0).view(30, 4) / 120)

    configs = [adaptive_rec.EmbeddingBagConfig(name, 4, 30, [name, f"{name}2"], "mean", first) for name in ("a", "b")]
    return adaptive_rec.AdaptiveEmbeddingBagCollection(configs, optimizer="adagrad", lr=0.1, budget="1KiB")


def features_of(step: int, part: slice) -> Jagged:
    random = torch.Generator().manual_seed(step)
    length_FB = torch.randint(0, 3, (4, 12), generator=random)
    ids = torch.randint(0, 30, (int(length_FB.sum()),), generator=random)
    kept = torch.zeros_like(length_FB, dtype=torch.bool)
    kept[:, part] = True
    return Jagged(["a", "a2", "b", "b2"], ids[kept.reshape(-1).repeat_interleave(length_FB.reshape(-1))], length_FB[:, part])


@few_or_many_steps(12, 20)
def test_a_collection_is_shared_too(on_ranks: Any, steps: int) -> None:
    def run(group: Group) -> Any:
        bags = collection_of(group.rank)
        for step in range(steps):
            features = features_of(step, group.part_of(12))
            (bags(features).values().square().sum() / 12 * group.ranks).backward()
        return bags.state_dict()

    found, expected = on_ranks(3, run), run(Alone())
    for state in found:
        for name, weight in expected.items():
            torch.testing.assert_close(state[name], weight, rtol=0, atol=1e-11)


# Faults that the tests above must find ---------------------------------------------------------------------------------


def average_over_too_many(patch: pytest.MonkeyPatch) -> None:
    send = AskedRows.send

    def smaller(self: AskedRows, values_UD: Any) -> Any:
        return send(self, values_UD * (1 - 1e-9) if values_UD.dtype == np.float64 else values_UD)

    patch.setattr(AskedRows, "send", smaller)


def answer_with_other_rows(patch: pytest.MonkeyPatch) -> None:
    answer = AskedRows.answer

    def swapped(self: AskedRows, values_MD: Any) -> Any:
        if self.group.rank == 1 and len(values_MD) > 1:
            values_MD = values_MD.copy()
            values_MD[[0, 1]] = values_MD[[1, 0]]
        return answer(self, values_MD)

    patch.setattr(AskedRows, "answer", swapped)


def lose_a_gradient(patch: pytest.MonkeyPatch) -> None:
    send = AskedRows.send

    def without_one(self: AskedRows, values_UD: Any) -> Any:
        if self.group.rank == 1 and len(values_UD):
            values_UD = values_UD.copy()
            values_UD[-1] = 0
        return send(self, values_UD)

    patch.setattr(AskedRows, "send", without_one)


@pytest.mark.parametrize("fault", [average_over_too_many, answer_with_other_rows, lose_a_gradient])
def test_planted_faults_are_found(on_ranks: Any, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)

    found = on_ranks(2, lambda group: train(group, OPTIMIZERS["sgd"], FEW))

    with pytest.raises(AssertionError):
        assert_same(found, train(Alone(), OPTIMIZERS["sgd"], FEW, wrapped=False))

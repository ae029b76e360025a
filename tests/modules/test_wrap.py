"""`wrap` replaces parts of a model and takes tables from an optimizer; a refused call changes nothing."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adaptive_rec
from adaptive_rec import AdaptiveEmbedding, AdaptiveEmbeddingBag
from adaptive_rec.errors import AdaptiveRecError
from adaptive_rec.modules.tensors.weight import TieredWeight

from .training import CASES, RULES, Loop, assert_moved, data, tables_of, wrapped


class Mixed(nn.Module):
    """Tables that can be moved among parts that cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.EmbeddingBag(50, 4, mode="sum")
        self.nested = nn.ModuleDict(
            {"mean": nn.EmbeddingBag(30, 4, mode="mean", padding_idx=1, include_last_offset=True)}
        )
        self.largest = nn.EmbeddingBag(20, 4, mode="max")
        self.normed = nn.EmbeddingBag(20, 4, mode="sum", max_norm=1.0)
        self.scaled = nn.EmbeddingBag(20, 4, mode="sum", scale_grad_by_freq=True)
        self.words = nn.Embedding(40, 4)
        self.frozen = nn.EmbeddingBag.from_pretrained(torch.randn(20, 4), freeze=True, mode="sum")
        self.half = nn.EmbeddingBag(20, 4, mode="sum", dtype=torch.bfloat16)
        self.head = nn.Linear(4, 1)


LEFT = {
    "largest": "max", "normed": "max_norm", "scaled": "scale_grad_by_freq", "frozen": "grad",
    "half": "bfloat16",
}  # fmt: skip


def by_name(model: nn.Module, **options: Any) -> Any:
    return adaptive_rec.wrap(model, **{"budget": "64KiB", "optimizer": "adagrad", "lr": 0.1, **options})


# What is replaced ----------------------------------------------------------------------------------------------------


def test_bags_are_replaced_in_place_and_the_report_says_so() -> None:
    model = Mixed()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    parts = dict(model.named_modules())
    runtime = by_name(model)
    moved = {name for name, part in model.named_modules() if isinstance(getattr(part, "weight", None), TieredWeight)}
    assert moved == {"plain", "nested.mean", "words"}
    assert isinstance(model.plain, AdaptiveEmbeddingBag)
    assert isinstance(model.words, AdaptiveEmbedding)
    assert all(part is parts[name] for name, part in model.named_modules())
    assert list(model.state_dict()) == list(before)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name]), name
    assert {name for name, _ in model.named_parameters()} == {*before}
    lines = str(runtime.report).splitlines()
    for name, rows in {"plain": "50", "nested.mean": "30", "words": "40"}.items():
        assert any(name in line and rows in line for line in lines), name
    for name, why in LEFT.items():
        assert any(name in line and why in line for line in lines), (name, why, str(runtime.report))
    bag = model.nested["mean"]
    assert (bag.mode, bag.padding_idx, bag.include_last_offset, bag.embedding_dim) == ("mean", 1, True, 4)
    assert set(runtime.stats().tables) == {"plain", "nested.mean", "words"}


def test_train_and_eval_mode_do_not_move_rows() -> None:
    model = Mixed().eval()
    by_name(model)
    assert not model.plain.training


class Tied(nn.Module):
    """Two bags over one weight; a bag that stands in two places of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.EmbeddingBag(40, 4, mode="sum", sparse=True)
        self.other = nn.EmbeddingBag(40, 4, mode="mean", sparse=True)
        self.other.weight = self.one.weight
        self.third = nn.EmbeddingBag(30, 4, mode="sum", sparse=True)
        self.again = nn.ModuleList([self.third])

    def forward(self, ids: Tensor) -> Tensor:
        parts = [self.one(ids), self.other(ids.flip(1) // 2), self.third(ids % 30), self.again[0](ids % 7)]
        return torch.stack([part.sin().sum() for part in parts]).sum()


@pytest.mark.parametrize("rule", RULES)
def test_a_weight_that_bags_share_stays_one(rule: str) -> None:
    losses, states = [], []
    for adaptive in (False, True):
        torch.manual_seed(2)
        model = Tied()
        optimizer = RULES[rule](tables_of(model))
        runtime = wrapped(model, optimizer, budget=4000) if adaptive else None
        found = []
        for step in range(30):
            ids = (40 * torch.rand(8, 3, generator=torch.Generator().manual_seed(step)) ** 3).long()
            optimizer.zero_grad()
            loss = model(ids)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        losses.append(found)
        states.append(model.state_dict())
    assert model.again[0] is model.third
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)
    assert list(states[0]) == list(states[1])
    for name, weight in states[0].items():
        torch.testing.assert_close(states[1][name], weight, rtol=0, atol=1e-12)
    assert_moved(runtime)
    assert sum(table.rows for table in runtime.stats().tables.values()) == 70
    model.load_state_dict(states[0])
    assert torch.equal(model.one.weight, model.other.weight)


def test_a_weight_that_something_else_uses_too_is_left_where_rows_are_updated_in_the_backward_pass() -> None:
    """The gradient of the other use would come too late."""
    model = nn.Module()
    model.bag = nn.EmbeddingBag(20, 4, mode="sum")
    model.free = nn.EmbeddingBag(20, 4, mode="sum")
    model.head = nn.Linear(4, 20, bias=False)
    model.head.weight = model.bag.weight
    runtime = by_name(model)
    assert type(model.bag) is nn.EmbeddingBag
    assert model.head.weight is model.bag.weight
    assert isinstance(model.free, AdaptiveEmbeddingBag)
    assert any("bag" in line and "head" in line for line in str(runtime.report).splitlines())


class Noisy(nn.EmbeddingBag):
    def forward(self, *call: Any) -> Tensor:
        return super().forward(*call) + 1.0


def test_a_subclass_of_nn_embeddingbag_keeps_its_forward() -> None:
    model = nn.ModuleDict({"noisy": Noisy(20, 4, mode="sum"), "bag": nn.EmbeddingBag(20, 4, mode="sum")})
    before = model["noisy"](torch.zeros(1, 1, dtype=torch.int64))
    by_name(model)
    assert isinstance(model["noisy"], Noisy)
    assert isinstance(model["noisy"].weight, TieredWeight)
    assert torch.equal(model["noisy"](torch.zeros(1, 1, dtype=torch.int64)), before)


def test_a_bag_keeps_its_hooks() -> None:
    model = nn.ModuleDict({"bag": nn.EmbeddingBag(20, 4, mode="sum"), "free": nn.EmbeddingBag(20, 4, mode="sum")})
    seen = []
    model["bag"].register_forward_hook(lambda *call: seen.append(1))
    runtime = by_name(model)
    model["bag"](torch.zeros(1, 1, dtype=torch.int64))
    assert seen == [1]
    assert "left" not in str(runtime.report)


def test_a_weight_with_hooks_is_left_as_it_is() -> None:
    model = nn.ModuleDict({"bag": nn.EmbeddingBag(20, 4, mode="sum"), "free": nn.EmbeddingBag(20, 4, mode="sum")})
    model["bag"].weight.register_hook(lambda gradient: gradient / 2)
    runtime = by_name(model)
    assert type(model["bag"]) is nn.EmbeddingBag
    assert "bag, its weight has hooks" in str(runtime.report)


def test_references_to_modules_and_weights_made_before_are_good_after() -> None:
    """As in a model that keeps a list of weights for a term of its loss."""
    model = nn.ModuleDict({"bag": nn.EmbeddingBag(20, 4, mode="sum")})
    module, weight = model["bag"], model["bag"].weight
    before = weight.detach().clone()
    by_name(model)
    assert model["bag"] is module
    assert module.weight is weight
    assert torch.equal(module(torch.zeros(1, 1, dtype=torch.int64)), before[:1])
    assert torch.equal(weight.square().sum(), before.square().sum())


@pytest.mark.parametrize("spent", [False, True])
def test_a_pending_gradient_is_warned_of_where_it_is_dropped(spent: bool, caplog: pytest.LogCaptureFixture) -> None:
    model = nn.ModuleDict({"bag": nn.EmbeddingBag(20, 4, mode="sum", sparse=True)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model["bag"](torch.zeros(1, 1, dtype=torch.int64)).sum().backward()
    if spent:
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    adaptive_rec.wrap(model, budget="1KiB", optimizer=optimizer, update="backward")
    assert ("wrap drops the gradients of bag" in caplog.text) is not spent


def test_a_pending_gradient_is_used_by_the_next_step() -> None:
    rows = []
    for adaptive in (False, True):
        torch.manual_seed(3)
        model = nn.ModuleDict({"bag": nn.EmbeddingBag(20, 4, mode="sum", sparse=True)})
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
        model["bag"](torch.tensor([[1, 2]])).sin().sum().backward()
        if adaptive:
            adaptive_rec.wrap(model, budget="1KiB", optimizer=optimizer)
        model["bag"](torch.tensor([[2, 3]])).sin().sum().backward()
        optimizer.step()
        rows.append(model["bag"].weight.detach().clone())
    torch.testing.assert_close(rows[1], rows[0], rtol=0, atol=1e-15)


@pytest.mark.parametrize(("rule", "option"), [(torch.optim.SGD, "momentum"), (torch.optim.SparseAdam, "betas")])
def test_a_scheduler_that_changes_more_than_the_rate_is_refused(rule: Any, option: str) -> None:
    """It cycles momentum or betas, which rows do not follow."""
    model = nn.ModuleDict({"bag": nn.EmbeddingBag(20, 4, mode="sum", sparse=True)})
    optimizer = rule(model.parameters(), lr=0.1)
    runtime = adaptive_rec.wrap(model, budget="1KiB", optimizer=optimizer)
    rows = model["bag"].weight.detach().clone()
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=40)
    model["bag"](torch.zeros(1, 1, dtype=torch.int64)).sum().backward()
    with pytest.raises(AdaptiveRecError, match=f"{option}.*cycle_momentum=False"):
        optimizer.step()
    assert torch.equal(model["bag"].weight, rows)
    assert runtime.step_number == 0


def test_a_loss_that_is_not_one_number_is_refused_and_the_last_one_counts() -> None:
    model = nn.ModuleDict({"bag": nn.EmbeddingBag(20, 4, mode="sum", sparse=True)})
    runtime = by_name(model)
    runtime.record_loss(torch.tensor([0.5]))
    with pytest.raises(AdaptiveRecError, match=r"loss must be one number.* got shape \(8,\)"):
        runtime.record_loss(torch.zeros(8))
    model["bag"](torch.zeros(1, 1, dtype=torch.int64)).sum().backward()
    assert float(runtime.losses().array()) == 0.5


def test_a_with_block_closes_its_runtime() -> None:
    model = nn.ModuleDict({"bag": nn.EmbeddingBag(20, 4, mode="sum", sparse=True)})
    with by_name(model) as runtime:
        model["bag"](torch.zeros(1, 1, dtype=torch.int64)).sum().backward()
        assert not runtime.closed
    assert runtime.closed
    assert model["bag"](torch.zeros(1, 1, dtype=torch.int64)).shape == (1, 4), "rows can still be read"


@pytest.mark.parametrize("budget", [-1, "-1", "lots", "1e6", 1.5, True])
def test_an_invalid_budget_is_refused_by_its_name(budget: Any) -> None:
    model = nn.ModuleDict({"bag": nn.EmbeddingBag(20, 4, mode="sum")})
    refuse(model, r"budget must be a whole number of bytes, 0 or more, or a text such as \"2GiB\", got", budget=budget)


def test_parameters_of_the_dense_part_are_the_same_objects() -> None:
    model = Mixed()
    head = dict(model.head.named_parameters())
    by_name(model)
    assert all(value is head[name] for name, value in model.head.named_parameters())


# What is refused -----------------------------------------------------------------------------------------------------


def refuse(model: nn.Module, match: str, **options: Any) -> None:
    """Refused, and neither model nor optimizer changed."""
    parts, optimizer = dict(model.named_modules()), options.get("optimizer")
    held = (
        [] if not isinstance(optimizer, torch.optim.Optimizer) else [list(g["params"]) for g in optimizer.param_groups]
    )
    with pytest.raises((AdaptiveRecError, TypeError), match=match):
        by_name(model, **options)
    assert all(one is parts[name] for name, one in model.named_modules())
    if held:
        for group, params in zip(optimizer.param_groups, held, strict=True):  # type: ignore[union-attr]
            assert len(group["params"]) == len(params)
            assert all(one is other for one, other in zip(group["params"], params, strict=True))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"budget": "much"}, "budget"), ({"budget": -1}, "budget"), ({"budget": 1.5}, "budget"),
        ({"optimizer": "adagrd"}, "adagrad"),
        ({"optimizer": "adam"}, "lazy_adam"), ({"lr": None}, "lr"), ({"lr": -0.1}, "lr"), ({"eps": -1.0}, "eps"),
        ({"knobs": {"hysteresys": 0.1}}, "hysteresis"), ({"knobs": {"decay": 7.0}}, "decay"), ({"policy": "hotlin"}, "hotline"),
        ({"policy": "cdlrm"}, "cdlrm"), ({"policy": "fae"}, "fae"), ({"policy": "xdl"}, "xdl"),
        ({"optimizer": None}, "optimizer"),
    ],
)  # fmt: skip
def test_invalid_options_are_refused(options: dict[str, Any], match: str) -> None:
    refuse(Mixed(), match, **options)


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(AdaptiveRecError, match="must be an nn.Module, got an object of list"):
        by_name([nn.Embedding(3, 3)])  # type: ignore[arg-type]


def test_models_that_cannot_be_wrapped_are_refused() -> None:
    refuse(nn.Linear(3, 3), "EmbeddingBag")
    model = Mixed()
    by_name(model)
    with pytest.raises(AdaptiveRecError, match=r"twice|already"):
        by_name(model)
    model.late = nn.EmbeddingBag(9, 4, mode="sum")
    with pytest.raises(AdaptiveRecError, match=r"twice|already"):
        by_name(model)
    mixed_types = nn.ModuleList(
        [nn.EmbeddingBag(9, 4, mode="sum", dtype=dtype) for dtype in (torch.float32, torch.float64)]
    )
    refuse(mixed_types, "float32")


REFUSED: dict[str, tuple[Callable[[Any], torch.optim.Optimizer], str]] = {
    "uphill": (lambda weights: torch.optim.SGD(weights, lr=0.1, maximize=True), "maximize"),
    "SparseAdam uphill": (lambda weights: torch.optim.SparseAdam(weights, lr=0.1, maximize=True), "maximize"),
    "AMSGrad": (lambda weights: torch.optim.Adam(weights, lr=0.1, amsgrad=True), "amsgrad of Adam"),
    "NAdam": (lambda weights: torch.optim.NAdam(weights, lr=0.1), "Adam, AdamW and SparseAdam are served"),
    "RAdam": (lambda weights: torch.optim.RAdam(weights, lr=0.1), r"an optimizer of their own, torch\.optim\.AdamW\("),
    "Adadelta": (lambda weights: torch.optim.Adadelta(weights, lr=0.1), "RMSprop.*got Adadelta"),
}


@pytest.mark.parametrize("which", REFUSED)
def test_optimizers_that_rows_cannot_follow_are_refused(which: str) -> None:
    make, match = REFUSED[which]
    model = CASES["dlrm"].make()
    refuse(model, match, optimizer=make(tables_of(model)), lr=None)


class OfOnesOwn(torch.optim.Adam):
    """An optimizer that torch does not have."""

    def __init__(self, weights: Any, warmup_steps: int) -> None:
        super().__init__(weights, lr=0.1 / warmup_steps)


@pytest.mark.parametrize("how", ["made", "class", "partial"])
def test_an_optimizer_of_ones_own_is_told_the_simplest_way(how: str) -> None:
    model = CASES["dlrm"].make()
    given: Any = {"made": OfOnesOwn(tables_of(model), 3), "class": OfOnesOwn, "partial": partial(OfOnesOwn, warmup_steps=3)}[how]
    words = r"got OfOnesOwn\. The simplest way: .*AdamW\(\[.*\]\) say, beside the OfOnesOwn of the other parameters"
    refuse(model, words, optimizer=given, lr=None)
    rest = OfOnesOwn(model.top_l.parameters(), 3)
    tables = torch.optim.AdamW(tables_of(model), lr=0.1)
    adaptive_rec.wrap(model, budget="1KiB", optimizer=[tables, rest])


SCHEDULERS: dict[str, Callable[..., Any]] = {
    "one cycle": partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.2, total_steps=40),
    "cycles": partial(torch.optim.lr_scheduler.CyclicLR, base_lr=0.1, max_lr=0.2),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_that_will_change_more_than_the_rate_is_refused_by_wrap(name: str) -> None:
    """In torch 2.13.0 it writes the bounds of momentum into the param group when it is made."""
    schedule = SCHEDULERS[name]
    for make, option in ((torch.optim.Adam, "betas"), (partial(torch.optim.SGD, momentum=0.9), "momentum")):
        model = nn.ModuleDict({"bag": nn.EmbeddingBag(20, 4, mode="sum")})
        optimizer = make(model.parameters(), lr=0.1)
        schedule(optimizer)
        words = rf"{option} of \w+ must stay as they are .* between 0\.8.* and 0\.9.*cycle_momentum=False"
        with pytest.raises(AdaptiveRecError, match=words):
            adaptive_rec.wrap(model, budget="1KiB", optimizer=optimizer)
        assert type(model["bag"]) is nn.EmbeddingBag

        other = make(model.parameters(), lr=0.1)
        schedule(other, cycle_momentum=False)
        adaptive_rec.wrap(model, budget="1KiB", optimizer=other)
        schedule(other)
        model["bag"](torch.zeros(1, 1, dtype=torch.int64)).sum().backward()
        with pytest.raises(AdaptiveRecError, match=words):
            other.step()


def test_a_rate_beside_an_optimizer_that_has_one_is_refused() -> None:
    model = CASES["dlrm"].make()
    refuse(model, "lr", optimizer=torch.optim.SGD(tables_of(model), lr=0.1), lr=0.5)


def test_a_model_on_several_devices_is_told_to_name_one() -> None:
    """`meta` stands for another device."""
    model = nn.ModuleDict({"table": nn.Embedding(9, 4), "here": nn.Linear(4, 4), "there": nn.Linear(4, 1, device="meta")})
    words = r"device must be given where parameters lie on several devices, got cpu, meta"
    with pytest.raises(AdaptiveRecError, match=words):
        adaptive_rec.wrap(model, optimizer="sgd", lr=0.1)
    assert type(model["table"]) is nn.Embedding
    assert adaptive_rec.wrap(model, device="cpu", optimizer="sgd", lr=0.1).device.type == "cpu"
    tables = nn.ModuleDict({"here": nn.Embedding(9, 4), "there": nn.Embedding(9, 4, device="meta")})
    with pytest.raises(AdaptiveRecError, match=r"device must be given where tables lie on several devices, got cpu, meta"):
        adaptive_rec.wrap(tables, optimizer="sgd", lr=0.1)


def test_an_optimizer_without_all_tables_is_refused() -> None:
    model = CASES["dlrm"].make()
    refuse(model, "optimizer", optimizer=torch.optim.SGD(tables_of(model)[:2], lr=0.1), lr=None)
    refuse(model, "optimizer", optimizer=torch.optim.SGD(model.top_l.parameters(), lr=0.1), lr=None)


def test_tables_in_several_param_groups_follow_their_own_rates() -> None:
    rows = []
    for adaptive in (False, True):
        torch.manual_seed(3)
        model = CASES["dlrm"].make()
        tables = tables_of(model)
        optimizer = torch.optim.Adagrad([{"params": tables[:2]}, {"params": tables[2:], "lr": 0.5}], lr=0.1)
        runtime = wrapped(model, optimizer) if adaptive else None
        for batch in data.clicks(15, 32):
            optimizer.zero_grad()
            CASES["dlrm"].loss(model, batch).backward()
            optimizer.step()
        rows.append([one.detach().clone() for one in tables])
    for ours, theirs in zip(rows[1], rows[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    assert_moved(runtime)
    model = CASES["dlrm"].make()
    tables = tables_of(model)
    groups = [{"params": tables[:2]}, {"params": tables[2:], "lr": 0.5}]
    refuse(model, "group", optimizer=torch.optim.SGD(groups, lr=0.1), lr=None, update="backward")


# Copies --------------------------------------------------------------------------------------------------------------


def through_pickle(model: nn.Module) -> Any:
    return pickle.loads(pickle.dumps(model))  # noqa: S301 - made a line above


@pytest.mark.parametrize("how", [copy.deepcopy, through_pickle])
def test_a_copy_of_a_wrapped_model_is_a_plain_one(how: Callable[[nn.Module], nn.Module]) -> None:
    loop = Loop(CASES["two_tower"], "adagrad", {})
    loop.run(10)
    twin = how(loop.model)
    assert {type(part) for part in twin.modules()} == {type(part) for part in CASES["two_tower"].make().modules()}
    assert all(type(one) is nn.Parameter for one in twin.parameters())
    before = {name: value.clone() for name, value in twin.state_dict().items()}
    for name, value in loop.model.state_dict().items():
        assert torch.equal(value, before[name])
    loop.run(5)
    assert all(torch.equal(value, before[name]) for name, value in twin.state_dict().items())


def test_a_checkpoint_of_the_wrapped_model_loads_into_the_plain_one(tmp_path: Any) -> None:
    loop = Loop(CASES["dlrm"], "adagrad", {})
    loop.run(20)
    torch.save(loop.model.state_dict(), tmp_path / "model.pt")
    plain = CASES["dlrm"].make()
    plain.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    batch = next(iter(data.clicks(1, 64, seed=9)))
    with torch.no_grad():
        expected, found = (model(batch.dense, batch.bags) for model in (plain, loop.model))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)

"""Gradients that are finite, and whose sum for one row is not: the step ends before anything is updated, and a ``GradScaler``
leaves it out as torch does with dense gradients (torch 2.13.0 is asked in each test)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict

import adaptive_rec
from adaptive_rec import AdaptiveEmbeddingBagCollection, AdaptiveEmbeddingCollection, EmbeddingBagConfig
from adaptive_rec.errors import TrainingError
from adaptive_rec.kernels.update_rules import NAMED_RULES
from adaptive_rec.modules.loop import embedding_runtime
from adaptive_rec.modules.loop.finite_sums import LATE_STEPS, LateSums
from tests.matrix import always, grid

from .cases import in_turn
from .jagged import Jagged
from .test_device import _device  # noqa: F401 - a fixture

LARGE = 0.9 * torch.finfo(torch.float64).max
"""Twice as much is infinite."""
REFUSED = "gradients of an embedding row must sum to finite numbers"
RULES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.1),
    "momentum": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
    "adagrad": lambda weights: torch.optim.Adagrad(weights, lr=0.1),
    "adam": lambda weights: torch.optim.Adam(weights, lr=0.1),
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=0.1),
    "rmsprop": lambda weights: torch.optim.RMSprop(weights, lr=0.1),
}


class Model(nn.Module):
    """A sequence, a bag of each mode and one of weighted ids, of two dims, and a dense layer."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.items = nn.Embedding(12, 4, sparse=sparse)
        self.sums = nn.EmbeddingBag(12, 4, mode="sum", sparse=sparse)
        self.means = nn.EmbeddingBag(12, 6, mode="mean", sparse=sparse)
        self.weighted = nn.EmbeddingBag(12, 4, mode="sum", sparse=sparse)
        self.dense = nn.Linear(4, 1)

    def vectors(self, ids: Tensor) -> dict[str, Tensor]:
        """`ids`: two for each sample."""
        return {
            "items": self.items(ids).flatten(0, 1),
            "sums": self.sums(ids),
            "means": self.means(ids),
            "weighted": self.weighted(ids, per_sample_weights=torch.ones(ids.shape)),
        }

    def loss(self, ids: Tensor, large: str = "", factor: float = LARGE) -> Tensor:
        """The sum of what all tables give; vectors of one of them times a large factor."""
        found = self.vectors(ids)
        small = sum(part.sin().sum() for part in found.values()) + self.dense(found["sums"]).sum()
        return small + (found[large] * factor).sum() if large else small


TWICE = torch.tensor([[3, 3], [3, 3], [3, 3], [3, 3]])
"""Row 3 eight times: its gradient from a mean is the sum of four times that of a sample."""


TABLES = ("items", "sums", "means")


def step(model: Model, optimizer: torch.optim.Optimizer, ids: Tensor) -> None:
    optimizer.zero_grad()
    model.loss(ids).backward()
    optimizer.step()


def ids_at(number: int) -> Tensor:
    return torch.randint(12, (5, 2), generator=torch.Generator().manual_seed(number))


def wrapped(rule: str = "sgd", sparse: bool = False, **more: Any) -> tuple[Model, torch.optim.Optimizer]:
    model = Model(sparse)
    optimizer = RULES[rule](model.parameters())
    knobs = {"reclassify_every": 2, "sample_ratio": 1.0, "hysteresis": 0.0}
    adaptive_rec.wrap(model, budget="512B", optimizer=optimizer, knobs=knobs, **more)
    return model, optimizer


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    states = [part for _, one in sorted(optimizer.state_dict()["state"].items()) for part in one.values()]
    return [*(value.clone() for value in model.state_dict().values()), *(torch.as_tensor(part).clone() for part in states)]


def same(ones: list[Tensor], others: list[Tensor]) -> bool:
    return len(ones) == len(others) and all(map(torch.equal, ones, others))


@grid(always, in_turn, rule=list(RULES), large=["items", "sums", "means", "weighted"])
def test_the_step_ends_before_anything_is_updated_and_can_be_made_up(rule: str, large: str) -> None:
    """Rows, optimizer state and dense layers stay. A loop that goes on is one in which the step was never tried."""
    model, optimizer = wrapped(rule)
    other, others_optimizer = wrapped(rule)
    for number in range(3):
        step(model, optimizer, ids_at(number))
        step(other, others_optimizer, ids_at(number))
    before = everything(model, optimizer)
    everything(other, others_optimizer)  # what is read makes the steps that it missed
    other.loss(TWICE)
    optimizer.zero_grad()
    model.loss(TWICE, large).backward()
    with pytest.raises(TrainingError, match=f"{REFUSED}, those of row 3 of table {large} in step 4 do not; no row was updated"):
        optimizer.step()
    assert same(everything(model, optimizer), before)
    everything(other, others_optimizer)
    for number in range(3, 6):
        step(model, optimizer, ids_at(number))
        step(other, others_optimizer, ids_at(number))
    assert same(everything(model, optimizer), everything(other, others_optimizer))


@pytest.mark.parametrize("prefetch", [True, False])
def test_several_backward_passes_are_summed(prefetch: bool) -> None:
    """Each pass has a gradient that alone could be used; in a loop that looks ahead the next item trains as ever."""
    model, optimizer = wrapped()
    once = torch.tensor([[3, 4]])
    items = [once, ids_at(1)]
    runtime = model.items.weight.runtime  # type: ignore[union-attr]
    loop = runtime.prefetch(items, sparse=lambda ids: dict.fromkeys(TABLES, ids)) if prefetch else items
    for number, ids in enumerate(loop):
        before = everything(model, optimizer)
        optimizer.zero_grad()
        for _ in range(2):
            model.loss(ids, "" if number else "items").backward()
        if number:
            optimizer.step()
            assert not same(everything(model, optimizer), before)
        else:
            with pytest.raises(TrainingError, match=REFUSED):
                optimizer.step()
            assert same(everything(model, optimizer), before)


@pytest.mark.parametrize("rule", NAMED_RULES)
def test_a_rule_by_name_ends_the_backward_pass(rule: str) -> None:
    model = Model()
    adaptive_rec.wrap(model, budget="512B", optimizer=rule, lr=0.1)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(TrainingError, match="row 3 of table weighted"):
        model.loss(TWICE, "weighted").backward()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model.loss(ids_at(0)).backward()


@pytest.mark.parametrize("factor", [1e160, 1e300])
@pytest.mark.parametrize("large", ["items", "sums", "means", "weighted"])
def test_large_gradients_with_finite_sums_train_as_in_torch(large: str, factor: float) -> None:
    plain, (model, optimizer) = Model(), wrapped()
    others = RULES["sgd"](plain.parameters())
    for one, rule in ((model, optimizer), (plain, others)):
        one.loss(TWICE, large, factor).backward()
        rule.step()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-14, atol=0)


def test_a_vector_of_no_row_may_have_any_gradient() -> None:
    """An empty bag and padding, as in torch: no row gets that gradient."""
    plain, ours = (nn.ModuleDict({"a": nn.EmbeddingBag(5, 2, mode="sum", padding_idx=1)}) for _ in range(2))
    ours.load_state_dict(plain.state_dict())
    rules = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (plain, ours)]
    adaptive_rec.wrap(ours, budget="64B", optimizer=rules[1])
    for one, rule in zip((plain, ours), rules, strict=True):
        found = one["a"](torch.tensor([1, 2, 3]), torch.tensor([0, 1, 3]))
        (found * torch.tensor([[torch.nan], [1.0], [torch.inf]])).nan_to_num(1.0, 1.0, 1.0).sum().backward()
        rule.step()
    assert torch.equal(ours.state_dict()["a.weight"], plain.state_dict()["a.weight"])


def scaled(model: Model, optimizer: torch.optim.Optimizer, scaler: Any, passes: int, clips: bool) -> list[Any]:
    found = []
    for number in range(8):
        large = ["items", "", "sums", "means", "", "weighted", "", ""][number]
        optimizer.zero_grad()
        for _ in range(passes):
            scaler.scale(model.loss(torch.tensor([[3, 4]]) if passes > 1 else TWICE, large, LARGE / 4)).backward()
        if clips:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        found.append((scaler.get_scale(), {name: value.clone() for name, value in model.state_dict().items()}))
    return found


@grid(always, in_turn, rule=["sgd", "momentum", "adamw"], passes=[1, 2], clips=[True, False])
def test_a_scaler_leaves_out_the_steps_that_it_leaves_out_in_torch(rule: str, passes: int, clips: bool) -> None:
    plain = Model()
    runs = [(plain, RULES[rule](plain.parameters())), wrapped(rule)]
    scales = [torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2) for _ in runs]
    theirs, ours = (scaled(*run, scale, passes, clips) for run, scale in zip(runs, scales, strict=True))
    assert [scale for scale, _ in ours] == [scale for scale, _ in theirs]
    assert len({scale for scale, _ in theirs}) > 1
    for (_, mine), (_, others) in zip(ours, theirs, strict=True):
        for name, value in others.items():
            torch.testing.assert_close(mine[name], value, rtol=1e-11, atol=1e-12)


def test_clipping_by_the_norm_does_not_hide_an_infinite_sum() -> None:
    """The norm is infinite, so that each gradient is multiplied by 0; torch's row is NaN then."""
    plain, (model, optimizer) = Model(), wrapped()
    others = RULES["sgd"](plain.parameters())
    for one in (plain, model):
        one.loss(TWICE, "sums").backward()
        assert nn.utils.clip_grad_norm_(one.parameters(), 1.0).isinf()
    others.step()
    assert plain.sums.weight[3].isnan().all()
    before = everything(model, optimizer)
    with pytest.raises(TrainingError, match="row 3 of table sums in step 1"):
        optimizer.step()
    assert same(everything(model, optimizer), before)


def test_a_scaler_leaves_a_fused_step_out_too() -> None:
    plain = Model()
    runs = [plain, Model()]
    rules = [torch.optim.SGD(one.parameters(), lr=0.1, fused=True) for one in runs]
    adaptive_rec.wrap(runs[1], budget="512B", optimizer=rules[1])
    theirs, ours = (
        scaled(one, rule, torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2), 1, False)
        for one, rule in zip(runs, rules, strict=True)
    )
    assert [scale for scale, _ in ours] == [scale for scale, _ in theirs]
    for name, value in theirs[-1][1].items():
        torch.testing.assert_close(ours[-1][1][name], value, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "in_backward"),
    [(AdaptiveEmbeddingBagCollection, True), (AdaptiveEmbeddingCollection, True), (AdaptiveEmbeddingCollection, False)],
)
def test_collections(kind: Any, in_backward: bool) -> None:
    tables = [EmbeddingBagConfig("t_a", 4, 9, ["a", "b"]), EmbeddingBagConfig("t_c", 4, 9, ["c"])]
    how = {"optimizer": "sgd", "lr": 0.1} if in_backward else {"optimizer": torch.optim.SGD}
    ours = kind(tables, budget="64B", **how)
    optimizer = None if in_backward else torch.optim.SGD(ours.parameters(), lr=0.1)
    before = copy.deepcopy(ours.state_dict())
    found = ours(Jagged(["a", "b", "c"], torch.tensor([1, 1, 2]), torch.tensor([1, 1, 1])))
    vectors = [found[name].values() if kind is AdaptiveEmbeddingCollection else found[name] for name in "abc"]
    loss = sum(((part * LARGE).sum() for part in vectors), start=torch.zeros(()))

    def train() -> None:
        loss.backward()  # where a collection of bags updates rows
        assert optimizer is not None
        optimizer.step()

    with pytest.raises(TrainingError, match=f"{REFUSED}, those of row 1 of table t_a"):
        train()
    assert all(torch.equal(value, before[name]) for name, value in ours.state_dict().items())


def test_raw_ids() -> None:
    model = Model()
    optimizer = RULES["sgd"](model.parameters())
    keys = dict.fromkeys(["items", "sums", "means", "weighted"])
    adaptive_rec.wrap(model, budget="512B", optimizer=optimizer, ids="raw", keys=keys)
    step(model, optimizer, torch.tensor([[10**13, 7], [10**12, 7]]))
    before = everything(model, optimizer)
    model.loss(torch.full((2, 2), 10**13), "sums").backward()
    with pytest.raises(TrainingError, match=REFUSED):
        optimizer.step()
    assert same(everything(model, optimizer), before)


@pytest.mark.usefixtures("small_segments")
def test_rows_on_a_disk(tmp_path: Path) -> None:
    model, optimizer = wrapped(host_memory="4KiB", disk=tmp_path / "rows")
    step(model, optimizer, ids_at(0))
    before = everything(model, optimizer)
    model.loss(TWICE, "means").backward()
    with pytest.raises(TrainingError, match=REFUSED):
        optimizer.step()
    assert same(everything(model, optimizer), before)
    step(model, optimizer, ids_at(1))


@pytest.mark.usefixtures("_device")
@pytest.mark.parametrize("prefetch", [True, False])
def test_rows_that_travel_to_a_device(prefetch: bool) -> None:
    model, optimizer = wrapped()
    runtime = model.items.weight.runtime  # type: ignore[union-attr]
    items = [ids_at(0), TWICE, ids_at(1)]
    loop = runtime.prefetch(items, sparse=lambda ids: dict.fromkeys(TABLES, ids)) if prefetch else items
    for ids in loop:
        before = everything(model, optimizer)
        if ids is not TWICE:
            step(model, optimizer, ids)
            continue
        optimizer.zero_grad()
        model.loss(TWICE, "sums").backward()
        with pytest.raises(TrainingError, match=REFUSED):
            optimizer.step()
        assert same(everything(model, optimizer), before)


@pytest.mark.usefixtures("_device")
@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize("rule", ["sgd", "adagrad"])
def test_on_a_device_that_no_step_waits_for_rows_stay_and_the_error_comes_later(
    rule: str, prefetch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, by the made-up device: the steps before and after are those of a loop without the faulty one."""
    monkeypatch.setattr(embedding_runtime, "sum_check", LateSums)
    loops = [wrapped(rule) for _ in range(2)]
    for model, _ in loops:
        with torch.no_grad():
            model.dense.weight.zero_()  # dense layers make the faulty step: they are torch's
    for number, (model, optimizer) in enumerate(loops):
        runtime = model.items.weight.runtime  # type: ignore[union-attr]
        items = [ids_at(0), ids_at(1), *([] if number else [TWICE]), ids_at(2), ids_at(3)]
        for ids in runtime.prefetch(items, sparse=lambda ids: dict.fromkeys(TABLES, ids)) if prefetch else items:
            model.dense.requires_grad_(False)
            optimizer.zero_grad()
            model.loss(ids, "means" if ids is TWICE else "").backward()
            optimizer.step()
    ours, others = (
        [model.items.weight.runtime.store.contents.export(table) for table in range(4)]  # type: ignore[union-attr]
        for model, _ in loops
    )
    for mine, theirs in zip(ours, others, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert (one == other).all()
    model, optimizer = loops[0]
    with pytest.raises(TrainingError, match="those of step 3 are not; such steps updated no row"):
        model.state_dict()
    model.state_dict()  # it is said once
    model.loss(TWICE, "means").backward()
    with pytest.raises(TrainingError, match="those of step 6 are not"):  # noqa: PT012 - it comes with one of these
        for number in range(2 * LATE_STEPS + 2):
            optimizer.step()
            optimizer.zero_grad()
            model.loss(ids_at(number)).backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_other_types(dtype: torch.dtype) -> None:
    """Gradients of rows of 16 bits are summed in 32: what is finite there trains, as those of float16 are here."""
    model = nn.ModuleDict({"t": nn.Embedding(9, 4, dtype=dtype)})
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    adaptive_rec.wrap(model, budget="64B", optimizer=optimizer)
    before = model["t"].weight.detach().clone()
    (model["t"](torch.tensor([1, 1])) * (0.9 * torch.finfo(dtype).max)).sum().backward()
    if dtype == torch.float16:
        optimizer.step()
        assert model["t"].weight[1].isfinite().all()
        return
    with pytest.raises(TrainingError, match="row 1 of table t in step 1"):
        optimizer.step()
    assert torch.equal(model["t"].weight.detach(), before)


def test_runtimes_that_one_optimizer_steps_update_together_or_not_at_all() -> None:
    parts = nn.ModuleDict({name: nn.ModuleDict({"t": nn.Embedding(9, 4)}) for name in "ab"})
    optimizer = torch.optim.SGD(parts.parameters(), lr=0.1)
    for part in parts.values():
        adaptive_rec.wrap(part, budget="64B", optimizer=optimizer)
    before = copy.deepcopy(parts.state_dict())
    loss = parts["a"]["t"](torch.tensor([2])).sum()
    (loss + (parts["b"]["t"](torch.tensor([1, 1])) * LARGE).sum()).backward()
    with pytest.raises(TrainingError, match="row 1 of table t in step 1"):
        optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in parts.state_dict().items())


def test_a_scaler_makes_a_step_whose_infinite_vectors_are_of_no_row() -> None:
    """An empty bag's vector; torch 2.13 has a gradient of zeros then, and momentum moves the rows."""
    found = []
    for wrapped in (False, True):
        torch.manual_seed(0)
        model = nn.ModuleDict({"t": nn.EmbeddingBag(3, 2, mode="sum")})
        rule = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if wrapped:
            adaptive_rec.wrap(model, budget=0, optimizer=rule)
        scale = torch.amp.GradScaler("cpu", init_scale=1.0)
        for ids, offsets, factor in (([0, 1], [0, 1], 1.0), ([], [0], float("inf"))):
            rule.zero_grad()
            vectors = model["t"](torch.tensor(ids, dtype=torch.long), torch.tensor(offsets))
            scale.scale(vectors.sum() * factor).backward()
            scale.step(rule)
            scale.update()
        found.append(model["t"].weight.detach().clone())
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-11)


def test_an_optimizer_whose_first_step_was_refused_has_no_state() -> None:
    """As in torch: by it ``get_state_dict`` sees whether states are to be made, for dense layers too."""
    model, other = Model(), Model()
    optimizer, plain = RULES["adam"](model.parameters()), RULES["adam"](other.parameters())
    adaptive_rec.wrap(model, budget="1KiB", optimizer=optimizer)
    model.loss(TWICE, "items").backward()
    with pytest.raises(TrainingError, match=REFUSED):
        optimizer.step()
    assert not optimizer.state
    for each, rule in ((model, optimizer), (other, plain)):
        rule.zero_grad()
        get_state_dict(each, rule)
        each.loss(TWICE).backward()
        rule.step()
    steps = [{int(one["step"]) for one in each.state_dict()["state"].values()} for each in (optimizer, plain)]
    assert steps == [{2}, {2}]
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().clone(), theirs.detach(), rtol=0, atol=1e-11)

"""A weight in two tiers reads and writes as an ordinary parameter, and copies of it are ordinary ones."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import adaptive_rec
from adaptive_rec.errors import AdaptiveRecError
from adaptive_rec.modules.tensors.weight import TieredWeight

from .cases import failures
from .training import QUICK_WINDOWS, wrapped

ROWS, DIM = 40, 6
TIERS = {"cold": {"budget": 0}, "some hot": {"budget": 1500}, "hot": {"budget": "1MiB"}}


def modules(tier: str, **more: Any) -> tuple[nn.Embedding, nn.Embedding]:
    """Torch's module, and the same with rows in some tier: it has made a few steps, so that rows are hot."""
    torch.manual_seed(1)
    theirs = nn.Embedding(ROWS, DIM, **more)
    holder = nn.ModuleDict({"table": copy.deepcopy(theirs)})
    optimizers = [torch.optim.Adagrad(one.parameters(), lr=0.1) for one in (theirs, holder)]
    wrapped(holder, optimizers[1], **TIERS[tier], reclassify_every=1)
    for number in range(4):
        ids = torch.randint(ROWS, (5, 3), generator=torch.Generator().manual_seed(number))
        for one, optimizer in zip((theirs, holder["table"]), optimizers, strict=True):
            optimizer.zero_grad()
            one(ids).square().sum().backward()
            optimizer.step()
    assert (holder["table"].weight.runtime.stats().hot_rows > 0) == (tier != "cold")
    return theirs, holder["table"]


each_tier = pytest.mark.parametrize("tier", TIERS)
READS: dict[str, Callable[[Tensor], Any]] = {
    "whole": lambda w: w * 1,
    "a row": lambda w: w[3],
    "the last row": lambda w: w[-1],
    "rows": lambda w: w[torch.tensor([3, 3, 7])],
    "rows in two dimensions": lambda w: w[torch.tensor([[3, 0], [39, -1]])],
    "a list": lambda w: w[[1, 2, 5]],
    "an array": lambda w: w[np.array([4, 4])],
    "a slice": lambda w: w[5:9],
    "a slice with steps": lambda w: w[5:30:7],
    "all rows by a slice": lambda w: w[:],
    "a column": lambda w: w[:, 2],
    "a value": lambda w: w[3, 2],
    "parts of rows": lambda w: w[torch.tensor([2, 4]), 1:3],
    "pairs": lambda w: w[torch.tensor([2, 4]), torch.tensor([1, 0])],
    "a mask": lambda w: w[torch.arange(ROWS) % 3 == 0],
    "a mask of values": lambda w: w[w > 0.5],
    "an ellipsis": lambda w: w[..., 0],
    "a row by a tensor": lambda w: w[torch.tensor(3)],
    "rows and columns by lists": lambda w: w[[1, 2], [0, 3]],
    "a list of lists": lambda w: w[[[1, 2], [3, 0]]],
    "rows and a column by a truth": lambda w: w[torch.tensor([1, 2]), True],
    "index_select by name": lambda w: torch.index_select(input=w, dim=0, index=torch.tensor([1, 8])),
    "a row of a slice": lambda w: w[2:9][3] * 2,
    "unbound": lambda w: torch.stack(w.unbind()[3:5]),
    "ids under vmap": lambda w: torch.vmap(lambda ids: F.embedding(ids, w))(torch.tensor([[1, 2], [3, 3]])),
    "a new dimension": lambda w: w[None, 2],
    "no rows": lambda w: w[torch.empty(0, dtype=torch.int64)],
    "index_select": lambda w: w.index_select(0, torch.tensor([1, 8])),
    "torch.index_select": lambda w: torch.index_select(w, 0, torch.tensor([1, 8])),
    "columns selected": lambda w: w.index_select(1, torch.tensor([1, 2])),
    "gather": lambda w: w.gather(0, torch.tensor([[1, 2, 3, 4, 5, 6]])),
    "the norm": lambda w: w.norm(),
    "a product": lambda w: torch.ones(2, DIM) @ w.T,
    "linear": lambda w: F.linear(torch.ones(2, DIM), w),
    "concatenation": lambda w: torch.cat([w, w]),
    "stacked": lambda w: torch.stack([w[0], w[1]]),
    "a view": lambda w: w.view(-1)[7],
    "chunks": lambda w: w.chunk(2)[1],
    "iteration": lambda w: next(iter(w)),
    "embedding": lambda w: F.embedding(torch.tensor([[1, 2], [2, 2]]), w),
    "embedding of one id": lambda w: F.embedding(torch.tensor(5), w),
    "embedding with padding": lambda w: F.embedding(torch.tensor([1, 2, 1]), w, padding_idx=2),
    "embedding with padding from the end": lambda w: F.embedding(torch.tensor([39, 2, 1]), w, padding_idx=-1),
    "embedding of no ids": lambda w: F.embedding(torch.empty(0, 3, dtype=torch.int64), w),
    "int32 ids": lambda w: F.embedding(torch.tensor([1, 2], dtype=torch.int32), w),
    "bags": lambda w: F.embedding_bag(torch.tensor([[1, 2], [2, 2]]), w, mode="sum"),
    "bags with padding from the end": lambda w: F.embedding_bag(
        torch.tensor([[1, ROWS - 1], [2, 2]]), w, mode="sum", padding_idx=-1
    ),
    "mean bags": lambda w: F.embedding_bag(torch.tensor([1, 2, 3]), w, torch.tensor([0, 1])),
    "another type": lambda w: w.to(torch.float32).sum(),
    "detached": lambda w: w.detach() + 1,
    "data": lambda w: w.data + 1,
}


def assert_same_read(theirs: nn.Embedding, ours: nn.Embedding, read: str) -> None:
    found = [READS[read](one.weight) for one in (theirs, ours)]
    torch.testing.assert_close(*found, rtol=1e-13, atol=0)
    assert found[0].requires_grad == found[1].requires_grad
    with torch.no_grad():
        torch.testing.assert_close(*(READS[read](one.weight) for one in (theirs, ours)), rtol=1e-13, atol=0)
    for one, value in zip((theirs, ours), found, strict=True):
        one.zero_grad()
        if value.requires_grad:
            value.square().sum().backward()
    if found[0].requires_grad:
        assert ours.weight.grad is not None
        torch.testing.assert_close(ours.weight.grad + torch.zeros(ROWS, DIM), theirs.weight.grad, rtol=1e-12, atol=0)
    assert torch.equal(theirs.weight.detach(), ours.weight.detach() + 0), "reading changes nothing"


@each_tier
def test_reads_and_their_gradients_are_those_of_a_parameter(tier: str) -> None:
    theirs, ours = modules(tier)
    assert failures(READS, lambda read: assert_same_read(theirs, ours, read)) == {}


@pytest.mark.slow
@each_tier
@pytest.mark.parametrize("read", READS)
def test_a_read_before_any_other_is_that_of_a_parameter(read: str, tier: str) -> None:
    assert_same_read(*modules(tier), read)


def put(weight: Tensor, index: Any, value: Any) -> None:
    weight[index] = value


WRITES: dict[str, Callable[[Tensor], Any]] = {
    "normal_": lambda w: nn.init.normal_(w, generator=torch.Generator().manual_seed(1)),
    "uniform_": lambda w: w.uniform_(-1, 1, generator=torch.Generator().manual_seed(1)),
    "xavier": lambda w: nn.init.xavier_uniform_(w, generator=torch.Generator().manual_seed(1)),
    "zero_": lambda w: w.zero_(),
    "times": lambda w: w.mul_(2),
    "plus": lambda w: w.add_(torch.ones(DIM)),
    "clamped": lambda w: w.clamp_(-0.1, 0.1),
    "copy_": lambda w: w.copy_(torch.arange(ROWS * DIM).view(ROWS, DIM)),
    "data.copy_": lambda w: w.data.copy_(torch.arange(ROWS * DIM).view(ROWS, DIM)),
    "data.fill_": lambda w: w.data.fill_(3.0),
    "a row": lambda w: put(w, 3, 0.5),
    "a row from the end": lambda w: put(w, -1, torch.ones(DIM)),
    "rows": lambda w: put(w, torch.tensor([3, 8]), torch.rand(2, DIM, generator=torch.Generator().manual_seed(1))),
    "a slice": lambda w: put(w, slice(2, 9), 1.0),
    "no rows": lambda w: put(w, torch.zeros(0, dtype=torch.int64), 1.0),
    "no rows plus": lambda w: put(w, torch.zeros(0, dtype=torch.int64), w[torch.zeros(0, dtype=torch.int64)] + 1.0),
    "a slice of no rows": lambda w: put(w, slice(3, 3), 1.0),
    "a mask of no rows": lambda w: put(w, torch.zeros(ROWS, dtype=torch.bool), torch.ones(0, DIM)),
    "a column": lambda w: put(w, (slice(None), 1), 1.0),
    "values of rows": lambda w: put(w, (torch.tensor([1, 2]), slice(0, 2)), 7.0),
    "a mask": lambda w: put(w, w > 0, 0.25),
    "all": lambda w: put(w, slice(None), 0.25),
    "a row filled": lambda w: w[4].fill_(9.0),
    "a row of data": lambda w: w.data[4].zero_(),
    "rows multiplied": lambda w: w[2:5].mul_(3.0),
    "rows plus": lambda w: w.data[2:5].__iadd__(3.0),
    "rows by their numbers, a copy": lambda w: w[torch.tensor([3, 8])].zero_(),
    "rows by a list, a copy": lambda w: w[[3, 8]].zero_(),
    "parts of a row": lambda w: w[3, 1:4].zero_(),
    "parts of rows": lambda w: w[2:9, 1].add_(5.0),
    "an item of rows": lambda w: put(w[2:5], 1, 3.0),
    "lerp_": lambda w: w.lerp_(torch.ones(ROWS, DIM), 0.25),
    "a list, times": lambda w: torch._foreach_mul_([w, torch.ones(2)], 0.5),
    "a list, copied": lambda w: torch._foreach_copy_([w], [torch.ones(ROWS, DIM)]),
    "a list, zero": lambda w: torch._foreach_zero_([w]),
    "a list, lerp": lambda w: torch._foreach_lerp_([w.data], [torch.ones(ROWS, DIM)], 0.25),
    "a list of parts that overlap": lambda w: torch._foreach_mul_([w[3], w[2:5], w[:, 1]], 3.0),
    "out=": lambda w: torch.mul(w, 0.5, out=w),
    "out= of a row": lambda w: torch.add(w[1], w[2], out=w[0]),
    "out= of other tensors": lambda w: torch.add(torch.ones(ROWS, DIM), 1.0, out=w.data),
    "out= of rows selected": lambda w: torch.index_select(torch.ones(2, DIM), 0, torch.tensor([0, 1]), out=w[4:6]),
    "orthogonal_": lambda w: nn.init.orthogonal_(w, generator=torch.Generator().manual_seed(1)),
    "eye_": nn.init.eye_,
    "fill_diagonal_": lambda w: w.fill_diagonal_(1.0),
    "all by a slice, times": lambda w: w[:].mul_(2.0),
    "all by the number of rows": lambda w: w[0:ROWS].mul_(2.0),
    "an ellipsis": lambda w: w[..., 0].zero_(),
    "a column, zero": lambda w: w[:, 0].zero_(),
    "a row by a tensor": lambda w: w[torch.tensor(3)].zero_(),
    "a row of a slice": lambda w: w[0:3][1].zero_(),
    "the transpose": lambda w: w.T[1].fill_(3.0),
    "flat": lambda w: w.view(-1)[7:9].zero_(),
    "flattened": lambda w: w.flatten().mul_(2.0),
    "reshaped": lambda w: w.reshape(ROWS // 2, -1)[3].zero_(),
    "unbound": lambda w: w.unbind()[3].zero_(),
    "columns unbound": lambda w: w.unbind(1)[3].zero_(),
    "split": lambda w: w.split(7)[2].zero_(),
    "chunks": lambda w: w.chunk(3, 1)[1].zero_(),
    "iteration": lambda w: [row.zero_() for row in w if row[0] > 0],
    "narrow": lambda w: w.narrow(0, 2, 5).add_(1.0),
    "diagonal": lambda w: w.diagonal().zero_(),
    "as_strided": lambda w: w.as_strided((3,), (7,), 2).zero_(),
    "a new dimension": lambda w: w[None, 2:4].zero_(),
    "bits": lambda w: w.view(torch.int64)[2].zero_(),
    "one row from another": lambda w: w[0].copy_(w[1]),
    "rows shifted": lambda w: w[0:5].copy_(w[1:6].clone()),
    "masked_fill_": lambda w: w[3:8].masked_fill_(w[3:8] > 0, 1.0),
    "pairs of a list": lambda w: put(w, ([1, 2], [0, 3]), 5.0),
    "a list of lists": lambda w: put(w, [[1, 2], [3, 0]], 5.0),
    "clamped above by out=": lambda w: torch.clamp(w[2:9], max=0.0, out=w[2:9]),
    "in place operators": lambda w: w[5:7].__imul__(3.0),
    "averages": lambda w: torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)([w.detach()], [torch.ones(ROWS, DIM)], 1),
    "index_fill_": lambda w: w.index_fill_(0, torch.tensor([1, 2]), 3.0),
    "index_copy_": lambda w: w.index_copy_(0, torch.tensor([1, 2]), torch.ones(2, DIM)),
}


def assert_same_write(theirs: nn.Embedding, ours: nn.Embedding, write: str) -> None:
    hot = ours.weight.runtime.stats().hot_rows
    with torch.no_grad():
        for one in (theirs, ours):
            WRITES[write](one.weight)
    assert torch.equal(theirs.weight.detach(), ours.weight.detach() + 0)
    assert ours.weight.runtime.stats().hot_rows == hot
    torch.testing.assert_close(ours(torch.arange(ROWS)), theirs(torch.arange(ROWS)), rtol=0, atol=0)


@each_tier
def test_writes_reach_the_rows_and_training_goes_on_from_them(tier: str) -> None:
    theirs, ours = modules(tier)
    first = theirs.weight.detach().clone()

    def check(write: str) -> None:
        with torch.no_grad():
            for one in (theirs, ours):
                one.weight.copy_(first)
        assert_same_write(theirs, ours, write)

    assert failures(WRITES, check) == {}


@pytest.mark.slow
@each_tier
@pytest.mark.parametrize("write", WRITES)
def test_a_write_before_any_other_reaches_the_rows(write: str, tier: str) -> None:
    assert_same_write(*modules(tier), write)


def test_a_write_under_autograd_is_refused_as_in_torch() -> None:
    for one in modules("some hot"):
        before = one.weight.detach().clone()
        for write in (
            lambda w: w.zero_(), lambda w: put(w, 3, 1.0), lambda w: w[3].zero_(), lambda w: w[2:5].mul_(2.0),
            lambda w: w.T.zero_(),
            lambda w: w[2:5][1].zero_(), lambda w: w[:, 1].zero_(), lambda w: w.view(-1).zero_(), lambda w: put(w[2:5], 1, 0.0),
        ):  # fmt: skip
            with pytest.raises(RuntimeError, match="leaf"):
                write(one.weight)
        assert torch.equal(one.weight.detach() + 0, before)


def test_its_properties_are_those_of_a_parameter() -> None:
    theirs, ours = modules("some hot")
    weight = ours.weight
    assert isinstance(weight, TieredWeight)
    assert isinstance(weight, nn.Parameter)
    assert (weight.shape, weight.dtype, weight.device, weight.is_leaf, weight.requires_grad, weight.dim()) == (
        theirs.weight.shape, theirs.weight.dtype, theirs.weight.device, True, True, 2,
    )  # fmt: skip
    assert (weight.numel(), len(weight), weight.element_size()) == (ROWS * DIM, ROWS, 8)
    assert "table: 40 x 6" in repr(weight)
    assert sum(one.numel() for one in ours.parameters()) == ROWS * DIM
    assert np.array_equal(weight.detach().numpy(), theirs.weight.detach().numpy())
    assert weight.tolist() == theirs.weight.tolist()
    assert torch.zeros_like(weight).shape == (ROWS, DIM)
    with pytest.raises(RuntimeError, match="not allocated"):  # it has no memory of its own
        weight.untyped_storage()[0]
    nn.utils.parameters_to_vector(ours.parameters())


# Modules -------------------------------------------------------------------------------------------------------------


def plain_parts(model: nn.Module) -> bool:
    parts = all(type(one).__module__.startswith("torch.") for one in model.modules())
    return parts and all(type(one) is nn.Parameter for one in model.parameters())


def through_save(model: nn.Module) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)  # type: ignore[no-any-return]


@pytest.mark.parametrize("how", [copy.deepcopy, through_save], ids=["deepcopy", "torch.save"])
def test_a_copy_is_an_ordinary_module(how: Callable[[nn.Module], nn.Module]) -> None:
    theirs, ours = modules("some hot", padding_idx=3)
    twin = how(ours)
    assert plain_parts(twin)
    assert (twin.padding_idx, repr(twin)) == (3, repr(theirs))
    torch.testing.assert_close(twin(torch.arange(ROWS)), theirs(torch.arange(ROWS)), rtol=0, atol=0)
    with torch.no_grad():
        ours.weight.zero_()
    assert twin.weight.abs().sum() > 0


def test_an_average_of_a_wrapped_model_is_kept_as_of_a_plain_one() -> None:
    averages = []
    for adaptive in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(ROWS, DIM), nn.Flatten(), nn.Linear(3 * DIM, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if adaptive:
            wrapped(model, optimizer, budget=1500)
        average = torch.optim.swa_utils.AveragedModel(model, avg_fn=lambda mean, one, _: 0.9 * mean + 0.1 * one)
        for number in range(12):
            ids = torch.randint(ROWS, (8, 3), generator=torch.Generator().manual_seed(number))
            optimizer.zero_grad()
            model(ids).square().mean().backward()
            optimizer.step()
            average.update_parameters(model)
        averages.append(average.state_dict())
    for name, value in averages[0].items():
        torch.testing.assert_close(averages[1][name], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "change", [lambda m: m.half(), lambda m: m.float(), lambda m: m.to(torch.bfloat16), lambda m: m.to("meta")]
)
def test_another_type_or_device_is_refused_by_name(change: Callable[[nn.Module], Any]) -> None:
    _, ours = modules("some hot")
    before = ours.weight.detach().clone()
    with pytest.raises(AdaptiveRecError, match="weight of AdaptiveEmbedding must"):
        change(nn.ModuleDict({"part": ours}))
    assert torch.equal(ours.weight.detach() + 0, before)
    assert ours.double().to("cpu").cpu() is ours


def test_a_tied_layer_moves_and_saves_with_its_model() -> None:
    model = nn.ModuleDict({"table": nn.Embedding(ROWS, DIM), "out": nn.Linear(DIM, ROWS, bias=False)})
    model["out"].weight = model["table"].weight
    before = model["table"].weight.detach().clone()
    adaptive_rec.wrap(model, budget="1KiB", optimizer=torch.optim.SGD(model.parameters(), lr=0.1), knobs=QUICK_WINDOWS)
    assert model["out"].weight is model["table"].weight
    assert isinstance(model["out"], nn.Linear)
    state = model.double().state_dict()
    assert {name: type(value) for name, value in state.items()} == {"table.weight": Tensor, "out.weight": Tensor}
    assert all(torch.equal(value, before) for value in state.values())
    assert len(list(model.parameters())) == 1
    twin = copy.deepcopy(model)
    assert plain_parts(twin)
    assert twin["out"].weight is twin["table"].weight
    state["table.weight"] = state["out.weight"] = torch.ones(ROWS, DIM)
    model.load_state_dict(state)
    assert model["table"](torch.tensor([3])).tolist() == [[1.0] * DIM]
    with pytest.raises(AdaptiveRecError, match="assign"):
        model.load_state_dict(state, assign=True)


@pytest.mark.parametrize("value", [0, 0.5])
@pytest.mark.parametrize("dtype", [None, torch.float64, torch.bool, torch.bfloat16])
def test_a_tensor_of_one_value_like_a_weight_is_an_ordinary_one(value: float, dtype: torch.dtype | None) -> None:
    theirs, ours = modules("cold")
    made = [torch.full_like(one.weight, value, dtype=dtype) for one in (theirs, ours)]
    torch.testing.assert_close(made[1], made[0], rtol=0, atol=0)
    made[1][2] = 1
    assert made[1].sum() == made[0].sum() + DIM * (1 - made[0][0, 0].to(made[0].sum().dtype))

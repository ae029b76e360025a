"""Views and aliases of a weight in tiers, and what asks for its memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adaptive_rec.errors import AdaptiveRecError

from .test_weight import DIM, READS, ROWS, modules, put
from .training import wrapped


def test_views_see_the_weight_as_it_is() -> None:
    for one in modules("some hot"):
        weight = one.weight
        with torch.no_grad():
            views = [weight.detach(), weight.data[3], weight.T, weight.view(-1), weight[2:5][1]]
            weight.fill_(2.0)
            assert all(bool((view == 2).all()) for view in views)
            views[4].fill_(5.0)
            assert views[1].tolist() == [5.0] * DIM
        assert [view.stride() for view in views] == [(DIM, 1), (1,), (1, DIM), (1,), (1,)]
        assert [view.storage_offset() for view in views] == [0, 3 * DIM, 0, 0, 3 * DIM]


def test_a_view_of_a_few_rows_reads_only_these(monkeypatch: pytest.MonkeyPatch) -> None:
    _, ours = modules("some hot")
    monkeypatch.setattr(type(ours.weight.runtime), "table", None)
    with torch.no_grad():
        ours.weight[3:5].mul_(2.0)
        assert ours.weight.unbind()[3].tolist() == ours.weight[3].tolist()


def test_the_memory_of_a_weight_cannot_be_had() -> None:
    _, ours = modules("some hot")
    weight, before = ours.weight, ours.weight.detach().clone()
    with torch.no_grad():
        for ask in (
            torch.from_dlpack, np.from_dlpack, lambda w: w.data_ptr(), lambda w: w.share_memory_(),
            lambda w: torch.empty(0).set_(w), lambda w: w.set_(before),
            lambda w: w[1].data_ptr(), lambda w: torch.from_dlpack(w.T), lambda w: w[1].__setattr__("data", before[1]),
        ):  # fmt: skip
            with pytest.raises(AdaptiveRecError, match="table table.*no memory"):
                ask(weight.detach())
        for change in (lambda w: w.numpy().fill(0), lambda w: np.asarray(w[3]).fill(0), lambda w: put(w.T.numpy(), 0, 0)):
            with pytest.raises(ValueError, match="read-only"):
                change(weight.detach())
        for change in (lambda w: w.resize_(3, 3), lambda w: w.t_(), lambda w: torch.ones(3, out=w), lambda w: w[1].unsqueeze_(0)):
            with pytest.raises(NotImplementedError, match="table table must keep its shape"):
                change(weight.detach())
        for values in (torch.zeros(3, DIM), torch.zeros(ROWS, DIM, dtype=torch.float32)):
            with pytest.raises(AdaptiveRecError, match="table table must keep its shape and type"):
                weight.data = values
    np.array(weight.detach())[:] = 0
    assert torch.equal(weight.detach() + 0, before)


def test_a_mask_of_another_length_is_refused_as_in_torch() -> None:
    for one in modules("some hot"):
        for read in (lambda w: w[torch.ones(ROWS - 3).bool()], lambda w: put(w.data, torch.ones(ROWS + 1).bool(), 0.0)):
            with pytest.raises(IndexError, match="mask"):
                read(one.weight)


def test_an_assignment_to_data_leaves_those_who_had_it_their_values() -> None:
    """What averages of weights do around an evaluation: keep ``data``, set another one, and set the former one again."""
    ends = []
    for one in modules("some hot"):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        shadow, before = torch.full((ROWS, DIM), 0.5), one.weight.detach().clone()
        kept, row = one.weight.data, one.weight.data[3]
        one.weight.data = shadow
        assert torch.equal(kept + 0, before)
        assert torch.equal(row + 0, before[3])
        assert bool((one.weight == 0.5).all())
        assert torch.equal(F.embedding(torch.tensor([2, 3]), kept), before[2:4])
        assert torch.equal(kept[torch.tensor([2, 3])], before[2:4])
        kept[4] = 7.0
        kept[5].zero_()
        assert bool((one.weight == 0.5).all())
        one.weight.data = kept
        kept[6].fill_(9.0)  # it is the weight's again
        one.weight.data = one.weight.data
        ends.append(one.weight.detach().clone())
        other = one.weight.detach()
        other.data = torch.zeros(ROWS, DIM)
        assert not other.any()
        assert torch.equal(one.weight.detach() + 0, ends[-1])
        one(torch.arange(5)).sum().backward()
        optimizer.zero_grad()
    assert torch.equal(*ends)


def test_a_saved_weight_that_has_changed_since_is_an_error_as_in_torch() -> None:
    for one in modules("some hot"):
        for write in (lambda w: w[3].zero_(), lambda w: put(w, 3, 0.0), lambda w: torch._foreach_zero_([w])):
            loss = (torch.ones(2, DIM, requires_grad=True) @ one.weight.T).sum()
            with torch.no_grad():
                write(one.weight)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("read", [lambda w: w.square(), lambda w: torch.ones(2, DIM, requires_grad=True) @ w.T])
def test_a_step_counts_as_a_write_to_what_was_saved(read: Callable[[Tensor], Tensor], adaptive: bool) -> None:
    model = nn.ModuleDict({"table": nn.Embedding(ROWS, DIM)})
    table, optimizer = model["table"], torch.optim.Adagrad(model.parameters(), lr=0.1)
    if adaptive:
        wrapped(model, optimizer, budget=1500)
    loss = read(table.weight).sum()
    table(torch.arange(4)).sum().backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_reads_without_gradients(mode: Any) -> None:
    theirs, ours = modules("some hot")
    with mode():
        for name, read in READS.items():
            found = [read(one.weight) for one in (theirs, ours)]
            torch.testing.assert_close(found[1] + 0, found[0], rtol=1e-13, atol=0, msg=name)

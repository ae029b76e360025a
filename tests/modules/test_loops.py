"""Special training loops: failed and several passes, evaluations in between, activation checkpointing."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import adaptive_rec
from adaptive_rec.modules.loop import reading

from .cases import few_or_many_steps
from .training import CASES, RULES, Case, Loop, assert_moved, assert_same, data, plain

FEW, MANY = 20, 40
each_size = few_or_many_steps(FEW, MANY)


def both_ways(case: Case, rule: str, step: Any = None, steps: int = MANY, prefetch: bool = True, **options: Any) -> Any:
    theirs = Loop(case, rule, step=step).run(steps)
    ours = Loop(case, rule, options, prefetch=prefetch, step=step).run(steps)
    assert_same(ours, theirs)
    assert_moved(ours.runtime)
    return ours.runtime


@few_or_many_steps(FEW, MANY, rule=RULES)
def test_a_table_unused_in_some_steps(rule: str, steps: int) -> None:
    """In every third batch two tables are not looked up at all, and in every fifth all bags of one are empty."""

    class Skipping(CASES["dlrm"].make):  # type: ignore[misc, name-defined]
        def forward(self, dense: Tensor, bags: list[Any]) -> Tensor:
            x = self.bot_l(dense)
            pooled = [emb(*bag) if bag else torch.zeros_like(x) for emb, bag in zip(self.emb_l, bags, strict=True)]
            return self.top_l(self.interact(x, pooled)).squeeze(1)

    batches = list(data.clicks(steps, 32))
    for number, batch in enumerate(batches):
        if number % 3 == 0:
            batch.bags[0] = batch.bags[2] = None  # type: ignore[call-overload]
        if number % 5 == 0:
            batch.bags[1] = (batch.bags[1][0][:0], torch.zeros_like(batch.bags[1][1]))
    dlrm = CASES["dlrm"]
    case = Case(
        Skipping, lambda steps: iter(batches), dlrm.loss,
        lambda batch: {f"emb_l.{number}": bag for number, bag in enumerate(batch.bags) if bag},
    )  # fmt: skip
    both_ways(case, rule, steps=steps)


@few_or_many_steps(FEW, MANY, rule=RULES, prefetch=[True, False])
def test_two_backward_passes_are_two_updates(rule: str, prefetch: bool, steps: int) -> None:
    """Each over half of the batch; the second half reads what the first has written."""

    def step(model: nn.Module, batch: data.Views, loop: Loop) -> Tensor:
        total = torch.zeros(())
        for half in range(2):
            loss = loop.case.loss(model, half_of(batch, half)) / 2
            loss.backward()
            loop.sparse.step()
            loop.sparse.zero_grad()
            total += loss.detach()
        return total

    both_ways(CASES["two_tower"], rule, step, steps, prefetch)


def half_of(batch: data.Views, half: int) -> data.Views:
    size = len(batch.users) // 2
    part = slice(half * size, (half + 1) * size)
    ends = torch.cat([batch.offsets, torch.tensor([len(batch.history)])])
    first, last = int(ends[part.start]), int(ends[part.stop])
    return data.Views(batch.users[part], batch.history[first:last], batch.offsets[part] - first, batch.candidates[part])


@each_size
def test_two_losses_of_one_forward_with_the_graph_retained(steps: int) -> None:
    """Both passes go back through the same lookups, so rows are updated twice, from rows as they were at the forward."""

    def step(model: nn.Module, batch: data.Clicks, loop: Loop) -> Tensor:
        loss = loop.case.loss(model, batch)
        (loss / 3).backward(retain_graph=True)
        loop.sparse.step()
        loop.sparse.zero_grad()
        (loss * 2 / 3).backward()
        return loss

    both_ways(CASES["dlrm"], "adagrad", step, steps)


@each_size
def test_two_losses_in_one_pass_are_one_update(steps: int) -> None:
    def step(model: nn.Module, batch: data.Views, loop: Loop) -> Tensor:
        one, other = (loop.case.loss(model, half_of(batch, half)) for half in range(2))
        torch.autograd.backward([one, 2 * other])
        return one + other

    runtime = both_ways(CASES["two_tower"], "adagrad", step, steps)
    assert runtime.step_number == steps


@few_or_many_steps(FEW, MANY, mode=["no_grad", "inference_mode", "with gradients"])
def test_evaluation_between_steps_changes_nothing(mode: str, steps: int) -> None:
    others = list(data.clicks(steps, 32, seed=5))
    context = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "with gradients": torch.enable_grad}

    def step(model: nn.Module, batch: data.Clicks, loop: Loop) -> Tensor:
        if loop.number % 4 == 1:
            model.eval()
            with context[mode]():
                scored = loop.case.loss(model, others[loop.number])
            model.train()
            seen.append(scored.item())
        loss = loop.case.loss(model, batch)
        if loop.number % 4 == 2:
            with context[mode]():
                seen.append(loop.case.loss(model, batch).item())
        loss.backward()
        return loss

    seen: list[float] = []
    both_ways(CASES["dlrm"], "adagrad", step, steps)
    assert len(seen) == steps
    assert seen[: steps // 2] == pytest.approx(seen[steps // 2 :], rel=1e-12)


@each_size
def test_a_pass_that_does_not_reach_the_tables_updates_nothing(steps: int) -> None:
    """`torch.autograd.grad` for parameters of the dense part only."""

    def step(model: nn.Module, batch: data.Clicks, loop: Loop) -> Tensor:
        loss = loop.case.loss(model, batch)
        torch.autograd.grad(loss, list(model.top_l.parameters()), retain_graph=True)  # type: ignore[operator, union-attr]
        loss.backward()
        return loss

    runtime = both_ways(CASES["dlrm"], "adagrad", step, steps)
    assert runtime.step_number == steps


@each_size
def test_a_pass_that_fails_leaves_nothing_behind(steps: int) -> None:
    """An error in the middle of a pass, after bags had their gradients: the loop catches it and skips the batch."""

    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Tensor) -> Tensor:
            return value.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            raise ArithmeticError("a number of this batch is bad")

    def step(model: nn.Module, batch: data.Clicks, loop: Loop) -> Tensor:
        loss = loop.case.loss(model, batch)
        if loop.number % 4 == 3:
            bad = batch.dense.clone().requires_grad_()
            also = loop.case.loss(model, data.Clicks(Failing.apply(bad), batch.bags, batch.labels))
            with pytest.raises(ArithmeticError):
                also.backward()
            loop.zero_grad()
        loss.backward()
        return loss

    both_ways(CASES["dlrm"], "adagrad", step, steps)


@few_or_many_steps(FEW, MANY, reentrant=[False, True])
def test_activation_checkpointing_looks_up_again_in_the_backward_pass(reentrant: bool, steps: int) -> None:
    def step(model: nn.Module, batch: data.Clicks, loop: Loop) -> Tensor:
        dense = batch.dense.clone().requires_grad_()
        logits = checkpoint(lambda dense: model(dense, batch.bags), dense, use_reentrant=reentrant)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)
        loss.backward()
        return loss

    runtime = both_ways(CASES["dlrm"], "adagrad", step, steps)
    assert runtime.step_number == steps


@each_size
def test_gradients_of_the_dense_part_may_be_clipped(steps: int) -> None:
    def step(model: nn.Module, batch: data.Clicks, loop: Loop) -> Tensor:
        loss = loop.case.loss(model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(loop.dense.param_groups[0]["params"], 0.1)
        return loss

    both_ways(CASES["dlrm"], "sgd", step, steps)


@pytest.mark.slow
def test_a_compiled_model_looks_rows_up_uncompiled() -> None:
    """Compiled code breaks off where rows are looked up, and goes on behind it."""
    compiled = Loop(CASES["dlrm"], "adagrad", {})
    compiled.model.forward = torch.compile(compiled.model.forward, backend="eager")
    assert_same(compiled.run(20), plain("dlrm", "adagrad", 20))


def test_a_thread_that_evaluates_gets_its_rows_while_others_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other rows get the slots of its own between the moment when it finds them and the moment when it reads them."""
    model = nn.ModuleDict({"bags": nn.EmbeddingBag(500, 8, mode="sum")})
    ids, others = torch.arange(500).view(2, 50, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    expected = model["bags"](ids).detach()
    runtime = adaptive_rec.wrap(model, budget="4KiB", optimizer=optimizer)
    runtime.set_knobs(reclassify_every=1, sample_ratio=1.0, hysteresis=0.0)

    def train(ids: Tensor) -> None:
        optimizer.zero_grad()
        model["bags"](ids).sum().backward()
        optimizer.step()

    for _ in range(5):
        train(ids)
    found, moved, results = threading.Event(), threading.Event(), []
    find = reading.find_row_sources

    def find_and_wait(*arguments: Any) -> None:
        find(*arguments)
        if threading.current_thread() is other:
            found.set()
            moved.wait(0.5)

    def evaluate() -> None:
        with torch.no_grad():
            results.append(model["bags"](ids))

    other = threading.Thread(target=evaluate)
    monkeypatch.setattr(reading, "find_row_sources", find_and_wait)
    other.start()
    assert found.wait(60)
    before = runtime.store.index.slot_of_row.copy()
    for _ in range(20):
        train(others)
    moved.set()
    other.join()
    assert ((before >= 0) & (runtime.store.index.slot_of_row < 0)).any(), "rows have moved"
    torch.testing.assert_close(results[0], expected)

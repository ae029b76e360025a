"""`prefetch`: the loader's items, announced and other lookups, loops left early, errors in the loader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from adaptive_rec.errors import AdaptiveRecError

from .training import CASES, Loop, data

ROWS = data.TABLE_ROWS


def dlrm_loop(**options: Any) -> Loop:
    return Loop(CASES["dlrm"], "adagrad", options)


def trained_on(loop: Loop, batches: Any) -> list[float]:
    losses = []
    for batch in batches:
        loop.zero_grad()
        losses.append(loop.forward_backward(loop.model, batch, loop).item())
        loop.update()
        loop.check_budget()
    return losses


def test_prefetching_hands_out_the_loader_s_items_as_they_are() -> None:
    loop, batches = dlrm_loop(), list(data.clicks(20, 16))
    seen = []
    for batch in loop.runtime.prefetch(batches, sparse=loop.case.lookups):
        seen.append(batch)
        loop.case.loss(loop.model, batch).backward()
    assert len(seen) == len(batches)
    assert all(one is other for one, other in zip(seen, batches, strict=True))


def test_lookups_that_were_not_announced_are_right() -> None:
    """Foretold are those of other batches, of some tables only, or none."""
    batches, others = list(data.clicks(40, 32)), list(data.clicks(40, 32, seed=3))

    def foretold(batch: data.Clicks) -> Any:
        number = next(k for k, one in enumerate(batches) if one is batch)
        announced = loop.case.lookups(others[number] if number % 4 == 0 else batch)
        return {} if number % 4 == 1 else dict(list(announced.items())[: 2 if number % 4 == 2 else None])

    theirs = trained_on(Loop(CASES["dlrm"], "adagrad"), batches)
    loop = dlrm_loop()
    assert trained_on(loop, loop.runtime.prefetch(batches, sparse=foretold)) == pytest.approx(theirs, rel=1e-12)


def test_pooled_vectors_may_be_changed_in_place() -> None:
    """Those of all modules lie in one piece of memory where they were announced; none sees what is done to another's."""
    batches = list(data.clicks(12, 32))

    def run(loop: Loop, source: Any) -> list[float]:
        for module in loop.model.modules():
            if type(module).__name__.endswith("EmbeddingBag"):
                module.register_forward_hook(lambda _, __, pooled: pooled.mul_(0.5).relu_())
        return trained_on(loop, source)

    theirs = run(Loop(CASES["dlrm"], "adagrad"), batches)
    loop = dlrm_loop()
    assert run(loop, loop.runtime.prefetch(batches, sparse=loop.case.lookups)) == pytest.approx(theirs, rel=1e-12)
    assert loop.runtime.stats().looked_up_ahead_ratio > 0.9


def test_prefetched_batches_may_be_skipped_or_used_twice() -> None:
    batches = list(data.clicks(40, 32))

    def run(loop: Loop, source: Any) -> list[float]:
        losses = []
        for number, batch in enumerate(source):
            if number % 3 == 1:
                continue
            for _ in range(1 + number % 2):
                losses += trained_on(loop, [batch])
        return losses

    theirs = run(Loop(CASES["dlrm"], "adagrad"), batches)
    loop = dlrm_loop()
    ours = run(loop, loop.runtime.prefetch(batches, sparse=loop.case.lookups))
    assert ours == pytest.approx(theirs, rel=1e-12)


def test_a_prefetch_loop_may_be_left_and_another_one_started() -> None:
    batches = list(data.clicks(30, 32))
    theirs = trained_on(Loop(CASES["dlrm"], "adagrad"), [*batches[:10], *batches[5:], *batches])
    loop, losses = dlrm_loop(), []
    for number, batch in enumerate(loop.runtime.prefetch(batches, sparse=loop.case.lookups)):
        if number == 10:
            break
        losses += trained_on(loop, [batch])
    losses += trained_on(loop, loop.runtime.prefetch(batches[5:], sparse=loop.case.lookups))
    losses += trained_on(loop, batches)
    assert losses == pytest.approx(theirs, rel=1e-12)


@pytest.mark.parametrize("where", ["loader", "sparse"])
def test_an_error_in_the_loader_comes_through_at_its_batch(where: str) -> None:
    batches, loop = list(data.clicks(12, 16)), dlrm_loop()

    def loader() -> Iterator[data.Clicks]:
        yield from batches[:8]
        if where == "loader":
            raise OSError("the disk is gone")
        yield from batches[8:]

    def lookups(batch: data.Clicks) -> Any:
        if where == "sparse" and batch is batches[8]:
            raise OSError("the disk is gone")
        return loop.case.lookups(batch)

    seen: list[data.Clicks] = []

    def train() -> None:
        for batch in loop.runtime.prefetch(loader(), sparse=lookups):
            seen.append(batch)
            trained_on(loop, [batch])

    with pytest.raises(OSError, match="the disk is gone"):
        train()
    assert [id(one) for one in seen] == [id(one) for one in batches[:8]]
    trained_on(loop, batches[8:])


@pytest.mark.parametrize(
    ("announced", "match"),
    [
        (lambda batch: {"emb_l.9": batch.bags[0]}, "emb_l.9"),
        (lambda batch: {"emb_l.0": batch.bags[0][0]}, "emb_l.0"),
        (lambda batch: [1, 2], "sparse"),
        (
            lambda batch: {"emb_l.0": None},
            r"for emb_l\.0 .* must be a tensor of ids, or \(ids, offsets\), got NoneType",
        ),
        (lambda batch: {"emb_l.0": (*batch.bags[0], None)}, r"got \('Tensor', 'Tensor', 'NoneType'\)"),
    ],
)
def test_invalid_lookups_are_refused(announced: Any, match: str) -> None:
    loop = dlrm_loop()
    with pytest.raises((AdaptiveRecError, ValueError, TypeError), match=match):
        next(iter(loop.runtime.prefetch(data.clicks(3, 16), sparse=announced)))


def test_prefetch_takes_a_torch_data_loader() -> None:
    batches = list(data.clicks(20, 32))
    loader = torch.utils.data.DataLoader(batches, batch_size=None)  # type: ignore[arg-type]
    theirs = trained_on(Loop(CASES["dlrm"], "adagrad"), batches * 2)
    loop, losses = dlrm_loop(), []
    for _ in range(2):
        losses += trained_on(loop, loop.runtime.prefetch(loader, sparse=loop.case.lookups))
    assert losses == pytest.approx(theirs, rel=1e-12)


def test_announced_tensors_that_were_freed_are_not_taken_for_new_ones_at_their_address() -> None:
    """Tensors made for the forecast only: their memory may be given to those that the forward call is made with."""
    batches, loop = list(data.clicks(40, 32)), dlrm_loop()
    theirs = trained_on(Loop(CASES["dlrm"], "adagrad"), batches)

    def foretold(batch: data.Clicks) -> Any:
        return {
            f"emb_l.{k}": ((ids + 1) % rows, ends.clone())
            for k, ((ids, ends), rows) in enumerate(zip(batch.bags, ROWS, strict=True))
        }

    losses = []
    for batch in loop.runtime.prefetch(batches, sparse=foretold):
        copies = [(ids.clone(), ends.clone()) for ids, ends in batch.bags]
        losses += trained_on(loop, [data.Clicks(batch.dense, copies, batch.labels)])
    assert losses == pytest.approx(theirs, rel=1e-12)


@pytest.mark.parametrize("what", ["ids", "offsets"])
def test_announced_ids_may_be_changed_in_place(what: str) -> None:
    """By the loop, before the forward call."""

    def changed(batch: data.Clicks) -> data.Clicks:
        for (ids, ends), rows in zip(batch.bags, ROWS, strict=True):
            if what == "ids":
                ids.add_(1).remainder_(rows)
            elif len(ids) > 40:  # the table of several ids a sample
                ends[1:].sub_(1).clamp_(min=0)
        return batch

    theirs = trained_on(Loop(CASES["dlrm"], "adagrad"), map(changed, data.clicks(40, 32)))
    loop, losses = dlrm_loop(), []
    for batch in loop.runtime.prefetch(data.clicks(40, 32), sparse=loop.case.lookups):
        losses += trained_on(loop, [changed(batch)])
    assert losses == pytest.approx(theirs, rel=1e-12)

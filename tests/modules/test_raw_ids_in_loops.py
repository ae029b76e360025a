"""Raw ids of modules over time: when they get rows, in a loop that looks ahead, saved and resumed; and what is refused."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import adaptive_rec
from adaptive_rec import (
    AdaptiveEmbedding,
    AdaptiveEmbeddingBag,
    AdaptiveEmbeddingBagCollection,
    EmbeddingBagConfig,
)
from adaptive_rec.errors import CheckpointError, ConfigError, ConflictError
from tests.matrix import always, grid

from .cases import in_turn
from .raw_keys import (
    DIM,
    KEYS,
    PADDING,
    ROWS,
    STEPS,
    Tower,
    drawn,
    first_values,
    keys_at,
    options,
    rows_by_key,
    train,
)
from .test_resume import through_file

pytestmark = pytest.mark.usefixtures("small_segments")


@grid(always, in_turn, prefetch=[True, False], on_disk=[True, False])
def test_a_fresh_module_resumes_exactly(prefetch: bool, on_disk: bool, tmp_path: Path) -> None:
    """Its rows, its ids, and how often ids without a row were seen; whichever of the two states is loaded first."""
    batches = [keys_at(places) for places in drawn(STEPS)]
    cut = 17

    def make(name: str) -> tuple[Tower, torch.optim.Optimizer]:
        where = tmp_path / name if on_disk else None
        how = options(where, knobs={"admit_after": 3, "prefetch_depth": 5}, optimizer=torch.optim.Adagrad)
        table = AdaptiveEmbedding(60, DIM, padding_idx=int(KEYS[0]), ids="raw", shared_rows=4, **how)
        return Tower(table, torch.float64), torch.optim.Adagrad([table.weight], lr=0.1)

    def run(tower: Any, rows: torch.optim.Optimizer, items: list[Tensor], stop: int = STEPS) -> list[float]:
        losses = []
        for ids in tower.table.runtime.prefetch(items, sparse=lambda ids: ids) if prefetch else items:
            losses += train(tower, [ids], rows)
            if len(losses) == stop:
                break
        return losses

    whole, rows = make("whole")
    expected = run(whole, rows, batches)
    first, rows = make("first")
    losses = run(first, rows, batches, cut)  # a loop that is left early: five items more were read
    runtime: Any = first.table.runtime
    saved = through_file({"model": first.state_dict(), "rows": rows.state_dict(), "runtime": runtime.state_dict()})
    states = []
    for order in (("model", "runtime"), ("runtime", "model")):
        second, rows = make("second" + order[0])
        run(second, rows, batches[20:], 3)  # what it knows is replaced
        runtime = second.table.runtime
        for what in order:
            (second if what == "model" else runtime).load_state_dict(saved[what])
        rows.load_state_dict(saved["rows"])
        assert losses + run(second, rows, batches[cut:]) == expected
        states.append(through_file({**second.state_dict(), "counts": runtime.stats().raw_ids}))
    states.append(through_file({**whole.state_dict(), "counts": whole.table.runtime.stats().raw_ids}))  # type: ignore[union-attr]
    counts = states[-1].pop("counts")
    assert all(state.pop("counts") == counts for state in states[:-1])
    assert counts["keys"] == 60
    assert min(counts["refused"], counts["lookups_shared"]) > 100
    taken = 4 + 60
    for state in states[:-1]:
        for name, value in states[-1].items():
            some = slice(taken) if name == "table.weight" else slice(None)
            assert torch.equal(state[name][some], value[some]), name


def test_ids_that_an_older_version_counted_are_counted_anew_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    def make() -> tuple[Any, torch.optim.Optimizer]:
        how = options(knobs={"admit_after": 3}, optimizer=torch.optim.Adagrad)
        table = AdaptiveEmbedding(60, DIM, ids="raw", shared_rows=4, **how)
        return Tower(table, torch.float64), torch.optim.Adagrad([table.weight], lr=0.1)

    batches = [keys_at(places) for places in drawn(20)]
    first, rows = make()
    train(first, batches[:3], rows)
    saved = through_file(first.table.runtime.state_dict())
    sketch = saved["raw_ids"]["map"]["sketch"]
    sketch["counters"] = torch.zeros((4, 1024), dtype=sketch["counters"].dtype)  # a line for each hash
    second, rows = make()
    second.table.runtime.load_state_dict(saved)
    second.load_state_dict(first.state_dict())
    train(second, batches[3:], rows)
    assert "counted ids without a row in another kind of sketch" in caplog.text
    assert second.table.runtime.stats().raw_ids["keys"] > first.table.runtime.stats().raw_ids["keys"]


@pytest.mark.parametrize("padding", [{}, {"padding_idx": PADDING}], ids=["no padding", "padding"])
@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_a_module_that_made_no_call_keeps_shared_rows_that_are_loaded(
    padding: dict[str, int], on_disk: bool, tmp_path: Path
) -> None:
    batches, cut = [keys_at(places) for places in drawn(20)], 12

    def made(name: str) -> Any:
        how = options(tmp_path / name if on_disk else None, knobs={"admit_after": 3}, optimizer="adagrad", lr=0.1)
        return AdaptiveEmbedding(60, DIM, ids="raw", shared_rows=4, **padding, **how)

    def losses(table: Any, items: list[Tensor]) -> list[float]:
        found = []
        for ids in items:
            loss = table(ids).sin().sum()
            loss.backward()
            found.append(loss.item())
        return found

    whole, resumed = made("whole"), made("resumed")
    losses(whole, batches[:cut])
    saved = through_file({"table": whole.state_dict(), "runtime": whole.runtime.state_dict()})
    resumed.load_state_dict(saved["table"])
    resumed.runtime.load_state_dict(saved["runtime"])
    assert losses(resumed, batches[cut:]) == losses(whole, batches[cut:])


def in_use(module: Any, shared_rows: int = 2) -> dict[str, Tensor]:
    """A module's state without the rows that no id has: a loop that looks ahead draws some of them early."""
    state = module.state_dict()
    return {**state, "weight": state["weight"][: shared_rows + len(state["raw_ids"])]}


def looked_up(depth: int | None, change: bool, steps: int, rows: int) -> tuple[list[Tensor], dict[str, int], dict[str, Tensor]]:
    """Train on two lookups of a table in each step, with evaluations in between. No `depth`: in line."""
    shapes = drawn(steps), drawn(steps, (24, 1), seed=3)
    items = [(keys_at(history), keys_at(one)) for history, one in zip(*shapes, strict=True)]
    how = options(knobs={"admit_after": 4, "prefetch_depth": depth or 0}, optimizer="adagrad", lr=0.1)
    table: Any = AdaptiveEmbeddingBag(rows, DIM, mode="sum", ids="raw", shared_rows=2, **how)
    loader = items if depth is None else table.runtime.prefetch(items, sparse=lambda item: {"weight": list(item)})
    found = []
    for number, (history, one) in enumerate(loader):
        loss = (table(history) * table(one)).sum()
        loss.backward()
        found.append(loss.detach())
        if number % 10 == 5:
            table.eval()
            before = in_use(table), table.runtime.stats().raw_ids
            found += [table(history).detach(), table(torch.tensor([[12345, 678], KEYS[:2].tolist()])).detach()]
            assert before[1] == table.runtime.stats().raw_ids
            assert all(torch.equal(value, before[0][name]) for name, value in in_use(table).items())
            table.train()
        if change and number == 20:
            table.runtime.set_knobs(admit_after=1)
    return found, table.runtime.stats().raw_ids, in_use(table)


@pytest.mark.parametrize(("steps", "rows"), [(40, 100), pytest.param(110, 300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("change", [False, True], ids=["same knobs", "a knob changes"])
def test_looking_ahead_changes_nothing(change: bool, steps: int, rows: int) -> None:
    expected, counts, state = looked_up(0, change, steps, rows)
    for depth in (1, 64):
        found, ahead_counts, ahead_state = looked_up(depth, change, steps, rows)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
        assert ahead_counts == counts
        assert all(torch.equal(value, state[name]) for name, value in ahead_state.items())
    assert 0 < counts["lookups_shared"] < counts["lookups"] == steps * 96
    assert counts["keys"] == rows
    if not change:  # in line a knob changes at once
        found, in_line_counts, in_line_state = looked_up(None, change, steps, rows)
        assert in_line_counts == counts
        assert torch.equal(in_line_state["raw_ids"], state["raw_ids"])
        for one, other in zip(found, expected, strict=True):  # gradients of two calls are summed in another order
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_a_tensor_that_is_looked_up_twice_counts_twice() -> None:
    """The second lookup admits its ids, looked up ahead or not."""
    found = []
    for prefetch in (False, True):
        how = options(knobs={"admit_after": 2}, optimizer="sgd", lr=0.1)
        table: Any = AdaptiveEmbedding(50, DIM, ids="raw", **how)
        items: Any = [keys_at(torch.arange(9))]
        for ids in table.runtime.prefetch(items, sparse=lambda ids: {"weight": [ids, ids]}) if prefetch else items:
            found.append((table(ids).detach(), table(ids).detach(), table.runtime.stats().raw_ids))
    (shared, own, counts), ahead = found
    assert torch.equal(shared, ahead[0])
    assert torch.equal(own, ahead[1])
    assert counts == ahead[2] == {"keys": 9, "evicted": 0, "refused": 0, "lookups": 18, "lookups_shared": 9}
    assert (shared == shared[0]).all()
    assert (own != shared).all()


def test_an_id_gets_a_row_with_the_call_that_makes_it_often_enough() -> None:
    how = options(knobs={"admit_after": 3}, optimizer="sgd", lr=1.0)
    table = AdaptiveEmbedding(2, DIM, padding_idx=PADDING, ids="raw", shared_rows=2, **how)
    padded, once = torch.tensor([[PADDING, PADDING]]), torch.tensor([-1])
    own = first_values(KEYS[:3]) * np.sqrt(ROWS / 2)
    for call in (table(once), table(once), table(padded), table(torch.tensor([8, 9, 10]))):
        call.sum().backward()
    assert table.runtime is not None
    assert table.runtime.stats().raw_ids == {"keys": 0, "evicted": 0, "refused": 0, "lookups": 5, "lookups_shared": 5}
    assert (table(padded) == 0).all()
    table(torch.from_numpy(KEYS[:3]).repeat(3))  # three of them, for two rows
    assert table.runtime.stats().raw_ids == {"keys": 2, "evicted": 0, "refused": 1, "lookups": 14, "lookups_shared": 8}
    known = rows_by_key(table)
    assert len(known) == 2
    for key, first in zip(KEYS[:3].tolist(), own, strict=True):
        if key in known:
            torch.testing.assert_close(known[key], first, rtol=1e-6, atol=0)
    table.eval()
    with torch.no_grad():
        shared = table.weight[:2].clone()
        assert all(any(torch.equal(row, one) for one in shared) for row in table(torch.arange(1, 51)))
        assert len({tuple(row.tolist()) for row in table(torch.arange(1, 51))}) == 2
    assert "padding_idx=-7" in repr(table)


def test_a_row_of_padding_leaves_the_first_values_of_others_as_they_are() -> None:
    plain, padded = (
        AdaptiveEmbedding(9, DIM, ids="raw", shared_rows=4, **more, **options(optimizer="sgd", lr=0.1))
        for more in ({}, {"padding_idx": PADDING})
    )
    assert torch.equal(plain(torch.from_numpy(KEYS[:5])), padded(torch.from_numpy(KEYS[:5])))
    given = slice(4 + 5)  # shared rows, and those of the five ids
    assert torch.equal(plain.state_dict()["weight"][given], padded.state_dict()["weight"][given])


def test_a_segment_that_runs_again_in_the_backward_pass_counts_once() -> None:
    table = AdaptiveEmbedding(50, DIM, ids="raw", **options(knobs={"admit_after": 2}, optimizer="sgd", lr=0.1))
    for _ in range(2):
        torch.utils.checkpoint.checkpoint(
            lambda ids: table(ids).sin(), keys_at(torch.arange(9)), use_reentrant=False
        ).sum().backward()
    assert table.runtime is not None
    assert table.runtime.stats().raw_ids == {"keys": 9, "evicted": 0, "refused": 0, "lookups": 18, "lookups_shared": 9}


def test_what_cannot_have_raw_ids_is_refused_by_name() -> None:
    how: dict[str, Any] = {"optimizer": "sgd", "lr": 0.1}
    for make, rule in (
        (lambda: AdaptiveEmbedding(9, 4, ids="hash", **how), "ids must be rows or raw, got 'hash'"),
        (lambda: AdaptiveEmbedding(9, 4, ids="raw"), "ids must come with optimizer="),
        (lambda: AdaptiveEmbedding(9, 4, shared_rows=2, **how), "shared_rows must be left out unless ids are raw, got 2"),
        (lambda: AdaptiveEmbedding(9, 4, ids="raw", shared_rows=0, **how), "shared_rows must be a whole number, 1 or more"),
        (lambda: AdaptiveEmbedding(9, 4, 2**63, ids="raw", **how), "padding_idx must be a whole number of 64 bits, got 9223"),
        (lambda: AdaptiveEmbedding(9, 4, ids="raw", optimizer=torch.optim.Adam), "ids must not be raw under an optimizer"),
        (lambda: AdaptiveEmbedding(9, 4, knobs={"evict_ratio": 0.1}, **how), 'evict_ratio must be 0 unless ids="raw", got 0.1'),
        (lambda: AdaptiveEmbedding(9, 4, knobs={"admit_after": 3}, **how), 'admit_after must be 1 unless ids="raw", got 3'),
        (lambda: AdaptiveEmbedding(9, 4, ids="raw", knobs={"admit_after": 0}, **how), "admit_after must be"),
        (lambda: AdaptiveEmbedding.from_pretrained(torch.ones(9, 4), ids="raw", **how), "_weight must be None where ids are raw"),
        (lambda: AdaptiveEmbeddingBag(3 * 10**9, 1, ids="raw", **how), "at most 1,073,741,823 rows in all"),
        (
            lambda: AdaptiveEmbeddingBagCollection(
                [EmbeddingBagConfig("t", 4, 9, ["f"], init_fn=nn.init.zeros_)], ids="raw", **how
            ),
            "init_fn and weight_init of table t must be left out where ids are raw",
        ),
        (lambda: adaptive_rec.wrap(nn.Sequential(nn.Embedding(9, 4)), ids="raw", **how), "keys must name the modules"),
        (lambda: adaptive_rec.unwrap(nn.Sequential(AdaptiveEmbedding(9, 4, ids="raw", **how))), "those of 0 are raw"),
        (lambda: next(AdaptiveEmbedding(9, 4, **how).keys_and_rows()), "must be raw for keys_and_rows, they are rows"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=rule):
            make()
    table, numbered = AdaptiveEmbedding(9, 4, ids="raw", **how), AdaptiveEmbedding(9, 4, **how)
    assert numbered.runtime is not None
    with pytest.raises(ConfigError, match="evict_ratio must be 0 unless ids="):
        numbered.runtime.set_knobs(evict_ratio=0.1)
    with pytest.raises(ConfigError, match="admit_after must be 1 unless ids="):
        numbered.runtime.set_knobs(admit_after=2)
    for copied in (copy.copy, copy.deepcopy, lambda module: torch.save(module, io.BytesIO())):
        with pytest.raises(TypeError, match="with raw ids must be saved and copied by its state_dict"):
            copied(table)


def test_a_call_that_does_not_fit_counts_no_id() -> None:
    bag = AdaptiveEmbeddingBag(9, 4, mode="sum", include_last_offset=True, ids="raw", optimizer="sgd", lr=0.1)
    for call, rule in (
        ((torch.rand(3, 2),), "input must be of torch.int32 or torch.int64, got torch.float64"),
        ((torch.ones(2, 2, dtype=torch.uint64),), "input must be of torch.int32 or torch.int64, got torch.uint64"),
        ((torch.arange(3), torch.tensor([1, 3])), r"offsets\[0\] must be 0, got 1"),
        ((torch.arange(3),), "offsets must be a 1-D tensor where input is 1-D, got none"),
        ((torch.ones(2, 2, dtype=torch.int64), None, torch.ones(2)), "per_sample_weights must have the shape of input"),
    ):
        with pytest.raises(ValueError, match=rule):
            bag(*call)
    assert bag.runtime is not None
    assert bag.runtime.stats().raw_ids["lookups"] == 0
    assert bag(torch.arange(5), torch.tensor([0, 2, 2])).shape == (2, 4)  # three ids are in no bag
    assert bag.runtime.stats().raw_ids["lookups"] == 2


def test_within_a_loop_that_looks_ahead_calls_must_be_announced() -> None:
    def make() -> Any:
        return AdaptiveEmbedding(99, 4, ids="raw", **options(optimizer="sgd", lr=0.1))

    table = make()
    for ids in table.runtime.prefetch([torch.arange(3)] * 3, sparse=lambda ids: ids):
        table(ids).sum().backward()
        with pytest.raises(ConflictError, match="must be announced by sparse, with the very same tensors"):
            table(ids + 50)
        with pytest.raises(ConflictError, match="must not be loaded within a loop over prefetch"):
            table.load_state_dict(table.state_dict())
        assert table.eval()(ids + 50).shape == (3, 4)
        table.train()
    assert table.runtime.stats().raw_ids["keys"] == 3
    table.eval()
    for ids in table.runtime.prefetch([torch.arange(9)] * 3, sparse=lambda ids: ids):
        table(ids)
        with pytest.raises(ConflictError, match="must be in training mode when a loop over prefetch begins"):
            table.train()(ids)
        table.eval()
    assert table.runtime.stats().raw_ids["lookups"] == 9


def test_a_loop_that_another_one_would_read_ahead_is_refused_and_counts_once() -> None:
    users, items = (AdaptiveEmbedding(99, 4, ids="raw", **options(optimizer="sgd", lr=0.1)) for _ in range(2))
    loader: Any = [(torch.arange(3) + step, torch.arange(5) - step) for step in range(4)]
    outer, inner = users.runtime, items.runtime
    assert outer is not None
    assert inner is not None

    def train(depth: int) -> None:
        for user, item in outer.prefetch(inner.prefetch(loader, lambda pair: pair[1]), lambda pair: pair[0], depth):
            (users(user).sum() + items(item).sum()).backward()

    with pytest.raises(ConflictError, match="must not be read ahead by another one: .* or give the outer loop depth=0"):
        train(depth=2)
    assert outer.stats().raw_ids["lookups"] == inner.stats().raw_ids["lookups"] == 0
    train(depth=0)
    assert (outer.stats().raw_ids["lookups"], inner.stats().raw_ids["lookups"]) == (4 * 3, 4 * 5)


def test_a_state_of_other_ids_is_not_taken_for_rows() -> None:
    how: dict[str, Any] = {"optimizer": "sgd", "lr": 0.1}
    raw, rows = AdaptiveEmbedding(8, 4, ids="raw", **how), AdaptiveEmbedding(9, 4, **how)
    raw(torch.tensor([-5, 7]))
    state, runtime = raw.state_dict(), raw.runtime
    before = {name: value.clone() for name, value in state.items()}
    pairs = state["raw_ids"]
    assert runtime is not None
    for wrong, rule in (
        (rows.state_dict(), "raw_ids and weight must come together"),
        ({"raw_ids": pairs}, "raw_ids and weight must come together"),
        ({**state, "raw_ids": pairs[:, :1]}, r"raw_ids must be of shape \(K, 2\) and int64, got \(2, 1\)"),
        ({**state, "raw_ids": pairs.int()}, r"raw_ids must be of shape \(K, 2\) and int64"),
        ({**state, "raw_ids": pairs - torch.tensor([0, 1])}, r"must have rows in \[1, 9\), after those .* got 0 to 1"),
        ({**state, "raw_ids": pairs + torch.tensor([0, 7])}, r"must have rows in \[1, 9\), after those .* got 8 to 9"),
        ({**state, "raw_ids": pairs * torch.tensor([1, 0]) + 4}, "raw_ids must have different rows, some are given twice"),
        ({**state, "raw_ids": pairs * torch.tensor([0, 1])}, "raw_ids must have different ids, some are given twice"),
        ({**state, "raw_ids": torch.arange(18).view(9, 2)}, "raw_ids must be at most 8, got 9"),
        ({**state, "weight": torch.ones(5, 4)}, r"weight must be of shape \(9, 4\), got \(5, 4\)"),
    ):
        for strict in (True, False):
            with pytest.raises(RuntimeError, match=rule):
                raw.load_state_dict(wrong, strict=strict)
    assert all(torch.equal(value, before[name]) for name, value in raw.state_dict().items())
    for other in (rows, nn.Embedding(9, 4)):
        with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "raw_ids"'):
            other.load_state_dict(state)
    assert rows.runtime is not None
    for ours, theirs, rule in (
        (runtime, rows.runtime, "ids must be raw, got rows"),
        (rows.runtime, runtime, "ids must be rows, got raw"),
    ):
        with pytest.raises(CheckpointError, match=rule):
            ours.load_state_dict(theirs.state_dict())


@pytest.mark.parametrize("kind", [torch.optim.Adagrad, torch.optim.SparseAdam])
@pytest.mark.parametrize(
    "names",
    [("model", "runtime", "rows"), ("rows", "runtime", "model"), ("model", "runtime"), ("runtime", "model")],
    ids="-".join,
)
def test_a_fresh_optimizer_takes_over_what_the_runtime_loaded(names: tuple[str, ...], kind: Any) -> None:
    """Whether its own state is loaded too or not, although Adagrad has a state of zeros before its first step."""

    def make() -> dict[str, Any]:
        table = AdaptiveEmbedding(30, DIM, ids="raw", **options(optimizer=kind))
        return {"model": table, "runtime": table.runtime, "rows": kind([table.weight], lr=0.1)}

    def step(loop: dict[str, Any]) -> Tensor:
        loop["rows"].zero_grad()
        loop["model"](torch.tensor([5, 7, -3])).sin().sum().backward()
        loop["rows"].step()
        return in_use(loop["model"], 1)["weight"]

    whole = make()
    for _ in range(5):
        step(whole)
    saved = through_file({name: each.state_dict() for name, each in whole.items()})
    loop = make()
    for name in names:
        loop[name].load_state_dict(saved[name])
    assert all(torch.equal(step(loop), step(whole)) for _ in range(2))

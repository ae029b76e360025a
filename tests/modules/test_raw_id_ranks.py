"""Raw ids in a loop of several processes: ranks give the ids of the whole batch the rows that one process gives them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import adaptive_rec
from adaptive_rec import AdaptiveEmbedding, AdaptiveEmbeddingBag, AdaptiveEmbeddingBagCollection
from adaptive_rec.errors import ConfigError, GroupError
from adaptive_rec.system.group import Alone, Group

from .jagged import Jagged
from .ranks import patch_ranks
from .raw_keys import DIM, KEYS, drawn, keys_at, leave_sooner, options, rows_by_key
from .test_raw_ids import jagged, of_keys, tables
from .test_resume import through_file

FEW, STEPS, SIZE = 30, 60, 24


@pytest.fixture
def on_ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    return patch_ranks(monkeypatch)


class Two(nn.Module):
    """A table of bags, read twice in a forward pass, and one of single ids with padding."""

    def __init__(self, rows: int, **how: Any) -> None:
        super().__init__()
        own = {"ids": "raw", "shared_rows": 3, "dtype": torch.float64, **how}
        self.words: Any = AdaptiveEmbeddingBag(rows, DIM, mode="sum", **own)
        self.places: Any = AdaptiveEmbedding(rows, DIM, padding_idx=int(KEYS[0]), **own)

    def forward(self, words: Tensor, places: Tensor) -> Tensor:
        return ((self.words(words) + self.words(words[:, :1])) * self.places(places)).sum(1).sin()


def items(group: Group, steps: int = STEPS, replaced_every: int = 10**9) -> list[tuple[Tensor, Tensor]]:
    """A rank's part of each batch; parts differ in size, and in every fifth step rank 0 has none."""
    found = []
    for step, (words, places) in enumerate(zip(drawn(steps, (SIZE, 3)), drawn(steps, (SIZE,), 1), strict=True)):
        bounds = [SIZE * rank**2 // group.ranks**2 for rank in range(group.ranks + 1)]
        if group.ranks > 1 and step % 5 == 0:
            bounds[1] = 0
        own = slice(*bounds[group.rank : group.rank + 2])
        age = step // replaced_every
        found.append((keys_at(words[own]) ^ age, keys_at(places[own]) ^ age))
    return found


def train(group: Group, model: Two, given: list[tuple[Tensor, Tensor]], prefetch: bool = False) -> Any:
    """Returns the losses, and what each table knows: its counts, its ids and their rows."""
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    loader: Any = given
    if prefetch:
        loader = model.words.runtime.prefetch(given, sparse=lambda item: [item[0], item[0][:, :1]])
    losses = []
    for words, places in loader:
        optimizer.zero_grad()
        loss = model(words, places).sum() * group.ranks / SIZE
        loss.backward()
        optimizer.step()
        losses.append(float(group.total(loss.detach().numpy().reshape(1))[0]) / group.ranks)
    tables = (model.words, model.places)
    return losses, [(one.runtime.stats().raw_ids, rows_by_key(one), one.weight[:3].detach()) for one in tables]


def assert_same(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-12, atol=1e-14)
    for (counts, rows, shared), (their_counts, their_rows, their_shared) in zip(found[1], expected[1], strict=True):
        assert counts == their_counts
        assert rows.keys() == their_rows.keys()
        torch.testing.assert_close(shared, their_shared, rtol=0, atol=1e-11)
        for key, row in their_rows.items():
            torch.testing.assert_close(rows[key], row, rtol=0, atol=1e-11)


HOW = {"in line": (2, False, False), "ahead": (3, True, False), "disk": (2, True, True)}


@pytest.mark.parametrize(
    ("how", "rows", "steps"),
    [
        ("disk", 50, FEW),
        *(pytest.param(how, 90, STEPS, marks=pytest.mark.slow) for how in HOW),
    ],
)
def test_ranks_admit_the_ids_that_one_process_admits(
    on_ranks: Any, tmp_path: Path, how: str, rows: int, steps: int
) -> None:
    """In tables that get full, after two lookups of an id."""
    ranks, prefetch, on_disk = HOW[how]

    def work(group: Group) -> Any:
        where = tmp_path / f"{group.ranks}-{group.rank}" if on_disk else None
        model = Two(rows, **options(where, optimizer=torch.optim.Adagrad, knobs={"admit_after": 2}))
        return train(group, model, items(group, steps), prefetch)

    expected = work(Alone())
    for counts, row_of, _ in expected[1]:
        assert counts["keys"] == len(row_of) == rows
        assert min(counts["refused"], counts["lookups_shared"]) > 20
    for found in on_ranks(ranks, work):
        assert_same(found, expected)


EVICTING = {"admit_after": 2, "evict_ratio": 0.25}


def evicting(rows: int, every: int) -> Two:
    """Tables of fewer rows than ids, which replace one another."""
    return Two(rows, **options(optimizer=torch.optim.Adagrad, knobs={**EVICTING, "reclassify_every": every}))


@pytest.mark.parametrize(("rows", "every"), [(40, 5), pytest.param(80, 20, marks=pytest.mark.slow)])
def test_the_same_ids_leave_on_all_ranks_and_one_process_goes_on(
    on_ranks: Any, rows: int, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids are replaced every three times that the rows are classified."""
    leave_sooner(monkeypatch, every / 20)

    def given(group: Group) -> list[tuple[Tensor, Tensor]]:
        return items(group, 15 * every, replaced_every=3 * every)

    def work(group: Group) -> Any:
        model = evicting(rows, every)
        found = train(group, model, given(group)[: 9 * every])
        runtimes = [one.runtime.state_dict() for one in (model.words, model.places)]
        return found, through_file([model.state_dict(), *runtimes])

    alone = train(Alone(), evicting(rows, every), given(Alone())[: 9 * every])
    ends = on_ranks(2, work)
    for found, _ in ends:
        assert_same(found, ends[0][0])
        for (counts, row_of, _), (their_counts, *_) in zip(found[1], alone[1], strict=True):
            assert counts["evicted"] > 20
            assert counts["keys"] == len(row_of)
            assert counts["lookups"] == their_counts["lookups"]

    model = evicting(rows, every)
    for part, state in zip((model, model.words.runtime, model.places.runtime), ends[1][1], strict=True):
        part.load_state_dict(state)
    _, tables = train(Alone(), model, given(Alone())[9 * every :])
    for (counts, row_of, _), (before, *_) in zip(tables, ends[0][0][1], strict=True):
        assert counts["evicted"] > before["evicted"]
        assert counts["keys"] == len(row_of)


def load(model: Two) -> None:
    model.words.raw_ids.load_keys(0, np.array([[5, 3]]))


@pytest.mark.parametrize(
    ("first", "differ", "rule"),
    [
        (3, lambda model: model.words.runtime.set_knobs(admit_after=4), "admit_after must be the same .* got 2 on rank 0 and 4"),
        (3, lambda model: model.eval()(*items(Alone(), 1)[0]), "rank 0 gives rows to raw ids of .* rank 1 looks up table"),
        (3, load, "steps with raw ids must be the same on all ranks, got 3 on rank 0 and 0 on rank 1"),
        (0, load, "the digest of raw ids with rows must be the same on all ranks"),
    ],
    ids=["knob", "evaluation", "resumed", "loaded"],
)  # fmt: skip
def test_ranks_that_would_give_other_rows_are_told(on_ranks: Any, first: int, differ: Any, rule: str) -> None:
    def work(group: Group) -> None:
        model = Two(90, **options(optimizer=torch.optim.Adagrad, knobs={"admit_after": 2}))
        given = items(group, 6)

        def go_on() -> None:
            if group.rank:
                differ(model)
            train(group, model, given[first:])

        train(group, model, given[:first])
        with pytest.raises(GroupError, match=rule):
            go_on()

    on_ranks(2, work)


def test_a_collection_of_several_tables_is_the_same_on_ranks(on_ranks: Any) -> None:
    """With a table of two features, and a feature of two tables."""

    def work(group: Group) -> Any:
        make: Any = AdaptiveEmbeddingBagCollection
        collection = make(tables(), ids="raw", **options(optimizer="adagrad", lr=0.1, knobs={"admit_after": 2}))
        losses = []
        for seed in range(20):
            own = group.part_of(20)
            batch = of_keys(jagged(seed))
            length_FB = batch.counts.view(len(batch.names), -1)
            parts = batch.ids.split(length_FB.reshape(-1).tolist())
            some = [
                parts[20 * feature + sample]
                for feature in range(len(batch.names))
                for sample in range(own.start, own.stop)
            ]
            part = Jagged(batch.names, torch.cat(some), length_FB[:, own.start : own.stop].reshape(-1))
            loss = collection(part).values().sin().sum() * group.ranks
            loss.backward()
            losses.append(float(group.total(loss.detach().numpy().reshape(1))[0]) / group.ranks)
        modules = collection.embedding_bags.values()
        return losses, [(one.runtime.stats().raw_ids, rows_by_key(one), one.weight[:1].detach()) for one in modules]

    expected = work(Alone())
    assert expected[1][0][0]["lookups_shared"] > 100
    for found in on_ranks(2, work):
        assert_same(found, expected)


def test_ranks_wrap_the_same_values_or_none(on_ranks: Any) -> None:
    def work(group: Group) -> Tensor:
        model = nn.ModuleDict({"words": nn.Embedding(9, 4, dtype=torch.float64)})
        how: dict[str, Any] = {"ids": "raw", "optimizer": "sgd", "lr": 0.1}
        with torch.no_grad():
            model["words"].weight.fill_(group.rank)
        if not group.is_alone:
            with pytest.raises(
                ConfigError, match="values of rows must be the same on all ranks where ids are raw, those of words"
            ):
                adaptive_rec.wrap(model, keys={"words": torch.arange(5)}, **how)
        adaptive_rec.wrap(model, keys={"words": None}, **how)
        vectors: Tensor = model["words"](torch.tensor([7, -7])).detach()
        model = nn.ModuleDict({"words": nn.Embedding(9, 4, dtype=torch.float64)})
        with torch.no_grad():
            model["words"].weight.copy_(torch.arange(36).view(9, 4))
        adaptive_rec.wrap(model, keys={"words": torch.arange(5) - 50}, **how)
        own: Tensor = model["words"](torch.tensor([-47, -50])).detach()
        adaptive_rec.unwrap(model)  # every rank then has all rows and all ids
        assert torch.equal(model["words"](torch.tensor([-47, -50])), own)
        return torch.cat([vectors, own])

    expected = work(Alone())
    assert torch.equal(expected[2:], torch.tensor([[12.0, 13, 14, 15], [0, 1, 2, 3]], dtype=torch.float64))
    assert all(torch.equal(found, expected) for found in on_ranks(2, work))

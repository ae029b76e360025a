"""Races of a worker and the training thread, each forced to happen at the worst moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from adaptive_rec.batch import Batch, FeatureSpec, TableSpec
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.embedding.optimizer import RULES, RowRule
from adaptive_rec.embedding.records import MicroBatch, RowUpdate
from adaptive_rec.embedding.staged.in_flight import Flight, InFlight
from adaptive_rec.embedding.staged.ring import Slot
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.placement import Migration, RowSpace
from tests.doubles.late_streams import LateStreams
from tests.stores import device_store

NONE = np.empty(0, dtype=np.int64)
ROWS, DIM, LR = 6, 3, 0.5
SPACE = RowSpace.of((TableSpec("A", ROWS, DIM),), (FeatureSpec("a", 0),))
SEEDS = range(5)


BATCH = Batch.one_hot(np.zeros((1, 1), np.float32), np.zeros((1, 1), np.int64), np.zeros(1, np.float32))


def make_store(seed: int, hot: list[int]) -> EmbeddingStore:
    store = device_store(SPACE, RowRule(RULES["sgd"], 0, 0, 0), 1, torch.float64, LateStreams(seed), 1 << 20, False)
    store.migrate(Migration(np.array(hot, dtype=np.int64), NONE))
    return store


def classified(store: EmbeddingStore, rows: list[int]) -> ClassifiedBatch:
    ids = np.array(rows)[:, None]
    batch = Batch.one_hot(np.zeros((len(rows), 1), np.float32), ids, np.zeros(len(rows), np.float32))
    work = ClassifiedBatch(batch, SPACE)
    store.path.classify(work)
    return work


def staged(store: EmbeddingStore, rows: list[int]) -> ClassifiedBatch:
    work = classified(store, rows)
    store.batches.stage(work)
    return work


def train(store: EmbeddingStore, work: ClassifiedBatch) -> None:
    """Every row of the batch goes down by the learning rate for each time it occurs."""
    store.batches.take(work)
    size = work.batch.size
    empty = [
        torch.full(shape, torch.nan, dtype=torch.float64) for shape in ((size, 1), (size,), (size,), (size, 1, DIM))
    ]
    store.batches.gather(work, np.arange(size), np.ones(size), MicroBatch(empty[0], empty[3:], empty[1], empty[2], size))
    ones = [torch.ones((size, 1, DIM), dtype=torch.float64)]
    store.batches.apply(work, RowUpdate(ones, np.arange(size), None, LR, 1, measure=False))


def assert_trained(store: EmbeddingStore, before: np.ndarray, batches: list[list[int]]) -> None:
    times = np.bincount(np.concatenate(batches), minlength=ROWS)
    np.testing.assert_allclose(store.contents.export(0)[0], before - LR * times[:, None], rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("hot", "migration"),
    [([0, 1], Migration(NONE, np.array([0]))), ([1], Migration(np.array([0]), np.array([1])))],
    ids=["demotion", "exchange"],
)
def test_a_batch_staged_in_the_middle_of_a_migration_is_staged_again(
    seed: int, hot: list[int], migration: Migration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some rows have moved and some not, and the placement is the old one by its version."""
    store = make_store(seed, hot)
    before = store.contents.export(0)[0]
    batches = [[0, 1, 2], [0, 1, 1], [2, 0]]
    works = [staged(store, batches[0])]
    count_moved = store._count_moved

    def in_the_middle(*arguments: Any, **more: Any) -> None:
        count_moved(*arguments, **more)
        works.append(staged(store, batches[len(works)]))

    monkeypatch.setattr(store, "_count_moved", in_the_middle)
    store.migrate(migration)
    monkeypatch.undo()
    for work in works:
        train(store, work)
    assert_trained(store, before, batches[: len(works)])
    store.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_batch_dropped_by_the_step_may_be_looked_at_by_the_worker(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step stages a batch again that a migration overtook, while a worker under the old placement's version asks which
    batches are on their way."""
    store = make_store(seed, [0])
    before = store.contents.export(0)[0]
    batches = [[0, 1, 2], [0, 1, 1]]
    first, second = staged(store, batches[0]), classified(store, batches[1])
    store.migrate(Migration(NONE, np.array([0])))
    slot, release = first.staged.staged.slot, Slot.release
    answers: list[Any] = []

    def release_and_ask(released: Slot, event: Any) -> None:
        release(released, event)
        if released is slot and not answers:
            later = Flight(second)  # as far as `stage` goes before it looks for earlier batches
            store.path._in_flight.add(later)
            answers.append(store.path._in_flight.hold_before(later))
            store.path._in_flight.end(later)

    monkeypatch.setattr(Slot, "release", release_and_ask)
    store.batches.take(first)
    monkeypatch.undo()
    assert answers == [None]
    train(store, first)
    train(store, second)
    assert_trained(store, before, batches)
    store.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_batch_staged_while_memory_is_given_back_takes_no_rows_from_what_is_dropped(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes after the batches to be dropped were looked up, so it is none of them; one it takes rows from is."""
    store = make_store(seed, [])
    before = store.contents.export(0)[0]
    batches = [[0, 1, 2], [0, 1, 1]]
    works = [staged(store, batches[0])]
    ahead = InFlight.ahead

    def ahead_then_another(flights: InFlight) -> list[Flight]:
        found = ahead(flights)
        works.append(staged(store, batches[1]))
        return found

    monkeypatch.setattr(InFlight, "ahead", ahead_then_another)
    store.path.free_memory()
    monkeypatch.undo()
    for work in works:
        train(store, work)
    assert_trained(store, before, batches)
    store.close()


class Paused(list[Flight]):
    """A list that another thread changes, as far as a lock lets it, while it is read for the last of some times."""

    def __init__(self, flights: list[Flight], other: Callable[[], None], times: int) -> None:
        super().__init__(flights)
        self.thread, self._left = threading.Thread(target=other), times

    def __iter__(self) -> Iterator[Flight]:
        self._left -= 1
        for flight in super().__iter__():
            yield flight
            if self._left == 0 and self.thread.ident is None:
                self.thread.start()
                self.thread.join(0.1)  # under a lock it cannot end before the reader does


@pytest.mark.parametrize(("name", "times"), [("add_now", 1), ("add_now", 2), ("end", 1)])
def test_a_flight_that_begins_or_ends_while_the_list_changes_is_not_lost(name: str, times: int) -> None:
    """Who trains, who stages and who brings rows home change the list of flights in threads of their own."""
    first, second, third, fourth = (Flight(ClassifiedBatch(BATCH, SPACE)) for _ in range(4))
    first.begin()
    flights = InFlight()

    def other() -> None:
        flights.add(fourth)
        flights.end(first)

    flights._flights = paused = Paused([first, second], other, times)
    if name == "add_now":
        flights.add_now(third)
    else:
        flights.end(second)
    paused.thread.join(60)
    assert [*flights.before(fourth), fourth] == ([third, second, fourth] if name == "add_now" else [fourth])

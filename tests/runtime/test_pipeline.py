"""Reading ahead changes nothing but the time: same batches, same order, same errors, whatever the depth."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from adaptive_rec.batch import Batch, FeatureSpec, Position, TableSpec
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.tree import load_config
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.embedding.path.cpu import CpuPath
from adaptive_rec.embedding.peers.peers import Peers
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import DataError
from adaptive_rec.kernels import row_update
from adaptive_rec.live.telemetry import StageTimes
from adaptive_rec.placement import Migration, RowSpace
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.runtime.pipeline import Pipeline
from tests.stores import cpu_store

TABLES = (TableSpec("A", 10, 2),)
FEATURES = (FeatureSpec("a", 0),)


class WatchedPath(CpuPath):
    """Notes under which placement, and on which thread, each batch was made ready."""

    def __init__(self) -> None:
        store = cpu_store(RowSpace.of(TABLES, FEATURES), RowRule(row_update.SGD, 0, 0, 0), 1, torch.float64, 8 * 2 * 5, False)
        super().__init__(store.index, store.rules, store.hot, store.cold, 1)
        self.store = EmbeddingStore(store.index, store.rules, 1, store.hot, store.cold, Peers(store.index, store.hot, self))
        self.ready: list[tuple[int, str]] = []
        self.progress = threading.Condition()

    def stage(self, work: ClassifiedBatch) -> None:
        with self.progress:
            self.ready.append((work.placement_version, threading.current_thread().name))
            self.progress.notify_all()

    def wait_until_ready(self, batches: int) -> None:
        with self.progress:
            assert self.progress.wait_for(lambda: len(self.ready) >= batches, timeout=120)


def numbered(count: int) -> list[Batch]:
    return [
        Batch.one_hot(
            np.full((2, 1), k, np.float32), np.array([[k % 10], [3]]), np.zeros(2, np.float32), Position(0, 0, k + 1)
        )
        for k in range(count)
    ]


def failing_after(good: int) -> Iterator[Batch]:
    yield from numbered(good)
    raise DataError("column 7 must be a number, got 'x' in line 4")


def pipe(batches: Iterator[Batch], store: EmbeddingStore, depth: int | Callable[[], int]) -> Pipeline:
    return Pipeline(batches, store, depth if callable(depth) else lambda: depth, StageTimes())


def prefetchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not prefetchers()


@pytest.mark.parametrize("depth", range(5))
@pytest.mark.parametrize("count", [0, 1, 3, 17])
def test_every_depth_gives_all_batches_in_order(depth: int, count: int) -> None:
    watched = WatchedPath()
    store = watched.store
    pipeline = pipe(iter(numbered(count)), store, depth)
    found = [int(work.batch.dense_BX[0, 0]) for work in pipeline]
    pipeline.close()
    assert found == list(range(count))
    assert {name.startswith("prefetch") for _, name in watched.ready} <= {depth > 0}


def test_the_depth_may_change_while_batches_are_under_way() -> None:
    """Downwards too, to 0 and up again: what was made ready is used up first, nothing is read twice or lost."""
    depths = iter([0, 3, 3, 1, 0, 0, 0, 0, 4, 2, 0, 0, 0, 0, 0, 1, *[2] * 40])
    pipeline = pipe(iter(numbered(30)), WatchedPath().store, lambda: next(depths))
    found = [int(work.batch.dense_BX[0, 0]) for work in pipeline]
    pipeline.close()
    assert found == list(range(30))


def test_no_more_than_depth_batches_are_read_ahead() -> None:
    read = 0

    def stream() -> Iterator[Batch]:
        nonlocal read
        for batch in numbered(40):
            read += 1
            yield batch

    watched = WatchedPath()
    store = watched.store
    pipeline = pipe(stream(), store, 3)
    for taken, _ in enumerate(pipeline, start=1):
        watched.wait_until_ready(min(taken + 3, 40))
        assert read == min(taken + 3, 40)
    pipeline.close()


def test_settling_waits_for_all_that_is_on_its_way() -> None:
    def slow() -> Iterator[Batch]:
        for batch in numbered(9):
            threading.Event().wait(0.01)
            yield batch

    watched = WatchedPath()
    store = watched.store
    pipeline = pipe(slow(), store, 4)
    pipeline.settle()
    for taken, _ in enumerate(pipeline, start=1):
        pipeline.settle()
        assert len(watched.ready) == min(taken + 4, 9)
    pipeline.close()


def test_settling_leaves_an_error_to_its_batch() -> None:
    pipeline = pipe(failing_after(2), WatchedPath().store, 4)
    works = iter(pipeline)
    next(works)
    pipeline.settle()
    next(works)
    with pytest.raises(DataError, match="column 7"):
        next(works)
    pipeline.close()


def test_as_many_threads_classify_as_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(3, timeout=120)
    original = ClassifiedBatch.classify

    def classify(work: ClassifiedBatch, placement: Any) -> None:
        together.wait()
        original(work, placement)

    monkeypatch.setattr(ClassifiedBatch, "classify", classify)
    pipeline = Pipeline(iter(numbered(6)), WatchedPath().store, lambda: 6, StageTimes(), classify_threads=3)
    assert len(list(pipeline)) == 6
    pipeline.close()


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_migration_after_prefetching_is_seen_by_the_step(depth: int) -> None:
    watched = WatchedPath()
    store = watched.store
    pipeline = pipe(iter(numbered(6)), store, depth)
    works = iter(pipeline)
    first = next(works)
    assert not first.popular_B.any()
    watched.wait_until_ready(1 + depth)
    store.migrate(Migration(promote=np.array([1, 3]), demote=np.empty(0, dtype=np.int64)))

    second = next(works)
    store.batches.take(second)
    assert watched.ready[1][0] == (0 if depth else 1), "made ready before the migration, where it was made ready ahead"
    assert second.placement_version == store.index.placement.version == 1
    assert second.popular_B.tolist() == [True, True]
    assert second.hot_U.tolist() == [True, True]
    for number, work in enumerate(works, start=2):
        store.batches.take(work)
        assert work.placement_version == 1
        assert work.popular_B.tolist() == [number == 3, True]
    pipeline.close()


def test_a_batch_is_not_classified_again_without_need(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    original = ClassifiedBatch.classify
    monkeypatch.setattr(
        ClassifiedBatch, "classify", lambda work, placement: (calls.append(1), original(work, placement))
    )
    pipeline = pipe(iter(numbered(8)), WatchedPath().store, 2)
    assert len(list(pipeline)) == 8
    pipeline.close()
    assert len(calls) == 8


@pytest.mark.parametrize("depth", range(5))
@pytest.mark.parametrize("good", [0, 2, 6])
def test_an_error_of_the_reader_comes_up_at_its_own_batch_as_itself(depth: int, good: int) -> None:
    pipeline = pipe(failing_after(good), WatchedPath().store, depth)
    works = iter(pipeline)
    assert [int(next(works).batch.dense_BX[0, 0]) for _ in range(good)] == list(range(good))
    with pytest.raises(DataError, match="column 7"):
        next(works)
    pipeline.close()


@pytest.mark.parametrize("depth", [0, 2])
def test_an_id_outside_its_table_comes_up_as_a_data_error(depth: int) -> None:
    bad = Batch.one_hot(np.zeros((1, 1), np.float32), np.array([[10]]), np.zeros(1, np.float32))
    pipeline = pipe(iter([*numbered(2), bad]), WatchedPath().store, depth)
    works = iter(pipeline)
    next(works)
    next(works)
    with pytest.raises(DataError, match="got 10"):
        next(works)
    pipeline.close()


def test_closing_early_stops_the_worker() -> None:
    def endless() -> Iterator[Batch]:
        while True:
            yield from numbered(5)

    pipeline = pipe(endless(), WatchedPath().store, 4)
    next(iter(pipeline))
    assert prefetchers()
    pipeline.close()
    assert not prefetchers()


def run_of(memory_source: Any, depth: int, batches: list[Batch]) -> Any:
    settings = [
        "knobs.policy=hotline", "run.device=cpu", "run.steps=0", "run.batch_size=2", "run.threads=1", "model.embedding_dim=2",
        "model.bottom_mlp=[2]", "model.top_mlp=[2]", "knobs.report_every=1", f"knobs.prefetch_depth={depth}",
    ]  # fmt: skip
    return assemble(load_config(None, {}, settings), memory_source(batches, TABLES, FEATURES))


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_the_position_of_a_run_counts_consumed_batches_only(memory_source: Any, depth: int) -> None:
    """A checkpoint taken now resumes at the next untrained batch, however many were read ahead."""
    runtime = run_of(memory_source, depth, numbered(12))
    events = runtime.run()
    for step in range(1, 6):
        next(events)
        assert runtime.state.position.offset == runtime.step_number == step
    events.close()
    assert not prefetchers()
    assert runtime.state.position.offset == 5
    rest = runtime.run()
    next(rest)
    assert runtime.state.position.offset == 6, "a resumed run takes the next batch"
    rest.close()


@pytest.mark.parametrize("depth", [0, 3])
def test_a_run_that_fails_stops_its_worker(memory_source: Any, depth: int) -> None:
    bad = Batch.one_hot(np.zeros((2, 1), np.float32), np.array([[1], [99]]), np.zeros(2, np.float32))
    runtime = run_of(memory_source, depth, [*numbered(3), bad, *numbered(30)])
    with pytest.raises(DataError, match="got 99"):
        list(runtime.run())
    assert runtime.step_number == 3
    assert not prefetchers()

"""Counting in the background: in order, sampled steps only; readers wait for it, and no error is lost."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from adaptive_rec.batch import Batch, FeatureSpec, TableSpec
from adaptive_rec.checkpoint.run_state import counted_anew
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.knobs import Knobs
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.errors import CheckpointError
from adaptive_rec.kernels import row_update
from adaptive_rec.kernels.sketch_numpy import find_cells, sketch_seeds
from adaptive_rec.live.telemetry import StageTimes
from adaptive_rec.placement import Migration, RowSpace
from adaptive_rec.reclassify.observer import Observer
from adaptive_rec.saved import Saved
from adaptive_rec.system.background import BEHIND_LIMIT
from tests.stores import cpu_store

SPACE = RowSpace.of((TableSpec("A", 10, 2),), (FeatureSpec("a", 0),))
KNOBS = Knobs(sample_ratio=0.5)
MOVES = KNOBS.changed({"stale_metric": "max_abs"})


@pytest.fixture
def observer() -> Iterator[Observer]:
    store = cpu_store(
        SPACE, RowRule(row_update.SGD, 0, 0, 0), 1, torch.float64, 8 * 2 * 5, False
    )
    observer = Observer(store, 1, StageTimes())
    yield observer
    observer.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tracker")]


def batch_of(*ids: int) -> ClassifiedBatch:
    rows = np.array(ids)[:, None]
    batch = Batch.one_hot(np.zeros((len(ids), 1), np.float32), rows, np.zeros(len(ids), np.float32))
    work = ClassifiedBatch(batch, SPACE)
    work.source_U[:] = ~work.distinct_U
    return work


class Gate:
    """Blocks the tracker until it is opened; records what it counted, and at which priority."""

    def __init__(self, observer: Observer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        self.seen: list[int] = []
        self.niceness = 0
        tracker = observer.tracker
        count = tracker.observe

        def held(rows_U: Any, *arrays: Any) -> None:
            assert self.opened.wait(20)
            self.niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
            self.seen.append(int(rows_U[0]))
            count(rows_U, *arrays)

        monkeypatch.setattr(tracker, "observe", held)


def test_a_sketch_of_an_older_version_is_taken_over(observer: Observer) -> None:
    """It has lines of cells, which the state is given here as it was saved then. Rows that are known keep their counts."""
    for step in range(8):
        observer.count_lookups(step, batch_of(5, 5, step), KNOBS)
    known = observer.tracker.candidates().copy()
    before = observer.tracker.estimate(known)
    state = observer.state()
    counter = state["tracker"]["counter"]
    lines = np.zeros((4, counter["counters"].size // 4), np.uint32)
    lines.reshape(-1)[find_cells(known, sketch_seeds(1, 4), lines.shape)] = (16 * before).astype(np.uint32)
    counter["counters"] = lines
    assert [text[:40] for text in counted_anew(Saved(state), None)] == ["the checkpoint is of a version that coun"]
    again = Observer(observer.store, 1, StageTimes())
    again.set_state(Saved(state))
    assert again.tracker.candidates().tolist() == known.tolist()
    assert again.tracker.estimate(known).tolist() == before.tolist()
    assert not list(counted_anew(Saved(again.state()), None))
    elsewhere = Observer(observer.store, 1, StageTimes())
    elsewhere.remember(Saved(state), np.array([2]))
    assert elsewhere.tracker.candidates().tolist() == sorted([*known.tolist(), 2])
    assert elsewhere.tracker.estimate(known).tolist() == before.tolist()


def test_only_sampled_steps_count(observer: Observer) -> None:
    for step in range(8):
        observer.count_lookups(step, batch_of(5, 5, step), KNOBS)
    assert observer.tracker.estimate(np.array([5, 6, 1])).tolist() == [9, 0, 1]
    assert observer.tracker.candidates().tolist() == [1, 3, 5, 7]


def test_readers_wait_for_the_counting_and_steps_do_not(observer: Observer, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(observer, monkeypatch)
    for step in range(1, 2 * BEHIND_LIMIT, 2):
        observer.count_lookups(step, batch_of(step), KNOBS)
    assert not gate.seen, "all these steps went by uncounted"
    threading.Timer(0.1, gate.opened.set).start()
    assert observer.tracker.candidates().tolist() == gate.seen == [1, 3, 5, 7]
    assert gate.niceness == 19


def test_counts_decay_beside_the_next_steps_and_before_what_is_counted_then(
    observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(observer, monkeypatch)
    observer.count_lookups(1, batch_of(1, 1), KNOBS)
    observer.end_window(0.5, Migration(promote=np.array([1]), demote=np.array([4])))
    observer.count_lookups(3, batch_of(7, 7), KNOBS)
    assert not gate.seen, "nobody has waited"
    gate.opened.set()
    assert observer.tracker.estimate(np.array([1, 4, 7])).tolist() == [1, 0, 2]
    assert observer.tracker.candidates().tolist() == [4, 7]
    assert observer.state()["tracker"]["counter"]["decays"] == 1


def test_no_more_than_a_few_batches_wait(observer: Observer, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(observer, monkeypatch)
    for step in range(1, 2 * BEHIND_LIMIT, 2):
        observer.count_lookups(step, batch_of(step % 10), KNOBS)
    threading.Timer(0.1, gate.opened.set).start()
    observer.count_lookups(2 * BEHIND_LIMIT + 1, batch_of(9), KNOBS)
    assert gate.seen, "the step waited until one was counted"


READERS: dict[str, Callable[[Observer], object]] = {
    "step": lambda observer: observer.count_lookups(3, batch_of(1), KNOBS),
    "tracker": lambda observer: observer.tracker.candidates(),
    "settle": Observer.settle,
}


@pytest.mark.parametrize("reader", READERS)
def test_an_error_is_raised_at_the_next_step_or_reader(
    observer: Observer, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    began = threading.Event()

    def fail(*_: Any) -> None:
        assert began.wait(20)
        raise MemoryError("no room for candidates")

    monkeypatch.setattr(observer.tracker, "observe", fail)
    observer.count_lookups(1, batch_of(1), KNOBS)
    first = observer._counting._behind[0]
    began.set()
    first.exception()
    with pytest.raises(MemoryError, match="no room"):
        READERS[reader](observer)


def observe_windows(observer: Observer) -> dict[str, Any]:
    """Count some steps of three windows, and return what is known then."""
    random = np.random.default_rng(3)
    for step in range(30):
        observer.count_lookups(step, batch_of(*random.integers(0, 10, 20).tolist()), KNOBS)
        if step % 10 == 9:
            observer.end_window(0.5, Migration(promote=np.array([step % 7]), demote=np.array([step % 5])))
    return observer.state()


def test_a_step_that_counts_by_itself_counts_the_same(observer: Observer) -> None:
    alone = Observer(observer.store, 1, StageTimes(), beside=False)
    expected, found = (observe_windows(one)["tracker"] for one in (observer, alone))
    np.testing.assert_array_equal(found.pop("counter")["counters"], expected.pop("counter")["counters"])
    np.testing.assert_array_equal(found.pop("met"), expected.pop("met"))
    assert found == expected
    assert observer._counting._thread is not None
    assert alone._counting._thread is None, "no thread was started"
    assert not alone._times.seconds, "the step's own stage has the time"


def test_memories_on_trial_are_counted_beside_the_step_anywhere(observer: Observer) -> None:
    alone = Observer(observer.store, 1, StageTimes(), beside=False)
    alone.count_lookups(1, batch_of(1), KNOBS)
    alone.try_memories(True)
    alone.count_lookups(3, batch_of(1, 1), KNOBS)
    assert alone._counting._thread is not None
    alone.try_memories(False)
    alone.count_lookups(5, batch_of(1), KNOBS)
    assert alone.tracker.estimate(np.array([1])).tolist() == [4]
    alone.close()


def test_the_time_of_counting_has_its_own_name(observer: Observer) -> None:
    observer.count_lookups(1, batch_of(1), KNOBS)
    observer.settle()
    assert list(observer._times.seconds) == ["observe (beside)"]


def monitored_observer() -> Observer:
    rule, rows = RowRule(row_update.SGD, 0, 0, 0), np.arange(4)
    store = cpu_store(SPACE, rule, 1, torch.float64, 0, True)
    store.resize([4], rows, True)
    return Observer(store, 1, StageTimes())


def test_a_record_has_what_was_requested_of_a_window() -> None:
    observer = monitored_observer()
    observer.count_lookups(1, batch_of(1, 1, 7), KNOBS)
    only_popularity = observer.record(1, KNOBS)
    assert only_popularity.movement is None
    [view] = only_popularity.access
    assert view.candidate_rows.tolist() == [7]
    assert view.hot_rows.tolist() == [0, 1, 2, 3]
    for rows in (view.candidate_rows, view.hot_rows):
        with pytest.raises(ValueError, match="read-only"):
            rows[0] = 5
    assert view.hot_scores.sum() == 2, "row 1 is hot and was looked up twice"

    only_movement = observer.record(1, MOVES, popularity=False, skipped_ratio=0.25)
    assert only_movement.access == []
    assert only_movement.movement is not None
    assert only_movement.movement.skipped_ratio == 0.25
    assert np.isinf(only_movement.movement.movement_H).all(), "no probe step was made, so no movement is known"
    observer.close()


def test_handing_out_movement_starts_measuring_again() -> None:
    observer = monitored_observer()
    work = batch_of(1, 2)
    work.popular_B[:] = True
    observer.keep_popular_samples(work)
    assert observer.state()["probes"] == 1
    first = observer.record(1, MOVES, skipped_ratio=0.0).movement
    again = observer.record(1, MOVES, skipped_ratio=0.0).movement
    assert first is not None
    assert again is not None
    assert (len(first.sample_offsets), len(again.sample_offsets)) == (3, 1)
    assert observer.state()["probes"] == 0
    observer.close()


def test_samples_kept_before_rows_moved_are_forgotten() -> None:
    """A row of theirs may be cold by then, and have no movement."""
    observer = monitored_observer()
    work = batch_of(1, 2)
    work.popular_B[:] = True
    observer.keep_popular_samples(work)
    assert len(observer.state()["sample_lengths"]) == 2
    observer.end_window(0.5, Migration(promote=np.array([4]), demote=np.array([1])))
    assert len(observer.state()["sample_lengths"]) == 0
    observer.close()


@pytest.mark.parametrize(
    ("key", "number", "rows"),
    [("sample_rows", 9, None), ("sample_rows", 10**6, "rows of kept samples"), ("sample_slots", 4, "slots of kept samples"),
     ("sample_slots", 1, None)],
)  # fmt: skip
def test_samples_are_restored_by_row_or_by_slot(key: str, number: int, rows: str | None) -> None:
    observer = monitored_observer()
    saved = observer.state() | {key: np.array([number]), "sample_lengths": np.array([1])}
    if key == "sample_slots":
        del saved["sample_rows"]
    if rows:
        with pytest.raises(CheckpointError, match=rows):
            observer.set_state(Saved(saved))
    else:
        observer.set_state(Saved(saved))
        assert observer.state()["sample_rows"].tolist() == [number]
    observer.close()

"""Batches classified on a simulated device whose memory ends at the wrong moment, and batches that do not fit their slot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numba.core.errors import TypingError

from adaptive_rec.batch import Batch, FeatureSpec, TableSpec
from adaptive_rec.embedding.staged.classified import ClassifiedOnDevice
from adaptive_rec.embedding.staged.classifier import Classifier
from adaptive_rec.embedding.staged.ring import StagingRing
from adaptive_rec.placement import Placement, RowSpace
from tests.doubles.late_streams import LateStreams

ROWS = 40


def made() -> tuple[RowSpace, LateStreams, Classifier]:
    space, streams = RowSpace.of((TableSpec("t", ROWS, 4),), (FeatureSpec("f", 0),)), LateStreams(3)
    return space, streams, Classifier(space, streams, torch.float32)


def batch_of(ids: list[int]) -> Batch:
    samples = len(ids)
    dense, offsets = np.zeros((samples, 1), np.float32), np.arange(samples + 1, dtype=np.int32)
    return Batch(dense, np.array(ids, dtype=np.int64), offsets, np.zeros(samples, np.float32))


def cold_rows(space: RowSpace, classifier: Classifier, ids: list[int], placement: Placement) -> list[int]:
    work = ClassifiedOnDevice(batch_of(ids), space)
    classifier.place(work, placement, None)
    assert work.places is not None
    found = work.places.cold_C.tolist()
    work.drop_lists(None)
    return found


def test_rows_move_where_no_memory_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the host would know their new slots, and the device the old ones."""
    space, streams, classifier = made()
    slots = np.full(ROWS, -1, np.int32)
    assert cold_rows(space, classifier, [3, 5, 9], Placement(1, slots)) == [3, 5, 9]

    def none_left(nbytes: int) -> torch.Tensor:
        raise torch.OutOfMemoryError("no memory is left")

    monkeypatch.setattr(streams, "allocate", none_left)
    for version, hot in enumerate(([3, 9], [5], list(range(ROWS))), start=2):
        slots[:] = -1
        slots[hot] = np.arange(len(hot))
        classifier.move(np.arange(ROWS), slots)
        expected = [row for row in (3, 5, 9) if row not in hot]
        assert cold_rows(space, classifier, [3, 5, 9], Placement(version, slots)) == expected


def test_more_and_fewer_cold_rows_than_the_last_batch_had() -> None:
    space, _, classifier = made()
    placement = Placement(1, np.full(ROWS, -1, np.int32))
    for samples in (1, 40, 2, 3, 30, 1, 40):
        ids = list(range(samples))
        assert cold_rows(space, classifier, ids, placement) == ids


def test_a_batch_that_cannot_be_packed_leaves_no_slot_taken() -> None:
    space, _, classifier = made()
    batch = batch_of([1, 2, 3, 4])
    work = ClassifiedOnDevice(replace(batch, labels_B=batch.labels_B.reshape(4, 1)), space)
    for _ in range(3):
        with pytest.raises(TypingError, match="pack_inputs"):
            classifier.place(work, Placement(1, np.full(ROWS, -1, np.int32)), None)
    assert classifier.ring.slots == 1


class Recorded(LateStreams):
    """Counts recordings, how often they ran, and the bytes of copies up."""

    def __init__(self) -> None:
        super().__init__(5)
        self.recordings, self.replays, self.sent = 0, 0, list[int]()

    def record_aside(self, work: Callable[[], object]) -> Callable[[], object]:
        self.recordings += 1

        def replay() -> None:
            self.replays += 1
            work()

        return replay

    def upload(self, to_device: torch.Tensor, from_host: torch.Tensor, after: Any, urgent: bool = False) -> Any:
        self.sent.append(to_device.nbytes)
        return super().upload(to_device, from_host, after, urgent)


def test_batches_of_one_size_are_recorded_once_and_send_offsets_once() -> None:
    """A batch of another size, or with other bags, has work of its own."""
    space, _, _ = made()
    streams = Recorded()
    classifier = Classifier(space, streams, torch.float32)
    slots = np.full(ROWS, -1, np.int32)
    slots[[3, 7]] = 0, 1
    classifier.move(np.array([3, 7]), slots)
    placement, random = Placement(1, slots), np.random.default_rng(2)
    streams.sent.clear()

    def check(bags: list[list[int]]) -> None:
        lengths, ids = [len(bag) for bag in bags], [row for bag in bags for row in bag]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        batch = replace(batch_of([0] * len(bags)), ids_N=np.array(ids, np.int64), offsets=offsets)
        work = ClassifiedOnDevice(batch, space)
        classifier.place(work, placement, None)
        classifier.record()
        assert work.places is not None
        cold = [row for row in dict.fromkeys(ids) if row not in (3, 7)]
        assert work.places.cold_C.tolist() == cold
        assert work.popular_B.tolist() == [set(bag) <= {3, 7} for bag in bags]
        assert work.inverse_N.tolist() == [list(dict.fromkeys(ids)).index(row) for row in ids]
        work.drop_lists(None)

    for _ in range(6):
        check([[row] for row in random.integers(0, ROWS, 20).tolist()])
    assert (streams.recordings, streams.replays) == (1, 4)
    assert streams.sent[0] > streams.sent[1] == streams.sent[5]
    check([[3, 7], *([row] for row in random.integers(0, ROWS, 18).tolist()), []])  # as many lookups
    check([[3], [4]])
    assert (streams.recordings, streams.replays) == (1, 4)
    for length in (2, 3, 4, 2, 3, 4):
        check([random.integers(0, ROWS, length).tolist(), [3]])
    assert streams.recordings == 1
    for _ in range(3):
        check([[row] for row in random.integers(0, ROWS, 20).tolist()])
    assert (streams.recordings, streams.replays) == (2, 5)
    for samples in (20, 7, 20, 20, 7, 3, 20):  # as with the last batch of each epoch
        check([[row] for row in random.integers(0, ROWS, samples).tolist()])
    for bags in ([[1], [2]], [[1, 2], []], [[5], [6]], [[], [3, 7]], [[7], [3]]):  # as many lookups
        check(bags)


def test_tensors_that_come_down_together_lie_behind_each_other_wide_types_first() -> None:
    streams = LateStreams(4)
    slot = StagingRing(streams).take(0, 64)
    wide, narrow = torch.arange(3, dtype=torch.int64), torch.arange(5, dtype=torch.int32)
    streams.host_waits(slot.bring_aside([wide, narrow, narrow]))
    assert slot.bytes_pinned[:24].view(np.int64).tolist() == [0, 1, 2]
    assert slot.bytes_pinned[24:64].view(np.int32).tolist() == [0, 1, 2, 3, 4] * 2
    with pytest.raises(ValueError, match="wide types must come first, got .torch.int32, torch.int64."):
        slot.bring_aside([narrow, wide])


def test_memory_that_is_dropped_takes_its_recording_with_it() -> None:
    space, _, _ = made()
    streams = Recorded()
    classifier = Classifier(space, streams, torch.float32)
    placement = Placement(1, np.full(ROWS, -1, np.int32))
    for _ in range(2):
        for _ in range(4):
            assert cold_rows(space, classifier, [3, 5, 9], placement) == [3, 5, 9]
            classifier.record()
        classifier.ring.close()
    assert (streams.recordings, streams.replays) == (2, 4)

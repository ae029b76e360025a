"""Batches classified on a simulated device whose memory ends at the wrong moment, and batches that do not fit their slot."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from adaptive_rec.batch import Batch, FeatureSpec, TableSpec
from adaptive_rec.embedding.staged.classified import ClassifiedOnDevice
from adaptive_rec.embedding.staged.classifier import Classifier
from adaptive_rec.embedding.staged.late_streams import LateStreams
from adaptive_rec.placement import Placement, RowSpace

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
    found = work.places.cold_rows[0].tolist()
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
        with pytest.raises(ValueError, match="broadcast"):
            classifier.place(work, Placement(1, np.full(ROWS, -1, np.int32)), None)
    assert classifier.ring.slots == 1

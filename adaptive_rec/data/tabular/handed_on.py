"""Data that is followed by several processes: rank 0 reads what comes, and hands each batch on to the others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, Position, is_one_each, one_each
from adaptive_rec.data.source import Wrapped
from adaptive_rec.data.tabular.follow import FollowedSource, Pause
from adaptive_rec.errors import DataError, first_line
from adaptive_rec.system.group import Bytes, Group

NOTHING = np.empty(0, dtype=np.uint8)
"""The message that nothing has come yet; also what all ranks but 0 send."""
BATCH, END, FAILED = range(3)
"""Kinds of all other messages, their first whole number."""
HEADER = 88
"""Bytes of a batch's message before its arrays."""


class HandedOn(Wrapped):
    """A source that is followed, as each of several processes has it: rank 0 reads, and all ranks get its batches.

    So what has come, and where the stream ends, is decided in one place. The ranks' readers iterate together. While nothing
    comes, rank 0 says so again and again, as an operation of a group has a deadline.
    """

    def __init__(self, source: FollowedSource, group: Group) -> None:
        super().__init__(source)
        self._files, self._channel = source, group.fork()
        if group.rank == 0:
            source.wrap_pauses(lambda pause: partial(self._pause, pause))

    def train_batches(self, position: Position, batch_size: int) -> Iterator[Batch]:
        """Yield the batches that rank 0 reads. Raises on every rank what rank 0 meets."""
        if self._channel.rank:
            return self._received()
        return self._sent(self._files.train_batches(position, batch_size))

    def _sent(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        try:
            for batch in batches:
                self._send(encode_batch(batch))
                yield batch
        except Exception as error:
            text = np.frombuffer(first_line(error).encode(), dtype=np.uint8)
            self._send(_joined([FAILED], text))
            raise
        self._send(_joined([END]))

    def _received(self) -> Iterator[Batch]:
        while True:
            message = self._send(NOTHING)
            kind = message[:8].view(np.int64).tolist()
            if kind == [FAILED]:
                raise DataError(message[8:].tobytes().decode())
            if kind == [END]:
                return
            if kind:
                yield decode_batch(message)

    def _pause(self, pause: Pause, seconds: float) -> bool:
        """Tell the others that nothing has come, and wait for it as they do."""
        self._send(NOTHING)
        with self._channel.meter.waiting():
            return pause(seconds)

    def _send(self, message: Bytes) -> Bytes:
        """Return the message of rank 0, on every rank."""
        return self._channel.everyone(message)


def encode_batch(batch: Batch) -> Bytes:
    """Return a batch as the bytes of a message."""
    offsets = batch.offsets[:0] if is_one_each(batch.offsets) else batch.offsets
    beside = (batch.times_B, batch.groups_B, batch.weights_B)
    times_B, groups_B, weights_B = (np.empty(0) if array is None else array for array in beside)
    sizes = (*batch.dense_BX.shape, batch.lookups, len(offsets), len(times_B), len(groups_B))
    place = (batch.position.epoch, batch.position.seed, batch.position.offset)
    header = [BATCH, *sizes, *place, batch.malformed_rows]
    return _joined(header, batch.ids_N, offsets, times_B, groups_B, batch.dense_BX, batch.labels_B, weights_B)


def decode_batch(message: Bytes) -> Batch:
    """Return the batch of a message."""
    samples, dense, lookups, bounds, times, groups, *place, malformed = message[8:HEADER].view(np.int64).tolist()
    numbers, rest = np.split(message[HEADER:], [8 * (lookups + bounds + times + groups)])
    ids_N, offsets, times_B, groups_B = np.split(numbers.view(np.int64), np.cumsum([lookups, bounds, times]))
    dense_BX, labels_B, weights_B = np.split(rest.view(np.float32), np.cumsum([samples * dense, samples]))
    return Batch(
        dense_BX.reshape(samples, dense), ids_N, offsets if bounds else one_each(lookups), labels_B,
        Position(*place), malformed, times_B=times_B if times else None, groups_B=groups_B if groups else None,
        weights_B=weights_B if len(weights_B) else None,
    )  # fmt: skip


def _joined(header: list[int], *arrays: NDArray[np.generic]) -> Bytes:
    """Return whole numbers and arrays, one after the other, as bytes."""
    parts = [np.array(header, dtype=np.int64), *arrays]
    return np.concatenate([np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in parts])

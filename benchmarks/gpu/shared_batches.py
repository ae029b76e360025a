"""Batches that several processes read: a cell's process makes them once, for itself and for its rivals.

They lie in memory that has a file descriptor and no name (`memfd_create`), so nothing is left behind, however processes end.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, Position, is_one_each, one_each
from benchmarks.common.shapes import cores

ALIGN_BYTES = 64
NEVER_SET = ("times_B", "reads")
"""Of batches, as neither synthetic ones nor Criteo's have them."""


class Shelf:
    """Memory for batches, whose descriptor is passed on to other processes."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("batches")

    def fill(self, batches: list[Batch]) -> tuple[list[Batch], list[int]]:
        """Write batches; return them as they lie there, and where the table of contents lies (its first byte and its bytes)."""
        assert all(getattr(batch, name) is None for batch in batches for name in NEVER_SET)
        starts = np.cumsum([0, *(sum(_room(part) for part in _parts(batch)) for batch in batches)]).tolist()
        with ThreadPoolExecutor(cores()) as pool:
            table = list(pool.map(self._put, batches, starts[:-1]))
        words = json.dumps(table).encode()
        self._write(memoryview(words), starts[-1])
        contents = [starts[-1], len(words)]
        return taken(self.descriptor, contents), contents

    def _put(self, batch: Batch, start: int) -> list[int]:
        at = start
        for part in _parts(batch):
            self._write(part.reshape(-1).view(np.uint8).data, at)
            at += _room(part)
        size, dense = batch.dense_BX.shape
        return [start, size, dense, batch.lookups, 0 if is_one_each(batch.offsets) else len(batch.offsets)]

    def _write(self, data: memoryview, at: int) -> None:
        while data:
            done = os.pwrite(self.descriptor, data, at)
            data, at = data[done:], at + done


def _parts(batch: Batch) -> list[NDArray[Any]]:
    """The arrays in the order in which they lie. Offsets of bags with one id each are not written down."""
    offsets = [] if is_one_each(batch.offsets) else [batch.offsets]
    return [np.ascontiguousarray(part) for part in (batch.dense_BX, batch.labels_B, batch.ids_N, *offsets)]


def _room(part: NDArray[Any]) -> int:
    return -(-part.nbytes // ALIGN_BYTES) * ALIGN_BYTES


def taken(descriptor: int, contents: list[int]) -> list[Batch]:
    """The batches in the memory behind a descriptor, not copied."""
    start, size = contents
    table = json.loads(os.pread(descriptor, size, start))
    memory = mmap.mmap(descriptor, start + size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    return [_batch(memory, *place) for place in table]


def _batch(memory: mmap.mmap, start: int, size: int, dense: int, lookups: int, offsets: int) -> Batch:
    at = start

    def array(dtype: type, count: int) -> NDArray[Any]:
        nonlocal at
        found: NDArray[Any] = np.frombuffer(memory, dtype, count, at)
        at += _room(found)
        return found

    dense_BX = array(np.float32, size * dense).reshape(size, dense)
    labels_B, ids_N = array(np.float32, size), array(np.int64, lookups)
    return Batch(dense_BX, ids_N, array(np.int64, offsets) if offsets else one_each(lookups), labels_B, Position())


class Awaited(Sequence[Batch]):
    """Batches that another process is still making: they are waited for when they are first looked at."""

    def __init__(self, wait: Callable[[], list[Batch]]) -> None:
        self._wait, self._batches = wait, list[Batch]()

    def _there(self) -> list[Batch]:
        if not self._batches:
            self._batches = self._wait()
        return self._batches

    @overload
    def __getitem__(self, place: int) -> Batch: ...
    @overload
    def __getitem__(self, place: slice) -> list[Batch]: ...
    def __getitem__(self, place: int | slice) -> Batch | list[Batch]:
        return self._there()[place]

    def __len__(self) -> int:
        return len(self._there())

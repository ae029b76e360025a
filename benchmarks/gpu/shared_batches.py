"""Batches that several processes read: a cell's process makes them once, for itself and for its rivals.

They lie in memory that has a file descriptor and no name (`memfd_create`), so nothing is left behind, however processes end.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import overload

import numpy as np

from adaptive_rec.batch import Batch, Position, is_one_each, one_each
from benchmarks.common.shapes import cores

ALIGN_BYTES = 64


class Shelf:
    """Memory for batches, whose descriptor is passed on to other processes."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("batches")

    def fill(self, batches: list[Batch]) -> tuple[list[Batch], list[int]]:
        """Write batches; return them as they lie there, and where the table of contents lies (its first byte and its bytes).
        Offsets of bags with one id each are not written down."""
        arrays: list[pickle.PickleBuffer] = []
        parts = [(of.dense_BX, of.labels_B, of.ids_N, None if is_one_each(of.offsets) else of.offsets) for of in batches]
        pickled = pickle.dumps(parts, protocol=5, buffer_callback=arrays.append)
        data = [array.raw() for array in arrays]
        starts = np.cumsum([0, *(-(-len(part) // ALIGN_BYTES) * ALIGN_BYTES for part in data)]).tolist()
        with ThreadPoolExecutor(cores()) as pool:
            list(pool.map(self._write, data, starts))
        words = pickle.dumps(([(start, len(part)) for start, part in zip(starts, data, strict=False)], pickled))
        self._write(memoryview(words), starts[-1])
        contents = [starts[-1], len(words)]
        return taken(self.descriptor, contents), contents

    def _write(self, data: memoryview, at: int) -> None:
        while data:
            done = os.pwrite(self.descriptor, data, at)
            data, at = data[done:], at + done


def taken(descriptor: int, contents: list[int]) -> list[Batch]:
    """The batches in the memory behind a descriptor, not copied."""
    start, size = contents
    places, pickled = pickle.loads(os.pread(descriptor, size, start))  # noqa: S301
    memory = memoryview(mmap.mmap(descriptor, start + size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE))
    buffers = [memory[first : first + count] for first, count in places]
    parts = pickle.loads(pickled, buffers=buffers)  # noqa: S301
    return [
        Batch(dense_BX, ids_N, one_each(len(ids_N)) if offsets is None else offsets, labels_B, Position())
        for dense_BX, labels_B, ids_N, offsets in parts
    ]


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

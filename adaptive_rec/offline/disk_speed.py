"""How quickly the disk under a folder reads rows and writes segments, measured with the code of a run.

Files are written like segments, one after the other, each synced. Then rows are read like those of batches. Where the file system
cannot leave its cache out, what that keeps of the files is dropped before. The files have no name, so nothing remains of them,
however the measurement ends.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.embedding.disk.reading import read_places
from adaptive_rec.embedding.disk.segment import page_layout
from adaptive_rec.kernels import pages as kernels
from adaptive_rec.kernels.aligned import BLOCK_BYTES, zeros
from adaptive_rec.system.direct_files import pass_cache_by

LAYOUT = page_layout(row_bytes=64, state_bytes=4)
"""Pages of rows of 16 components with row-wise optimizer state: one block of the disk, as for most sizes of rows."""

TRIED_BYTES, FILE_BYTES = 256 << 20, 16 << 20
"""Bytes of all files, and of each."""

PART_OF_ROOM = 0.5
"""Share of the free room that the files may take."""

SECONDS = 3.0
"""Time after which no further file is written, and no further rows are read."""

AT_A_TIME = 1024
"""Rows that are read together."""


@dataclass(frozen=True)
class DiskSpeed:
    """What was measured. Zero bytes or rows: there was too little room for a file."""

    written_bytes: int = 0
    write_seconds: float = 0.0
    """Syncs included."""
    rows_read: int = 0
    """Each from a page of its own."""
    read_seconds: float = 0.0
    read_cpu_seconds: float = 0.0
    """Processor time of reading."""

    @property
    def write_bytes_per_second(self) -> float:
        return self.written_bytes / max(self.write_seconds, 1e-9)

    @property
    def rows_per_second(self) -> float:
        return self.rows_read / max(self.read_seconds, 1e-9)


def measure_disk(folder: Path, size_bytes: int = TRIED_BYTES) -> DiskSpeed:
    """Measure with files of so many bytes, or of what there is room for, in a folder that exists. Takes a few seconds. Raises
    OSError where files cannot be written or read."""
    room = os.statvfs(folder)
    size = min(size_bytes, int(PART_OF_ROOM * room.f_frsize * room.f_bavail))
    pages = min(FILE_BYTES, size) // LAYOUT.page_bytes
    if not pages:
        return DiskSpeed()
    with ExitStack() as stack:
        descriptors: list[int] = []
        write_seconds, content = 0.0, _filled(pages)
        while (len(descriptors) + 1) * content.nbytes <= size and write_seconds < SECONDS:
            file = stack.enter_context(tempfile.TemporaryFile(dir=folder, buffering=0))
            descriptors.append(file.fileno())
            kernels.seal_pages(LAYOUT, len(descriptors) - 1, 0, pages, LAYOUT.rows, content)
            write_seconds += _write(file.fileno(), content)
        rows_read, read_seconds, cpu_seconds = _read(descriptors, pages)
    return DiskSpeed(len(descriptors) * content.nbytes, write_seconds, rows_read, read_seconds, cpu_seconds)


def _filled(pages: int) -> NDArray[Any]:
    """Return pages of random rows, so that no file system makes them smaller; row ``n`` stands at place ``n``."""
    content: NDArray[Any] = zeros((pages * LAYOUT.page_bytes,), np.uint8, BLOCK_BYTES)
    rows = pages * LAYOUT.rows
    random = np.random.default_rng(0)
    weights, state = (random.integers(0, 256, (rows, size), dtype=np.uint8) for size in (LAYOUT.row_bytes, LAYOUT.state_bytes))
    kernels.pack_rows(LAYOUT, 0, np.arange(rows), np.arange(rows), weights, state, content)
    return content


def _write(descriptor: int, content: NDArray[Any]) -> float:
    """Write a file and have it on the disk. Returns the seconds that took."""
    started, done, data = time.perf_counter(), 0, memoryview(content.data)
    pass_cache_by(descriptor)
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], done)
    os.fdatasync(descriptor)
    seconds = time.perf_counter() - started
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    return seconds


def _read(descriptors: list[int], pages: int) -> tuple[int, float, float]:
    """Read one row of each page, in random order, until time is up. Returns rows, seconds, and processor seconds."""
    weights, state = (np.empty((AT_A_TIME, size), dtype=np.uint8) for size in (LAYOUT.row_bytes, LAYOUT.state_bytes))
    done, began, cpu = 0, 0.0, 0.0
    checked_PX = np.zeros((len(descriptors), pages), np.bool_)
    for places in _chunks(np.array(descriptors, dtype=np.int32), pages):
        if done == 0:  # the first call compiles
            _rows(_of(places, 1), checked_PX, weights, state)
            began, cpu = time.perf_counter(), time.thread_time()
        _rows(places, checked_PX, weights, state)
        done += len(places.row_C)
        if time.perf_counter() - began > SECONDS:
            break
    return done, time.perf_counter() - began, time.thread_time() - cpu


def _chunks(descriptor_P: NDArray[Any], pages: int) -> Iterator[kernels.RowPlaces]:
    """Yield the places of a row of every page of all files, as many as are read together."""
    order = np.random.default_rng(1).permutation(len(descriptor_P) * pages)
    for first in range(0, len(order), AT_A_TIME):
        file_C, page_C = np.divmod(np.sort(order[first : first + AT_A_TIME]), pages)
        place_C = page_C % LAYOUT.rows
        yield kernels.RowPlaces(
            descriptor_P[file_C], file_C, page_C, place_C, page_C * LAYOUT.rows + place_C, np.arange(len(page_C)), file_C
        )


def _of(places: kernels.RowPlaces, rows: int) -> kernels.RowPlaces:
    return kernels.RowPlaces(*(array[:rows] for array in places))


def _rows(
    places: kernels.RowPlaces, checked_PX: NDArray[np.bool_], weights: NDArray[Any], state: NDArray[Any]
) -> None:  # fmt: skip
    done, what = read_places(LAYOUT, places, checked_PX, (weights, state))
    if what != kernels.WHOLE:
        raise OSError(f"row {int(places.row_C[done])} of a file just written cannot be read")

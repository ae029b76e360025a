"""Writes ``.npy`` files part by part, by plain writes: these raise on a full disk, where a memory map would kill the process."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.errors import DataError
from adaptive_rec.system.durable import sync_folder

BLOCK_ROWS = 1 << 14


class NpyWriter:
    """A writer of an array whose number of rows is known only at the end. It is a context; until it ends the file is no array."""

    def __init__(self, path: Path, dtype: str, columns: int | None) -> None:
        """`columns` of a row; None makes the array one-dimensional."""
        self._dtype, self._columns = np.dtype(dtype), columns
        self.rows = 0
        self._file = path.open("wb")
        self._file.write(npy_header(self._dtype, self._shape()))

    def append(self, rows: NDArray[Any]) -> None:
        """Add rows of the array's dtype and width."""
        if rows.dtype != self._dtype or rows.shape[1:] != self._shape()[1:]:
            raise DataError(
                f"rows of {self._file.name} must be {self._dtype} of {self._columns} columns, got {rows.dtype}, {rows.shape}"
            )
        self.rows += len(rows)
        self._file.write(np.ascontiguousarray(rows).data)

    def _shape(self) -> tuple[int, ...]:
        return (self.rows,) if self._columns is None else (self.rows, self._columns)

    def __enter__(self) -> NpyWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._file.seek(0)
            self._file.write(npy_header(self._dtype, self._shape()))
        self._file.close()


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the first bytes of a ``.npy`` file. Their length does not depend on the number of rows: NumPy leaves room for it."""
    buffer = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def write_sparse(
    ids_paths: list[Path], rows: int, path: Path, pool: Executor, workers: int, report: Callable[[int], None]
) -> None:
    """Write the ids of all columns without bags as one array with a row for each sample.

    `path` appears when all of it is on the disk; `report` gets the number of rows of each block.
    """
    unfinished = path.with_suffix(".unfinished")
    header = npy_header(np.dtype("<i4"), (rows, len(ids_paths)))

    def write_share(first: int, file: int) -> None:
        for start in range(first * BLOCK_ROWS, rows, workers * BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, rows)
            ids_BF = np.empty((stop - start, len(ids_paths)), dtype=np.int32)
            for f, ids_path in enumerate(ids_paths):  # read, not mapped: pages of a map would be memory of this process
                ids_BF[:, f] = np.fromfile(ids_path, "<i4", stop - start, offset=4 * start)
            write_at(file, ids_BF.reshape(-1).view(np.uint8).data, len(header) + ids_BF.itemsize * start * len(ids_paths))
            report(stop - start)

    with unfinished.open("wb", buffering=0) as file:
        write_at(file.fileno(), memoryview(header), 0)
        for share in [pool.submit(write_share, first, file.fileno()) for first in range(workers)]:
            share.result()
        os.fsync(file.fileno())
    unfinished.replace(path)
    sync_folder(path.parent)


def write_at(file: int, data: memoryview, place: int) -> None:
    """Write all of `data` at a place of a file."""
    while data:
        written = os.pwrite(file, data, place)
        data, place = data[written:], place + written

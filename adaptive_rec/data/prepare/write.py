"""Third stage of preparing: the ids of the columns without bags become one array with a row for each sample."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path

import numpy as np

from adaptive_rec.data.prepare.arrays import npy_header
from adaptive_rec.system.durable import sync_folder

BLOCK_ROWS = 1 << 14


def write_sparse(
    ids_paths: list[Path], rows: int, path: Path, pool: Executor, workers: int, told: Callable[[int], None]
) -> None:
    """Write the array of all columns to `path`, which appears when all of it is on the disk; `told` gets rows of each block."""
    unfinished = path.with_suffix(".unfinished")
    header = npy_header(np.dtype("<i4"), (rows, len(ids_paths)))
    columns = [np.memmap(ids_path, "<i4", "r", shape=(rows,)) for ids_path in ids_paths]

    def write_share(first: int, file: int) -> None:
        for start in range(first * BLOCK_ROWS, rows, workers * BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, rows)
            ids_BF = np.empty((stop - start, len(columns)), dtype=np.int32)
            for f, column in enumerate(columns):
                ids_BF[:, f] = column[start:stop]
            write_at(file, ids_BF.reshape(-1).view(np.uint8).data, len(header) + ids_BF.itemsize * start * len(columns))
            told(stop - start)

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

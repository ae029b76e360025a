"""The first values of rows, and files that are on the disk: what runs of ours and rivals have in common."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import TableSpec
from adaptive_rec.embedding.host import first_bound
from adaptive_rec.kernels.fill import fill_uniform

CHUNK_ROWS = 1 << 18


def first_rows(seed: int, table: int, spec: TableSpec) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield the first values of a table's rows, those of a run of ours, in chunks with the number of their first row."""
    for first in range(0, spec.rows, CHUNK_ROWS):
        weights = np.empty((min(CHUNK_ROWS, spec.rows - first), spec.dim), np.float32)
        fill_uniform(np.uint64(seed), table, first_bound(spec.rows), first, weights)
        yield first, weights


def sync_files(folder: Path) -> None:
    """Return when all files of a folder are on the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fdatasync(descriptor)
            os.close(descriptor)

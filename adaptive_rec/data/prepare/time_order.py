"""The order of a folder's rows by their times, where that is another one than the rows'."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.prepare.arrays import NpyWriter
from adaptive_rec.errors import DataError
from adaptive_rec.system.durable import sync_files, sync_folder
from adaptive_rec.system.host_memory import available_bytes
from adaptive_rec.units import size

TIME_ORDER = "time_order.npy"
"""Rows (rows,) int64 in order of time, those of one time in their own order."""
SORT_BYTES_PER_ROW = 4 * 8
"""Memory that sorting takes: times, order, and what NumPy holds besides."""


def write_time_order(folder: Path, times: Sequence[Path], rows: int) -> bool:
    """Write the order of rows by their times, which lie in files one after another. Returns whether there is such a file: not
    where rows are in order. Raises DataError where memory is too small."""
    path = folder / TIME_ORDER
    if path.exists():
        return True
    mapped = [np.load(each, mmap_mode="r", allow_pickle=False) for each in times]
    if are_sorted(mapped):
        return False
    needed, available = SORT_BYTES_PER_ROW * rows, available_bytes()
    if needed > available:
        raise DataError(
            f"rows that are not in order of time must be sorted in memory: {rows:,} of them take {size(needed)}, "
            f"{size(available)} are available; sort the files by time, or take the key time out of the schema"
        )
    draft = path.with_suffix(".unfinished")
    with NpyWriter(draft, "<i8", None) as writer:
        writer.append(np.argsort(np.concatenate(mapped), kind="stable").astype(np.int64))
    sync_files([draft])
    draft.rename(path)
    sync_folder(folder)
    return True


def are_sorted(parts: Sequence[NDArray[np.int64]], rows: int = 1 << 20) -> bool:
    """Return whether times, in parts one after another, never go back. Some rows at a time are in memory."""
    latest: int | None = None
    for part in parts:
        for start in range(0, len(part), rows):
            times_B = np.asarray(part[start : start + rows])
            if (latest is not None and times_B[0] < latest) or (np.diff(times_B) < 0).any():
                return False
            latest = int(times_B[-1])
    return True

"""What a manifest says of rows on a disk, and the same as the rest of the program has it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from adaptive_rec.checkpoint.manifest import DiskEntry, DiskPool, Manifest
from adaptive_rec.checkpoint.safetensors_file import DTYPES, PATTERNS
from adaptive_rec.embedding.disk.saved_segments import SavedLog, SavedPool, SegmentEntry

TYPES = {dtype: name for name, dtype in DTYPES.items() if name not in PATTERNS.values()} | PATTERNS
"""The format's types of arrays; 16-bit floats are bit patterns."""

_ARRAY_TYPES = DTYPES | {name: dtype for dtype, name in PATTERNS.items()}


def disk_entry(saved: SavedLog, generations: Path, home_T: tuple[int, ...]) -> DiskEntry:
    """Return what a manifest says of rows on a disk. `generations` is the folder of the checkpoints."""
    folder, run = saved.folder.resolve(), generations.resolve().parent
    inside = folder.is_relative_to(run)
    pools = (
        DiskPool(
            first_row=pool.first_row,
            rows=pool.rows,
            weight=TYPES[pool.weights.dtype],
            dim=pool.weights.shape[1],
            optimizer_state=TYPES[pool.state.dtype],
            width=pool.state.shape[1],
            page_bytes=pool.page_bytes,
            page_rows=pool.page_rows,
            segment_pages=pool.segment_pages,
            segments=pool.segments,
        )
        for pool in saved.pools
    )
    return DiskEntry(folder=os.path.relpath(folder, run) if inside else str(folder), pools=tuple(pools), homes=home_T)


def saved_logs(manifest: Manifest, generation: Path) -> list[SavedLog]:
    """Return the rows on a disk that the manifest of a generation names, those of each rank; nothing where shards have them."""
    return [_saved_log(entry, generation) for entry in manifest.disk or ()]


def folder_of(logs: list[SavedLog]) -> Path:
    """Return the folder of the rows of all ranks."""
    return logs[0].folder if len(logs) == 1 else logs[0].folder.parent


def _saved_log(entry: DiskEntry, generation: Path) -> SavedLog:
    pools = (
        SavedPool(
            pool.first_row, pool.rows, np.empty((0, pool.dim), _ARRAY_TYPES[pool.weight]),
            np.empty((0, pool.width), _ARRAY_TYPES[pool.optimizer_state]), pool.page_bytes, pool.page_rows,
            pool.segment_pages, tuple(SegmentEntry(*segment) for segment in pool.segments),
        )
        for pool in entry.pools
    )  # fmt: skip
    return SavedLog(entry.path(generation), tuple(pools), entry.homes)

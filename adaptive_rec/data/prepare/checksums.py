"""Checks of a prepared folder, checksums above all, and how far each stage of preparing or checking it is."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Literal

from adaptive_rec.data.prepare.meta import Meta
from adaptive_rec.data.prepare.place import META
from adaptive_rec.data.prepared_arrays import FolderArrays
from adaptive_rec.errors import DataError
from adaptive_rec.units import counted

HASH_CHUNK_BYTES = 4 << 20
CHECKED_ROWS = 1 << 16
"""Rows that are read at a time to check their values."""


@dataclass(frozen=True)
class StageProgress:
    """How far a stage is."""

    stage: Literal["waiting", "reading", "numbering", "writing", "checksums", "checking"]
    what: str
    done_ratio: float
    rows: int
    """Rows read so far without the bad ones."""


Report = Callable[[StageProgress], None]
"""Is called with the progress, from any thread."""


def verify_checksums(folder: Path, meta: Meta, report: Report) -> None:
    """Open the arrays of a folder as training does, and compute every checksum again. Where `meta.json` has no checksum of its
    own, also check all values by its table sizes, as training does when it reads them. Raises DataError for the first fault."""
    arrays = FolderArrays(folder, meta, tuple(column.cardinality for column in meta.columns))
    files = list(meta.array_files())
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), "verify") as pool:
        paths = [folder / file.name for file in files]
        what = counted(len(files), "file")
        sums = checksums(paths, pool, lambda ratio: report(StageProgress("checksums", what, ratio, meta.rows)))
    for path, file, found in zip(paths, files, sums, strict=True):
        if found != file.sha256:
            raise DataError(f"{path} must have the SHA-256 {file.sha256}, as {META} says, got {found}")
    if meta.meta_sha256 is None:
        for start in range(0, meta.rows, CHECKED_ROWS):
            arrays.read(start, min(start + CHECKED_ROWS, meta.rows))
            report(StageProgress("checking", "values", min(1.0, (start + CHECKED_ROWS) / meta.rows), meta.rows))


def checksums(paths: list[Path], pool: ThreadPoolExecutor, report: Callable[[float], None]) -> list[str]:
    """Return the SHA-256 of each file; several are read at a time."""
    add = counter(sum(path.stat().st_size for path in paths))
    return list(pool.map(lambda path: sha256_of(path, lambda read_bytes: report(add(read_bytes))), paths))


def sha256_of(path: Path, report: Callable[[int], None]) -> str:
    """Return the SHA-256 of a file; `report` gets the number of bytes of each chunk read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(HASH_CHUNK_BYTES):
            digest.update(chunk)
            report(len(chunk))
    return digest.hexdigest()


def counter(total: int) -> Callable[[int], float]:
    """Return a function that adds up the amounts it is given, from any thread, and returns their share of `total`."""
    lock, done = Lock(), 0

    def add(amount: int) -> float:
        nonlocal done
        with lock:
            done += amount
            return min(1.0, done / max(1, total))

    return add

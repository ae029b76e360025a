"""Checksums of a prepared folder, and how far each stage of preparing it is."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Literal

from adaptive_rec.data.prepare.meta import META, Meta
from adaptive_rec.errors import DataError

HASH_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True)
class StageProgress:
    """How far a stage is."""

    stage: Literal["reading", "numbering", "writing", "checksums"]
    what: str
    done_ratio: float
    rows: int
    """Rows read so far without the bad ones."""


Report = Callable[[StageProgress], None]
"""Is called with the progress, from any thread."""


def verify(folder: Path, meta: Meta, report: Report) -> None:
    """Compute every checksum of a folder again; raise DataError for the first file that differs from `meta.json`."""
    files = list(meta.array_files())
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), "verify") as pool:
        paths = [folder / file.name for file in files]
        what = f"{len(files)} files"
        sums = checksums(paths, pool, lambda ratio: report(StageProgress("checksums", what, ratio, meta.rows)))
    for path, file, found in zip(paths, files, sums, strict=True):
        if found != file.sha256:
            raise DataError(f"{path} must have the SHA-256 {file.sha256}, as {META} says, got {found}")


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

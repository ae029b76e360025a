"""Whether a prepared folder is as it was made: every checksum computed again."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from adaptive_rec.data.prepare.meta import META, Meta
from adaptive_rec.data.prepare.progress import StageProgress, checksums
from adaptive_rec.errors import DataError


def verify(folder: Path, meta: Meta, told: Callable[[StageProgress], None]) -> None:
    """Raise DataError for the first file that is not what `meta.json` says."""
    files = list(meta.array_files())
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), "verify") as pool:
        paths = [folder / file.name for file in files]
        what = f"{len(files)} files"
        sums = checksums(paths, pool, lambda ratio: told(StageProgress("checksums", what, ratio, meta.rows)))
    for path, file, found in zip(paths, files, sums, strict=True):
        if found != file.sha256:
            raise DataError(f"{path} must have the SHA-256 {file.sha256}, as {META} says, got {found}")

"""Kept rows of raw ids that have left (`embedding/disk/kept_rows.py`) in a generation: files ``kept-NNNNN.safetensors``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from adaptive_rec.checkpoint.files import Files
from adaptive_rec.checkpoint.generation import read_manifest
from adaptive_rec.checkpoint.safetensors_file import ArraysFile, array_type
from adaptive_rec.embedding.shard_arrays import OPTIMIZER_STATE, ROW, WEIGHT
from adaptive_rec.errors import CheckpointError, DiskError

if TYPE_CHECKING:
    from adaptive_rec.embedding.disk.kept_rows import KeptRows

_NAME = re.compile(r"kept-[0-9]{5,9}\.safetensors")


def kept_name(number: int) -> str:
    return f"kept-{number:05d}.safetensors"


def set_kept_rows(kept: KeptRows, checkpoint: Path, files: Files) -> None:
    """Keep the rows that a generation has kept. Raises CheckpointError."""
    for name in sorted(entry.name for entry in read_manifest(files, checkpoint).files if _NAME.fullmatch(entry.name)):
        file = ArraysFile(files, checkpoint / name)
        if not {ROW, WEIGHT, OPTIMIZER_STATE} <= file.arrays.keys():
            raise CheckpointError(
                f"{name} must have the arrays {ROW}, {WEIGHT} and {OPTIMIZER_STATE}, got {sorted(file.arrays)}"
            )
        row_N, *values = (
            file.rows(part).view(array_type(file.arrays[part])) for part in (ROW, WEIGHT, OPTIMIZER_STATE)
        )
        if row_N.dtype != np.int64 or not len(row_N) or not 0 <= row_N.min() <= row_N.max() < kept.rows:
            raise CheckpointError(f"rows in {name} must be numbers in [0, {kept.rows})")
        for part, array, like in zip((WEIGHT, OPTIMIZER_STATE), values, kept.types(int(row_N[0])), strict=True):
            if (len(array), *array.shape[1:], array.dtype) != (len(row_N), *like.shape[1:], like.dtype):
                rule = f"{len(row_N)} rows of {list(like.shape[1:])} {like.dtype}"
                raise CheckpointError(f"{part} in {name} must be {rule}, got {list(array.shape)} {array.dtype}")
        try:
            kept.set_rows(row_N, (values[0], values[1]))
        except DiskError as error:
            raise CheckpointError(str(error)) from None

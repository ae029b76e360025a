"""The state that a rank has saved, without the rows. Loads nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from adaptive_rec.checkpoint.files import Files
from adaptive_rec.checkpoint.flatten import unflatten
from adaptive_rec.checkpoint.generation import read_json_file
from adaptive_rec.checkpoint.rows import state_file_names
from adaptive_rec.checkpoint.safetensors_file import ArraysFile, array_type
from adaptive_rec.errors import CheckpointError
from adaptive_rec.saved import Saved

DENSE = "dense.safetensors"
"""File of the dense part and its optimizer, which rank 0 has saved."""


def read_values(checkpoint: Path, files: Files, rank: int = 0) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Read a rank's ``state.json``. Returns the state, the description of its run, and how many ranks have saved theirs."""
    path = checkpoint / state_file_names(rank)[0]
    found = read_json_file(files, path)
    state, run = (found.get("state"), found.get("run")) if isinstance(found, dict) else (None, None)
    if not isinstance(state, dict) or not isinstance(run, dict):
        raise CheckpointError(f"{path} must have parts state and run")
    ranks = found.get("ranks", 1)
    if not isinstance(ranks, int) or ranks < 1:
        raise CheckpointError(f"ranks in {path} must be a whole number from 1 on, got {ranks}")
    return state, run, ranks


def saved_by(checkpoint: Path, rank: int, files: Files) -> Saved:
    """Return the state that a rank has saved."""
    values, _, _ = read_values(checkpoint, files, rank)
    return Saved(unflatten(values, all_arrays(ArraysFile(files, checkpoint / state_file_names(rank)[1]))))


def all_arrays(file: ArraysFile) -> dict[str, NDArray[Any]]:
    """Return copies of all arrays of a file."""
    return {name: file.rows(name).view(array_type(stored)).copy() for name, stored in file.arrays.items()}

"""The columns of a user's own files, as a checkpoint has them for programs that score other files. Loads nothing heavy."""

from __future__ import annotations

from pathlib import Path

from adaptive_rec.checkpoint.files import DISK, Files
from adaptive_rec.checkpoint.flatten import unflatten
from adaptive_rec.checkpoint.rows import state_file_names
from adaptive_rec.checkpoint.safetensors_file import ArraysFile
from adaptive_rec.checkpoint.saved_state import read_values
from adaptive_rec.data.tabular.trained import TrainedColumns
from adaptive_rec.saved import Saved

COLUMNS = "columns"


def saved_columns(checkpoint: Path, files: Files = DISK) -> TrainedColumns | None:
    """Return the columns that a run has read by raw keys; None where it has read no such files, or the checkpoint is of a version
    that kept none. Raises CheckpointError where it is damaged."""
    state, _, _ = read_values(checkpoint, files)
    if state.get(COLUMNS) is None:
        return None
    file = ArraysFile(files, checkpoint / state_file_names(0)[1])
    arrays = {name: file.rows(name) for name in file.arrays if name.startswith(f"{COLUMNS}/")}
    return TrainedColumns.saved(Saved(unflatten({COLUMNS: state[COLUMNS]}, arrays)).part(COLUMNS))

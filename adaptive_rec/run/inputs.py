"""What can be said of a run before torch is loaded, which takes seconds."""

from __future__ import annotations

import os
from pathlib import Path

from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.generation import generations, names_in
from adaptive_rec.config.tree import load_config
from adaptive_rec.data.prepare.meta import META
from adaptive_rec.errors import UsageError


def has_checkpoint(run: Path) -> bool:
    """Whether a run directory holds a checkpoint, whole or not."""
    return (run / "checkpoints").is_dir() and bool(generations(names_in(DISK, run / "checkpoints")))


def check_trained(run: Path) -> None:
    """Raise UsageError unless there is a run with a checkpoint."""
    if not run.is_dir():
        raise UsageError(f"RUN must be a run directory, {run} {'is a file' if run.exists() else 'does not exist'}")
    if not (run / "config.toml").is_file():
        raise UsageError(f"RUN must be a run directory, {run} has no config.toml")
    if not has_checkpoint(run):
        raise UsageError(f"RUN must be a run directory with a checkpoint, {run} has none")


def check_own_data(run: Path) -> Path:
    """Return the folder that a run was trained on. Raises UsageError where its data has no names of columns, or is gone, or where
    its ids are no rows."""
    data = load_config(str(run / "config.toml"), {}).data
    if data.schema_file:
        rule = "new rows are scored, models are exported and neighbours are found where ids are rows"
        raise UsageError(f"{rule}, {run} has data.ids=raw")
    source = data.source
    if source == "synthetic" or os.path.isfile(source):
        raise of_other_data(run, source)
    if not os.path.isfile(Path(source) / META):
        raise UsageError(
            f"{run} needs the folder that it was trained on, which has the values of its ids, {source} is gone"
        )
    return Path(source)


def of_other_data(run: Path, source: str) -> UsageError:
    """Return the error for a run whose data has no names of columns."""
    return UsageError(
        "RUN must have been trained on CSV, TSV or Parquet files (train --data FILE --label COLUMN), whose columns have names "
        f"and values; {run} was trained on {'synthetic data' if source == 'synthetic' else source}"
    )

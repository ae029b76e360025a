"""What can be said of a run before torch is loaded, which takes seconds."""

from __future__ import annotations

import os
from pathlib import Path

from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.generation import generations, names_in
from adaptive_rec.config.data import DataConfig
from adaptive_rec.config.tree import load_config
from adaptive_rec.data.prepare.meta import load_meta
from adaptive_rec.data.prepare.place import is_prepared
from adaptive_rec.errors import UsageError
from adaptive_rec.run.directory import check_run


def has_checkpoint(run: Path) -> bool:
    """Whether a run directory holds a checkpoint, whole or not."""
    return (run / "checkpoints").is_dir() and bool(generations(names_in(DISK, run / "checkpoints")))


def check_trained(run: Path) -> None:
    """Raise UsageError unless there is a run with a checkpoint."""
    check_run(run)
    if not has_checkpoint(run):
        raise UsageError(f"RUN must be a run directory with a checkpoint, {run} has none", faq="not-a-run")


def check_own_data(run: Path) -> None:
    """Raise UsageError where a run's data does not say what ids stand for, or is gone. A checkpoint has the columns of files that
    were trained on by raw ids."""
    data = load_config(str(run / "config.toml"), {}).data
    if data.schema_file or reads_criteo(data):
        return
    if data.source == "synthetic":
        raise of_other_data(run, data.source)
    if not is_folder(data):
        raise UsageError(
            f"{run} needs the file or folder that it was trained on, which has the values of its ids, {data.source} is gone"
        )
    load_meta(Path(data.source)).check_has_values(Path(data.source))


def check_has_ids(run: Path) -> None:
    """Raise UsageError where rows cannot be found by values: data has no names of columns, or is gone. Raw ids of synthetic data
    and of a Criteo file are numbers themselves."""
    data = load_config(str(run / "config.toml"), {}).data
    if not (data.ids == "raw" and data.source == "synthetic"):
        check_own_data(run)


def reads_criteo(data: DataConfig) -> bool:
    """Return whether a run reads a Criteo file."""
    return not data.schema_file and os.path.isfile(data.source)


def is_folder(data: DataConfig) -> bool:
    """Return whether a run's data is a prepared folder."""
    return not data.schema_file and is_prepared(data.source)


def of_other_data(run: Path, source: str) -> UsageError:
    """Return the error for a run whose data has no names of columns."""
    return UsageError(
        "RUN must have been trained on CSV, TSV or Parquet files (train --data FILE --label COLUMN) or a Criteo file "
        "(train --data FILE), whose columns have names and values; "
        f"{run} was trained on {'synthetic data' if source == 'synthetic' else source}",
        faq="no-names-of-columns",
    )

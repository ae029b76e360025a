"""Where a run's cold rows lie on a disk, and whether they can."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.config.tree import Config
from adaptive_rec.embedding.disk.saved_segments import rank_folder, segment_files
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import ConfigError, UsageError
from adaptive_rec.policy import Policy
from adaptive_rec.runtime.run_options import RunOptions
from adaptive_rec.system.durable import make_folders
from adaptive_rec.system.group import Group
from adaptive_rec.units import exact_size, whole

if TYPE_CHECKING:
    from adaptive_rec.embedding.disk.kept_rows import KeptRows


def rows_folder(config: Config, options: RunOptions, group: Group) -> Path:
    """Make the folder of this rank's rows on the disk, where there must be none of another run, and return it. Raises
    UsageError."""
    path = place_of_rows(config, options)
    if path is None:
        raise ConfigError("run.disk must name a folder where run.host_memory is set and the run has no directory")
    try:
        make_folders(path)
        if segment_files(path) and path.resolve() not in options.own_rows:
            raise UsageError(f"run.disk must be a folder without rows of another run, {path} has some")
        if not group.is_alone:
            group.gather(np.zeros(1, np.int64))  # by now all have looked
            path = rank_folder(path, group.rank)
            make_folders(path)
    except OSError as error:
        raise UsageError(f"run.disk {path} cannot be used: {error.strerror}") from None
    return path


def make_kept_rows(config: Config, store: EmbeddingStore, options: RunOptions) -> KeptRows:
    """Make room on the disk for rows of raw ids that leave. Raises UsageError."""
    from adaptive_rec.embedding.disk.kept_rows import KeptRows
    from adaptive_rec.embedding.disk.scratch import ScratchFolder

    path = place_of_rows(config, options)
    if path is None:
        raise ConfigError("run.disk must name a folder where data.keep_evicted is set and the run has no directory")
    try:
        make_folders(path)
        folder = ScratchFolder(path, "kept-")
    except OSError as error:
        raise UsageError(f"run.disk {path} cannot be used: {error.strerror}") from None
    return KeptRows(store, config.data.keep_evicted, folder)


def place_of_rows(config: Config, options: RunOptions) -> Path | None:
    """Return the folder of all rows on the disk; None where a run without a directory names none."""
    return Path(config.run.disk) if config.run.disk else options.rows


def check_hot_rows(host_memory: int, policy: Policy, budget: int) -> None:
    """Raise ConfigError where hot rows on a CPU do not fit in the memory that rows may take. `budget`: their bytes."""
    if budget > host_memory:
        lowers = policy.budget_bytes(Knobs().changed({"hot_budget_bytes": 0}), budget) < budget
        remedy = "raise run.host_memory, lower knobs.hot_budget_bytes or" if lowers else "raise run.host_memory or"
        raise ConfigError(
            f"hot rows must fit in run.host_memory={exact_size(host_memory)}, policy {policy.name} wants "
            f"{whole(budget)} bytes for them; {remedy} take another policy",
            faq="hot-rows-and-host-memory",
        )

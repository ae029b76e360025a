"""Room on the disk for a run's checkpoints, looked at before it trains."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from adaptive_rec.errors import CheckpointError
from adaptive_rec.memory.plan import MemoryPlan
from adaptive_rec.memory.rows import COPIES, TWIN_COPIES, TWIN_DENSE
from adaptive_rec.units import comparable_size

OTHERS = COPIES, "dense parameters", "dense optimizer", TWIN_DENSE, TWIN_COPIES
"""Parts of the plan that a checkpoint has besides rows."""

MOST_KEPT = 5
"""Checkpoints of all rows that a run's disk may hold at a time, at the default of `checkpoint.keep` (docs/checkpoints.md)."""


def checkpoint_bytes(plan: MemoryPlan) -> int:
    """Return the size of a checkpoint of all rows, at the most: each with its number and its optimizer state, the dense part, and
    what is known of hot rows and popularity."""
    rows = sum(table.rows for table in plan.tables)
    if any(part.place == "disk" for part in plan.parts):  # the rows are there already
        from adaptive_rec.embedding.cold.log import INDEX_BYTES

        return rows * INDEX_BYTES + sum(part.bytes for part in plan.parts if part.name in OTHERS)
    number_bytes = 4 if rows <= 1 << 32 else 8
    others = sum(part.bytes for part in plan.parts if part.name in OTHERS)
    return sum(table.weights_bytes + table.state_bytes for table in plan.tables) + rows * number_bytes + others


def check_room(folder: Path, one_bytes: int) -> str:
    """Return a warning where the disk of a run's checkpoints has less room than they may take; an empty string elsewhere.

    Raises CheckpointError where there is no room for a first one: the run could not be saved.
    """
    present, free = _bytes_in(folder), free_bytes(folder)
    if free + present >= MOST_KEPT * one_bytes:
        return ""
    sizes = f"one takes {comparable_size(one_bytes)}, {comparable_size(free)} are free"
    room = f"{folder.parent} must have room for checkpoints: {sizes}"
    if not present and free < one_bytes:
        keys = "data.max_table_rows or model.embedding_dim"
        raise CheckpointError(f"{room}; free some space, give another --out, or lower {keys}", faq="disk-full")
    return f"{room}, and a long run keeps up to {MOST_KEPT}; one that finds no room is left out, and training continues"


def free_room(folder: Path | None) -> int:
    """Return the bytes that rows may take in a folder, which need not exist: those in it and what is free on its disk. None: a
    folder to be made below the working directory, whose other files are not looked at."""
    return free_bytes(Path(".")) if folder is None else free_bytes(folder) + _bytes_in(folder)


def free_bytes(folder: Path) -> int:
    """Return what is free on the disk under a folder, which need not exist."""
    return shutil.disk_usage(next(path for path in (folder, *folder.absolute().parents) if path.exists())).free


def _bytes_in(folder: Path) -> int:
    """Return the bytes of a folder's files. Another process, such as rank 0 in a rollback, may remove some meanwhile."""
    found = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                found += os.path.getsize(os.path.join(place, name))
    return found

"""The placement in a checkpoint, for readers of a run that has ended. Its state is read, not its rows. Loads nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.checkpoint.files import DISK, Files
from adaptive_rec.checkpoint.flatten import unflatten
from adaptive_rec.checkpoint.generation import generations, names_in, read_manifest, verify_file
from adaptive_rec.checkpoint.history import hold_generation
from adaptive_rec.checkpoint.rows import state_file_names
from adaptive_rec.checkpoint.safetensors_file import ArraysFile
from adaptive_rec.checkpoint.saved_state import read_values
from adaptive_rec.errors import CheckpointError
from adaptive_rec.kernels.sketch_numpy import UNIT, has_lines, sketch_seeds
from adaptive_rec.live.shared_state import WORDS, PlacementArrays
from adaptive_rec.saved import Saved

COUNTERS = "observer/tracker/counter/counters"


class HotSlots:
    """What `PlacementArrays.slots_plus_one` is, without an entry for each row: cold rows take no memory."""

    def __init__(self, row_of_slot: Sequence[NDArray[np.int64]]) -> None:
        rows = [slots[slots >= 0] for slots in row_of_slot]
        slots = [np.flatnonzero(slots >= 0) for slots in row_of_slot]
        joined = np.concatenate([np.empty(0, np.int64), *rows])
        order = np.argsort(joined, kind="stable")
        self._row_S = joined[order]
        self._slot_plus_one_S = (np.concatenate([np.empty(0, np.int64), *slots])[order] + 1).astype(np.int32)

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> NDArray[np.int32]:
        """Return for each row its slot plus one, 0 where it is cold. A slice must have a start and a stop."""
        if isinstance(rows, slice):
            found = np.zeros(max(0, rows.stop - rows.start), np.int32)
            low, high = np.searchsorted(self._row_S, (rows.start, rows.stop))
            found[self._row_S[low:high] - rows.start] = self._slot_plus_one_S[low:high]
            return found
        if not len(self._row_S):
            return np.zeros(len(rows), np.int32)
        place = np.minimum(np.searchsorted(self._row_S, rows), len(self._row_S) - 1)
        return np.where(self._row_S[place] == rows, self._slot_plus_one_S[place], 0).astype(np.int32)


@dataclass(frozen=True)
class SavedPlacement:
    """The placement of a run of one process, as a checkpoint has it."""

    name: str
    """The checkpoint."""
    step: int
    version: int
    stale_threshold: float
    hot_rows: list[int]
    """Of each table; so is the next one."""
    stale_rows: list[int]
    arrays: PlacementArrays


def newest_placement(folder: Path, first_rows: Sequence[int], rows: int, files: Files = DISK) -> SavedPlacement:
    """Read the placement of the newest checkpoint in a folder whose state is whole. `first_rows`: the first row of each table in
    the joint row space, which has `rows`. Raises CheckpointError, with the fault of the newest one, where none can be read."""
    newest_fault: CheckpointError | None = None
    for name in reversed(generations(names_in(files, folder))):
        try:
            with hold_generation(files, folder / name):
                return _read(files, folder / name, first_rows, rows)
        except CheckpointError as error:
            newest_fault = newest_fault or error
    raise newest_fault or CheckpointError(f"{folder} has no checkpoint")


def _read(files: Files, generation: Path, first_rows: Sequence[int], rows: int) -> SavedPlacement:
    manifest = read_manifest(files, generation)
    named = {entry.name: entry for entry in manifest.files}
    for name in state_file_names(0):
        if name not in named:
            raise CheckpointError(f"{generation} must have {name}")
        verify_file(files, generation / name, named[name])
    state, run, ranks = read_values(generation, files)
    if ranks != 1:
        raise CheckpointError(f"{generation} must be of one process for its placement to be shown, it is of {ranks}")
    found = Saved(unflatten(state, {}))
    file = ArraysFile(files, generation / state_file_names(0)[1])
    store = found.part("store")
    pools = range(len(store.parts("pools")))
    arrays: dict[str, Any] = {}
    slots = [_pool(arrays, file, pool, rows) for pool in pools]
    words = dict.fromkeys(WORDS, 0)
    words |= {"version": store.integer("version"), "step": manifest.step}
    words |= _sketch(arrays, file, Saved(run).integer("seed"))
    arrays |= {
        "words": np.array([words[word] for word in WORDS]),
        "capacities": np.array([len(row_of_slot_H) for row_of_slot_H in slots], np.int64),
        "slots_plus_one": HotSlots(slots),
        "address": np.empty(0, np.uint32),
        "memory_slot": np.empty(0, np.int32),
        "change_row": np.empty(0, np.int64),
        "change_step": np.empty(0, np.int64),
        "change_kind": np.empty(0, np.uint8),
    }
    stale = [row_of_slot_H[arrays[f"stale.{pool}"]] for pool, row_of_slot_H in enumerate(slots)]
    threshold = found.part("reclassifier").number("stale_threshold")
    hot_rows, stale_rows = _by_table(slots, first_rows), _by_table(stale, first_rows)
    shown = PlacementArrays(arrays)
    return SavedPlacement(generation.name, manifest.step, words["version"], threshold, hot_rows, stale_rows, shown)


def _pool(arrays: dict[str, Any], file: ArraysFile, pool: int, rows: int) -> NDArray[np.int64]:
    """Read the slots of a pool into `arrays`. Returns the joint row of each slot, -1 where it is free."""
    types = {"row_of_slot": np.int64, "stale": np.bool_, "estimate": np.float32, "movement": np.float32}
    found = {name: _array(file, f"store/pools/{pool}/{name}", dtype) for name, dtype in types.items()}
    lengths = {name: array.shape for name, array in found.items()}
    if len(set(lengths.values())) != 1 or len(lengths["stale"]) != 1:
        raise CheckpointError(f"the arrays of pool {pool} must have one number for each slot, got {lengths}")
    row_of_slot_H = found["row_of_slot"]
    if len(row_of_slot_H) and not -1 <= row_of_slot_H.min() <= row_of_slot_H.max() < rows:
        raise CheckpointError(f"rows in the slots of pool {pool} must be below {rows}, got {row_of_slot_H.max()}")
    arrays |= {f"{name}.{pool}": array for name, array in found.items()}
    arrays[f"estimate.{pool}"] = np.nan_to_num(found["estimate"])
    return row_of_slot_H


def _sketch(arrays: dict[str, Any], file: ArraysFile, seed: int) -> dict[str, int]:
    """Read the sketch into `arrays`, where the checkpoint has one. Returns its words."""
    cells = _array(file, COUNTERS, np.uint32) if COUNTERS in file.arrays else np.empty((0, 0), np.uint32)
    try:
        seeds = sketch_seeds(seed, len(cells) if has_lines(cells.shape) else 1)
    except ValueError:
        arrays |= {"sketch_cells": np.empty(0, np.uint32), "sketch_seeds": np.empty(0, np.uint64)}
        return {}
    arrays |= {"sketch_cells": cells.ravel(), "sketch_seeds": seeds}
    return {"sketch_blocks": cells.shape[0], "sketch_block_cells": cells.shape[1], "sketch_unit": UNIT}


def _array(file: ArraysFile, name: str, dtype: Any) -> NDArray[Any]:
    if name not in file.arrays:
        raise CheckpointError(f"a checkpoint's state must have the array {name}")
    if file.arrays[name].dtype != np.dtype(dtype):
        raise CheckpointError(f"the array {name} must be of {np.dtype(dtype)}, got {file.arrays[name].dtype}")
    return file.rows(name)


def _by_table(row_of_slot: Sequence[NDArray[np.int64]], first_rows: Sequence[int]) -> list[int]:
    """Return how many of these rows each table has."""
    rows = np.concatenate([np.empty(0, np.int64), *(slots[slots >= 0] for slots in row_of_slot)])
    tables = np.searchsorted(np.array(first_rows), rows, side="right") - 1
    return np.bincount(tables, minlength=len(first_rows)).tolist()

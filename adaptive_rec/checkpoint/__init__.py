"""Checkpoints: all that a run needs to go on as if nothing had been, and tables that any run can take over.

``checkpoints/step-N/`` holds a safetensors file for each table (its rows and their optimizer state, wherever they lie), one for
the dense part and one for all other arrays, ``state.json`` and ``MANIFEST.json``: see `generation.py`. Under the policy and the
budget that it was saved with a run goes on bit by bit; under others it takes over tables, dense part and place in the stream.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_rec import __version__
from adaptive_rec.checkpoint.files import DISK, Files
from adaptive_rec.checkpoint.generation import Draft, read_json_file, verify
from adaptive_rec.checkpoint.history import Found, newest_valid, prune
from adaptive_rec.checkpoint.run_state import knobs_of, set_state, state_of
from adaptive_rec.checkpoint.safetensors_file import DTYPES, ArraysFile
from adaptive_rec.checkpoint.state import flatten, unflatten
from adaptive_rec.embedding.row_types import as_array, as_tensor
from adaptive_rec.errors import CheckpointError
from adaptive_rec.knobs import Knobs
from adaptive_rec.saved import Saved

if TYPE_CHECKING:
    from adaptive_rec.runtime import Runtime

STATE, ARRAYS, DENSE = "state.json", "state.safetensors", "dense.safetensors"

PATTERNS = {np.dtype(np.uint16): "BF16", np.dtype(np.int16): "F16"}
"""What arrays of 16-bit patterns hold, in the words of the files; see `embedding/row_types.py`."""


def save(runtime: Runtime, folder: Path, files: Files = DISK) -> Path:
    """Write a checkpoint of the run as it stands; it becomes visible whole or not at all. Older ones go, but for
    `checkpoint.keep`. Where nothing has changed since the last one, that is the answer."""
    runtime.finite.settle()
    what = (folder, runtime.step_number, runtime.window_due, runtime.knobs, runtime.changes, runtime.phases.reordered)
    if runtime.saved is not None and runtime.saved[0] == what:
        return runtime.saved[1]
    draft = Draft(files, folder, runtime.step_number)
    try:
        for index in range(len(runtime.store.space.tables)):
            weights, state = runtime.store.table(index)
            types = {"weight": PATTERNS[weights.dtype]} if weights.dtype in PATTERNS else None
            draft.arrays(f"table-{index:04d}.safetensors", {"weight": weights, "optimizer_state": state}, types)
        dense = {name: as_array(tensor) for name, tensor in _dense_tensors(runtime).items()}
        draft.arrays(
            DENSE, dense, {name: PATTERNS[array.dtype] for name, array in dense.items() if array.dtype in PATTERNS}
        )
        values, arrays = flatten(state_of(runtime))
        draft.arrays(ARRAYS, arrays)
        draft.json(STATE, {"run": _run(runtime), "state": values})
        config = json.dumps(runtime.config.model_dump(mode="json"), sort_keys=True)
        sha256 = hashlib.sha256(config.encode()).hexdigest()
        made = draft.commit({"version": __version__, "policy": runtime.policy.name, "config_sha256": sha256})
    except BaseException:
        draft.abandon()
        raise
    try:
        prune(files, folder, runtime.config.checkpoint.keep)
    except CheckpointError as error:
        verify(files, made)
        runtime.unsaid.append(f"checkpoint {made.name} is written, but older ones could not be removed: {error}")
    runtime.saved = what, made
    return made


def find(folder: Path, files: Files = DISK) -> Found:
    """The newest checkpoint of a folder that is whole, and what was passed over. Raises CheckpointError where there are some and
    none is whole."""
    found = newest_valid(files, folder)
    if found.generation is None and found.skipped:
        reasons = "; ".join(why for _, why in found.skipped)
        raise CheckpointError(f"a checkpoint in {folder} must be whole, none is: {reasons}")
    return found


def newest(folder: Path) -> Path | None:
    """The newest whole checkpoint of a folder, or None. Raises CheckpointError where there are some and none is whole."""
    return find(folder).generation


def saved_knobs(checkpoint: Path, files: Files = DISK) -> Knobs:
    """The knobs that a run was saved with."""
    values, _ = _values(checkpoint, files)
    return knobs_of(Saved(values))


def load(runtime: Runtime, checkpoint: Path, verified: bool = False, files: Files = DISK) -> None:
    """Set a fresh runtime to the state of a checkpoint. `verified` says that it was read and found whole just now."""
    if not verified:
        verify(files, checkpoint)
    values, run = _values(checkpoint, files)
    _check(runtime, run, checkpoint)
    try:
        state = unflatten(values, _all(ArraysFile(files, checkpoint / ARRAYS)))
        for index in range(len(runtime.store.space.tables)):
            file = ArraysFile(files, checkpoint / f"table-{index:04d}.safetensors")
            weights, optimizer_state = runtime.store.table(index)
            saved: list[Any] = [SavedRows(file, "weight", weights), SavedRows(file, "optimizer_state", optimizer_state)]
            runtime.store.import_table(index, *saved)
        _set_dense(runtime, _all(ArraysFile(files, checkpoint / DENSE)))
        set_state(runtime, Saved(state))
    except CheckpointError as error:
        raise CheckpointError(f"checkpoint {checkpoint} cannot be used: {error}") from None


class SavedRows:
    """Rows of a file for an array `like` them, read slice by slice: a table may take most of the memory there is."""

    def __init__(self, file: ArraysFile, name: str, like: NDArray[Any]) -> None:
        self._file, self._name, self._dtype = file, name, like.dtype
        stored = file.arrays.get(name)
        if stored is None or stored.shape != like.shape or _dtype(stored.type) != like.dtype:
            got = f"{stored.shape} {stored.type}" if stored else "none"
            raise CheckpointError(f"{name} must be of {like.shape} {like.dtype}, got {got}")

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        return self._file.rows(self._name, rows.start, rows.stop).view(self._dtype)


def _dtype(stored: str) -> np.dtype[Any]:
    """Of the arrays that the run keeps such numbers in."""
    patterns = {name: dtype for dtype, name in PATTERNS.items()}
    return patterns.get(stored, DTYPES[stored])


def _all(file: ArraysFile) -> dict[str, NDArray[Any]]:
    """Copies of all arrays of a file."""
    return {name: file.rows(name).view(_dtype(stored.type)).copy() for name, stored in file.arrays.items()}


def _values(checkpoint: Path, files: Files) -> tuple[dict[str, Any], dict[str, Any]]:
    """What ``state.json`` says: the state, and of what run it is."""
    found = read_json_file(files, checkpoint / STATE)
    state, run = (found.get("state"), found.get("run")) if isinstance(found, dict) else (None, None)
    if not isinstance(state, dict) or not isinstance(run, dict):
        raise CheckpointError(f"{checkpoint / STATE} must have parts state and run")
    return state, run


def _run(runtime: Runtime) -> dict[str, Any]:
    """What must be the same in a run that goes on."""
    return {
        "tables": [asdict(table) for table in runtime.store.space.tables],
        "embedding_optimizer": runtime.config.optimizer.embedding,
        "dense_optimizer": runtime.config.optimizer.dense,
        "precision": runtime.config.run.precision,
        "row_precision": runtime.config.run.row_precision,
        "seed": runtime.config.run.seed,
        "data": runtime.config.data.model_dump(mode="json"),
    }


def _check(runtime: Runtime, found: Mapping[str, Any], checkpoint: Path) -> None:
    expected = _run(runtime)
    data = expected.pop("data")
    for key, value in expected.items():
        if found.get(key) != value:
            raise CheckpointError(f"{key} of checkpoint {checkpoint} must be {value}, got {found.get(key)}")
    # The position of the reader means something only on the same stream; how often it is read may change.
    kept = found.get("data")
    for key, value in data.items():
        was = kept.get(key) if isinstance(kept, dict) else None
        if key != "epochs" and was != value:
            raise CheckpointError(f"data.{key} must stay as checkpoint {checkpoint} has it, {was}, got {value}")


def _dense_tensors(runtime: Runtime) -> dict[str, torch.Tensor]:
    tensors = {
        f"model.{name}": value.detach().cpu().contiguous() for name, value in runtime.dense.model.state_dict().items()
    }
    for number, state in runtime.dense.optimizer.state_dict()["state"].items():
        for key, value in state.items():
            if value is not None:
                tensors[f"optimizer.{number}.{key}"] = torch.as_tensor(value).detach().cpu().clone().contiguous()
    return tensors


def _set_dense(runtime: Runtime, arrays: dict[str, NDArray[Any]]) -> None:
    tensors = {name: as_tensor(array) for name, array in arrays.items()}
    parts = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    try:
        runtime.dense.model.load_state_dict(parts)
        state: dict[int, dict[str, torch.Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith("optimizer."):
                _, number, key = name.split(".", 2)
                state.setdefault(int(number), {})[key] = value
        groups = runtime.dense.optimizer.state_dict()["param_groups"]
        runtime.dense.optimizer.load_state_dict({"state": state, "param_groups": groups})
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"the dense part cannot be read: {error}") from None

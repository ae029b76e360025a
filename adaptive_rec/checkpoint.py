"""The final checkpoint: plain per-table tensors, independent of policy, budget and device.

``checkpoints/step-N/`` holds a safetensors file for each table (its rows and their optimizer state), one for the dense part,
and ``checkpoint.json``, written last. A resumed run starts with empty trackers and every row cold.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file as save_torch

from adaptive_rec.batch import Position
from adaptive_rec.embedding.row_types import as_array, as_tensor
from adaptive_rec.errors import CheckpointError

if TYPE_CHECKING:
    from adaptive_rec.runtime import Runtime

FORMAT = 1


def save(runtime: Runtime, folder: Path) -> Path:
    """Write a checkpoint of the run as it stands; it becomes visible whole or not at all."""
    target = folder / f"step-{runtime.step_number:09d}"
    draft = folder / f".{target.name}.draft"
    try:
        if (target / "checkpoint.json").exists():
            _describe(runtime, target)  # no step since, but a run that reorders its stream may have come to its end
            return target
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        for index in range(len(runtime.store.space.tables)):
            weights, state = map(as_tensor, runtime.store.table(index))
            save_torch({"weight": weights, "optimizer_state": state}, draft / f"table-{index:04d}.safetensors")
        save_torch(_dense_tensors(runtime), draft / "dense.safetensors")
        _describe(runtime, draft)
        os.rename(draft, target)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"checkpoint {target} cannot be written: {error}") from None
    return target


def newest(folder: Path) -> Path | None:
    """The newest checkpoint of a folder, or None."""
    return max((path for path in folder.glob("step-*") if (path / "checkpoint.json").exists()), default=None)


def load(runtime: Runtime, checkpoint: Path) -> None:
    """Set a fresh runtime to the state of a checkpoint."""
    try:
        description = json.loads((checkpoint / "checkpoint.json").read_text())
        _check(runtime, description, checkpoint)
        for index in range(len(runtime.store.space.tables)):
            with safe_open(checkpoint / f"table-{index:04d}.safetensors", "pt") as file:
                weights, state = runtime.store.table(index)
                saved: list[Any] = [SavedRows(file, "weight", weights), SavedRows(file, "optimizer_state", state)]
                runtime.store.import_table(index, *saved)
        _set_dense(runtime, load_torch(checkpoint / "dense.safetensors"))
        runtime.step_number, runtime.position = description["step"], Position(**description["position"])
        runtime.phases.reordered = description.get("reordered", False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"checkpoint {checkpoint} cannot be read: {error}") from None


class SavedRows:
    """Rows of a file for an array `like` them, read slice by slice: a table may take most of the memory there is."""

    def __init__(self, file: Any, name: str, like: NDArray[Any]) -> None:
        self._slice = file.get_slice(name)
        found = tuple(self._slice.get_shape()), self[:0].dtype
        if found != (like.shape, like.dtype):
            raise ValueError(f"{name} must be of {like.shape} {like.dtype}, got {found[0]} {found[1]}")

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        return as_array(self._slice[rows])


def _describe(runtime: Runtime, folder: Path) -> None:
    draft = folder / ".checkpoint.json"
    draft.write_text(json.dumps(_description(runtime), indent=1))
    os.replace(draft, folder / "checkpoint.json")


def _description(runtime: Runtime) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "step": runtime.step_number,
        "position": asdict(runtime.position),
        "reordered": runtime.phases.reordered,
        "tables": [asdict(table) for table in runtime.store.space.tables],
        "embedding_optimizer": runtime.config.optimizer.embedding,
        "dense_optimizer": runtime.config.optimizer.dense,
        "precision": runtime.config.run.precision,
        "row_precision": runtime.config.run.row_precision,
        "seed": runtime.config.run.seed,
        "data": runtime.config.data.model_dump(mode="json"),
    }


def _check(runtime: Runtime, found: dict[str, Any], checkpoint: Path) -> None:
    expected = _description(runtime)
    found = {"row_precision": "float32"} | found  # as it was before there was a choice
    for key in ("format", "tables", "embedding_optimizer", "dense_optimizer", "precision", "row_precision", "seed"):
        if found.get(key) != expected[key]:
            raise CheckpointError(f"{key} of checkpoint {checkpoint} must be {expected[key]}, got {found.get(key)}")
    # The position of the reader means something only on the same stream; how often it is read may change.
    for key, value in expected["data"].items():
        if key != "epochs" and found["data"].get(key) != value:
            raise CheckpointError(
                f"data.{key} must stay as checkpoint {checkpoint} has it, {found['data'].get(key)}, got {value}"
            )


def _dense_tensors(runtime: Runtime) -> dict[str, torch.Tensor]:
    tensors = {
        f"model.{name}": value.detach().cpu().contiguous() for name, value in runtime.dense.model.state_dict().items()
    }
    for number, state in runtime.dense.optimizer.state_dict()["state"].items():
        for key, value in state.items():
            if value is not None:
                tensors[f"optimizer.{number}.{key}"] = torch.as_tensor(value).detach().cpu().clone().contiguous()
    return tensors


def _set_dense(runtime: Runtime, tensors: dict[str, torch.Tensor]) -> None:
    parts = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    runtime.dense.model.load_state_dict(parts)
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, number, key = name.split(".", 2)
            state.setdefault(int(number), {})[key] = value
    groups = runtime.dense.optimizer.state_dict()["param_groups"]
    runtime.dense.optimizer.load_state_dict({"state": state, "param_groups": groups})

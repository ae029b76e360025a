"""Arrays of the dense part and its optimizer in a checkpoint: ``model.NAME`` and ``optimizer.NUMBER.NAME``."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray

from adaptive_rec.dense.eager import DensePart
from adaptive_rec.embedding.row_types import as_array, as_tensor
from adaptive_rec.errors import CheckpointError


def dense_arrays(dense: DensePart) -> dict[str, NDArray[Any]]:
    """Return copies of all tensors; 16-bit floats as bit patterns."""
    tensors = {f"model.{name}": value for name, value in dense.model.state_dict().items()}
    for number, state in dense.optimizer.state_dict()["state"].items():
        for key, value in state.items():
            if value is not None:
                tensors[f"optimizer.{number}.{key}"] = torch.as_tensor(value)
    return {name: as_array(tensor.detach().cpu().clone().contiguous()) for name, tensor in tensors.items()}


def set_dense(dense: DensePart, arrays: dict[str, NDArray[Any]]) -> None:
    """Restore saved tensors. Raises CheckpointError where they belong to another model."""
    tensors = {name: as_tensor(array) for name, array in arrays.items()}
    parts = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    try:
        dense.model.load_state_dict(parts)
        state: dict[int, dict[str, torch.Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith("optimizer."):
                _, number, key = name.split(".", 2)
                state.setdefault(int(number), {})[key] = value
        groups = dense.optimizer.state_dict()["param_groups"]
        dense.optimizer.load_state_dict({"state": state, "param_groups": groups})
        _keep_types(dense.optimizer, state)
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"the dense part cannot be read: {error}") from None


def _keep_types(optimizer: torch.optim.Optimizer, state: dict[int, dict[str, torch.Tensor]]) -> None:
    """Give state the types that it was saved with. torch 2.13 gives what it loads the type of the parameter: float32 products of
    NAdam and ASGD would go on in float64, with other digits."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, saved in state.items():
        own = optimizer.state[parameters[number]]
        for key, value in saved.items():
            if isinstance(own.get(key), torch.Tensor) and own[key].dtype != value.dtype:
                own[key] = value.to(own[key].device, copy=True)

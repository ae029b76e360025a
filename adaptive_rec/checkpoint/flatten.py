"""A nested state as two files hold it: arrays by names joined with slashes, and JSON for everything else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.errors import CheckpointError

UNBOUNDED = "number:"
"""Prefix of the text that stands for a float that JSON cannot hold."""


def flatten(state: Mapping[str, Any], prefix: str = "") -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Split a nested state into values for JSON and arrays by name."""
    values: dict[str, Any] = {}
    arrays: dict[str, NDArray[Any]] = {}
    for name, value in state.items():
        if "/" in name or (isinstance(value, str) and value.startswith(UNBOUNDED)):
            raise CheckpointError(
                f"{prefix}{name} of a state must have no / in its name and no value that begins with {UNBOUNDED}, got {value}"
            )
        if isinstance(value, Mapping):
            values[name], inner = flatten(value, f"{prefix}{name}/")
            arrays |= inner
        elif isinstance(value, np.ndarray):
            arrays[prefix + name] = value
        elif isinstance(value, float) and not math.isfinite(value):
            values[name] = f"{UNBOUNDED}{value}"
        else:
            values[name] = value
    return values, arrays


class Copies:
    """Copies of arrays in memory that is used again for each checkpoint: new memory costs several times the copying."""

    def __init__(self) -> None:
        self._memory: dict[str, NDArray[Any]] = {}

    def of(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Copy arrays. The copies are valid until the next call."""
        former = self._memory
        self._memory = {}
        for name, array in arrays.items():
            memory = former.get(name)
            if memory is None or (memory.shape, memory.dtype) != (array.shape, array.dtype):
                memory = np.empty(array.shape, array.dtype)
            np.copyto(memory, array)
            self._memory[name] = memory
        return self._memory


def unflatten(values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Join what `flatten` split. Raises CheckpointError where values and arrays do not belong together."""
    state = _with_floats(values)
    for path, array in arrays.items():
        *folders, name = path.split("/")
        place = state
        for folder in folders:
            place = place.get(folder)  # type: ignore[assignment]
            if not isinstance(place, dict):
                raise CheckpointError(f"array {path} of a state must be in an object of state.json, {folder} is none")
        if name in place:
            raise CheckpointError(f"array {path} of a state must not also be a value of state.json")
        place[name] = array
    return state


def _with_floats(values: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            made[name] = _with_floats(value)
        elif isinstance(value, str) and value.startswith(UNBOUNDED):
            try:
                made[name] = float(value.removeprefix(UNBOUNDED))
            except ValueError:
                raise CheckpointError(f"{name} of a state must be a number after {UNBOUNDED}, got {value}") from None
        else:
            made[name] = value
    return made

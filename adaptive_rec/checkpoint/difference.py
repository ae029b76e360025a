"""What differs between two generations: arrays row by row, values by their names."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.checkpoint.files import Files
from adaptive_rec.checkpoint.generation import read_json_file, verify
from adaptive_rec.checkpoint.safetensors_file import ArraysFile, StoredArray

BLOCK_BYTES = 8 << 20
"""What is read of each of the two at a time."""


@dataclass
class Difference:
    """One array or value of a file that is not the same in both."""

    file: str
    name: str
    kind: str
    """`values`: the same shape, other contents. `shape` or `type`: not comparable. `only in A`, `only in B`."""
    a: str = ""
    """Shape, type or value in A, where that is what differs."""
    b: str = ""
    rows: int = 0
    """Rows that are not the same bit by bit."""
    of_rows: int = 0
    largest: float | None = None
    """Largest absolute difference; none where there is no number on one side only."""
    mean: float | None = None
    """Mean absolute difference of all components of the array."""


def differences(files: Files, a: Path, b: Path) -> Iterator[Difference]:
    """All that differs, file by file, after every byte of both was verified."""
    names = [{entry.name for entry in verify(files, path).files} for path in (a, b)]
    for name in sorted(
        names[0] | names[1], key=lambda name: (name.endswith(".json"), not name.startswith("table-"), name)
    ):
        if not all(name in side for side in names):
            yield Difference(name, "", "only in A" if name in names[0] else "only in B")
        elif name.endswith(".json"):
            yield from _values(name, read_json_file(files, a / name), read_json_file(files, b / name))
        else:
            yield from _arrays(name, ArraysFile(files, a / name), ArraysFile(files, b / name))


def _arrays(file: str, a: ArraysFile, b: ArraysFile) -> Iterator[Difference]:
    for name in sorted(a.arrays.keys() | b.arrays.keys()):
        one, other = a.arrays.get(name), b.arrays.get(name)
        if one is None or other is None:
            yield Difference(file, name, "only in A" if other is None else "only in B")
        elif one.type != other.type:
            yield Difference(file, name, "type", one.type, other.type)
        elif one.shape != other.shape:
            yield Difference(file, name, "shape", str(list(one.shape)), str(list(other.shape)))
        elif (found := _compared(file, name, a, b)).rows:
            yield found


def _compared(file: str, name: str, a: ArraysFile, b: ArraysFile) -> Difference:
    stored = a.arrays[name]
    found = Difference(file, name, "values", of_rows=stored.shape[0] if stored.shape else 1)
    row_bytes = max(1, stored.size_bytes // max(1, found.of_rows))
    step = max(1, BLOCK_BYTES // row_bytes)
    largest, total = 0.0, 0.0
    for start in range(0, found.of_rows, step):
        parts = [_as_rows(side.rows(name, start, start + step), stored) for side in (a, b)]
        differing = (parts[0].view(np.uint8) != parts[1].view(np.uint8)).any(axis=1)
        found.rows += int(differing.sum())
        if differing.any():
            apart = _apart(*(_numbers(part[differing], stored.type) for part in parts))
            largest = max(largest, float(apart.max(initial=0.0)))  # NaN wins, which is what is wanted
            largest = math.nan if np.isnan(apart).any() else largest
            total += float(apart.sum())
    components = max(1, math.prod(stored.shape))
    found.largest, found.mean = _finite(largest), _finite(total / components)
    return found


def _as_rows(array: NDArray[Any], stored: StoredArray) -> NDArray[Any]:
    rows = array.shape[0] if stored.shape else 1
    return array.reshape(rows, -1) if array.size else np.zeros((rows, 0), array.dtype)


def _numbers(rows: NDArray[Any], kind: str) -> NDArray[np.float64]:
    if kind == "BF16":
        rows = (rows.astype(np.uint32) << 16).view(np.float32)
    return rows.astype(np.float64)


def _apart(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Absolute differences: 0 where both are the same infinity or no number, NaN where only one is a number."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(one - other)
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    return np.where(same, 0.0, apart)


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _values(file: str, a: Any, b: Any) -> Iterator[Difference]:
    one, other = dict(_leaves(a)), dict(_leaves(b))
    for name in [*one, *(name for name in other if name not in one)]:
        if name not in one or name not in other:
            yield Difference(file, name, "only in A" if name in one else "only in B")
        elif repr(one[name]) != repr(other[name]):
            yield Difference(file, name, "values", _short(one[name]), _short(other[name]))


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """What is not an object, by its path; lists are leaves."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{key}" if name else key)
    else:
        yield name, value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:36]} ..."

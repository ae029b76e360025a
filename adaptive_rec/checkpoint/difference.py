"""Comparison of two generations: tables and arrays row by row, values by name."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.checkpoint.files import Files
from adaptive_rec.checkpoint.generation import read_json_file, read_manifest
from adaptive_rec.checkpoint.history import verify_all
from adaptive_rec.checkpoint.rows import SavedRows, SavedTable, is_shard
from adaptive_rec.checkpoint.safetensors_file import ArraysFile, StoredArray, as_numbers
from adaptive_rec.checkpoint.saved_keys import KEYS_OF_TABLES, SavedKeys, TableKeys, key_changes, saved_keys
from adaptive_rec.embedding.shard_arrays import OPTIMIZER_STATE, WEIGHT

BLOCK_BYTES = 8 << 20
"""Size of the blocks that are read of each generation."""

MEASURED = re.compile(
    r"state\.(recorder(\.last)?\.(processor_)?seconds|times\.seconds\..*|splitting\.trial\.(block_began|seconds\..*)"
    r"|store\.disk(\..*)?|disk_reported(\..*)?|recorder\.last\.disk_.*|reclassifier\.judged_at\.disk_.*|trend\..*"
    r"|watchdog\..*|followed\.(file|read_files|removed_files|tail|first_row|place|rows|bad_rows|left_out|counted)"
    r"|(store\.traffic|recorder\.last|reclassifier\.judged_at)\.host_to_device_bytes)"
)
"""Values of a state that no two runs share, however equal they are: times, how many rows were read and written on a disk, what
travelled to a device (a row travels again or not, as the thread that writes rows back is slow or quick), the last place before
the position at which reading of followed data can begin (data come in any pieces; the position is compared), the best of the
evaluations, of which a stop, a client, or data that are waited for add some, and what rules of the watchdog have seen, which
begins anew where a rule has changed. They are not compared."""


@dataclass
class ArrayDifference:
    """An array or value that is not the same in both generations."""

    file: str
    """File or table."""
    name: str
    kind: str
    """values (same shape, other contents), shape or type (not comparable), only in A, only in B, keys (raw ids of a table)."""
    a: str = ""
    """Shape, type or value in A, where it differs."""
    b: str = ""
    rows: int = 0
    """Number of rows that differ in any bit."""
    of_rows: int = 0
    largest: float | None = None
    """Largest absolute difference; None where it is not finite."""
    mean: float | None = None
    """Mean absolute difference over all components of the array; None where it is not finite."""
    keys: dict[str, int] | None = None
    """Of the raw ids of a table, B against A: how many are new, removed, and have another row (moved)."""


def find_differences(files: Files, a: Path, b: Path) -> Iterator[ArrayDifference]:
    """Yield all differences but those of measured values, table by table and file by file, after every byte of both was
    verified."""
    for generation in (a, b):
        verify_all(files, generation)
    sides = [SavedRows(files, generation) for generation in (a, b)]
    keys = [saved_keys(path, side.tables, files) for path, side in zip((a, b), sides, strict=True)]
    yield from _tables(*zip(sides, keys, strict=True))
    yield from _keys(*keys)
    names = [{entry.name for entry in read_manifest(files, path).files if not is_shard(entry.name)} for path in (a, b)]
    for name in sorted(names[0] | names[1], key=lambda name: (name.endswith(".json"), name)):
        if not all(name in side for side in names):
            yield ArrayDifference(name, "", "only in A" if name in names[0] else "only in B")
        elif name.endswith(".json"):
            yield from _values(name, read_json_file(files, a / name), read_json_file(files, b / name))
        else:
            yield from _arrays(name, ArraysFile(files, a / name), ArraysFile(files, b / name))


Side = tuple[SavedRows, SavedKeys | None]
"""A generation: its rows, and its keys where ids are raw."""


def _tables(a: Side, b: Side) -> Iterator[ArrayDifference]:
    places = [{table.name: place for place, table in enumerate(saved.tables)} for saved, _ in (a, b)]
    for name in dict.fromkeys([*places[0], *places[1]]):
        one, other = (each.get(name) for each in places)
        if one is None or other is None:
            yield ArrayDifference(name, "", "only in A" if other is None else "only in B")
            continue
        keys = [None if saved is None else saved.table(place) for (_, saved), place in zip((a, b), (one, other), strict=True)]
        yield from _table(name, (a[0], a[0].tables[one]), (b[0], b[0].tables[other]), keys)


def _keys(a: SavedKeys | None, b: SavedKeys | None) -> Iterator[ArrayDifference]:
    """Compare the keys of tables that both have. Where one side has none, its values (data.ids) show it."""
    if a is None or b is None:
        return
    places = {table.name: index for index, table in enumerate(b.tables)}
    for index, table in enumerate(a.tables):
        if table.name in places:
            changes = key_changes(a.table(index), b.table(places[table.name]))
            counts = {"new": changes.new, "removed": len(changes.removed), "moved": changes.moved}
            if any(counts.values()):
                yield ArrayDifference(table.name, "keys", "keys", keys=counts)


def _with_ids(keys: Sequence[TableKeys | None], first: int, end: int) -> NDArray[np.bool_] | slice:
    """Return which rows of a range have an id on either side, or are shared. How many others a run has drawn ahead depends on how
    far it has read by chance: they are drawn again for the ids that get them."""
    one, other = keys
    if one is None or other is None:
        return slice(None)
    shared_C = np.arange(first, end) < max(one.shared_rows, other.shared_rows)
    return shared_C | one.between(first, end)[0] | other.between(first, end)[0]


def _table(
    name: str, a: tuple[SavedRows, SavedTable], b: tuple[SavedRows, SavedTable], keys: Sequence[TableKeys | None]
) -> Iterator[ArrayDifference]:
    """Compare rows and optimizer state of a table. `keys`: those of each side, where ids are raw."""
    comparisons: list[_Comparison | None] = []
    for array, *kinds in zip((WEIGHT, OPTIMIZER_STATE), *(saved.types(table) for saved, table in (a, b)), strict=True):
        shapes = [[table.rows, *kind.shape[1:]] for (_, table), kind in zip((a, b), kinds, strict=True)]
        same = kinds[0].type == kinds[1].type and shapes[0] == shapes[1]
        comparison = _Comparison(ArrayDifference(name, array, "values", of_rows=shapes[0][0]), kinds[0])
        comparisons.append(comparison if same and shapes[0][1] else None)
        if kinds[0].type != kinds[1].type:
            yield ArrayDifference(name, array, "type", kinds[0].type, kinds[1].type)
        elif not same:
            yield ArrayDifference(name, array, "shape", str(shapes[0]), str(shapes[1]))
    if not any(comparisons):
        return
    for first, end in a[0].chunks(a[1]):
        with_ids = _with_ids(keys, first, end)
        for comparison, *parts in zip(
            comparisons, *(saved.read(table, first, end) for saved, table in (a, b)), strict=True
        ):
            if comparison:
                comparison.add(*(part[with_ids] for part in parts))
    for found, stored in zip(comparisons, a[0].types(a[1]), strict=True):
        if found:
            yield from found.result(a[1].rows * stored.shape[1])


def _arrays(file: str, a: ArraysFile, b: ArraysFile) -> Iterator[ArrayDifference]:
    for name in sorted(a.arrays.keys() | b.arrays.keys()):
        if name.startswith(KEYS_OF_TABLES):  # compared by `_keys`
            continue
        one, other = a.arrays.get(name), b.arrays.get(name)
        if one is None or other is None:
            yield ArrayDifference(file, name, "only in A" if other is None else "only in B")
        elif one.type != other.type:
            yield ArrayDifference(file, name, "type", one.type, other.type)
        elif one.shape != other.shape:
            yield ArrayDifference(file, name, "shape", str(list(one.shape)), str(list(other.shape)))
        else:
            yield from _compared(file, name, a, b)


def _compared(file: str, name: str, a: ArraysFile, b: ArraysFile) -> Iterator[ArrayDifference]:
    stored = a.arrays[name]
    rows = stored.shape[0] if stored.shape else 1
    found = _Comparison(ArrayDifference(file, name, "values", of_rows=rows), stored)
    step = max(1, BLOCK_BYTES // max(1, stored.size_bytes // max(1, rows)))
    for start in range(0, rows, step):
        found.add(*(_as_rows(side.rows(name, start, start + step), stored) for side in (a, b)))
    yield from found.result(math.prod(stored.shape))


class _Comparison:
    """Comparison of two arrays of one shape, part by part."""

    def __init__(self, found: ArrayDifference, stored: StoredArray) -> None:
        self._found, self._type = found, stored.type
        self._largest = self._total = 0.0

    def add(self, a: NDArray[Any], b: NDArray[Any]) -> None:
        """Compare some rows."""
        differing = (np.ascontiguousarray(a).view(np.uint8) != np.ascontiguousarray(b).view(np.uint8)).any(axis=1)
        self._found.rows += int(differing.sum())
        if differing.any():
            apart = _distance(*(as_numbers(part[differing], self._type).astype(np.float64) for part in (a, b)))
            largest = max(self._largest, float(apart.max(initial=0.0)))  # NaN is passed on
            self._largest = math.nan if np.isnan(apart).any() else largest
            self._total += float(apart.sum())

    def result(self, components: int) -> Iterator[ArrayDifference]:
        """Yield the difference, if there is one."""
        if self._found.rows:
            self._found.largest = _finite(self._largest)
            self._found.mean = _finite(self._total / max(1, components))
            yield self._found


def _as_rows(array: NDArray[Any], stored: StoredArray) -> NDArray[Any]:
    rows = array.shape[0] if stored.shape else 1
    return array.reshape(rows, -1) if array.size else np.zeros((rows, 0), array.dtype)


def _distance(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return absolute differences: 0 where both are the same infinity or both NaN, NaN where only one is finite."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(one - other)
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    return np.where(same, 0.0, apart)


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _values(file: str, a: Any, b: Any) -> Iterator[ArrayDifference]:
    one, other = ({name: leaf for name, leaf in _leaves(side) if not MEASURED.fullmatch(name)} for side in (a, b))
    for name in [*one, *(name for name in other if name not in one)]:
        if name not in one or name not in other:
            yield ArrayDifference(file, name, "only in A" if name in one else "only in B")
        elif repr(one[name]) != repr(other[name]):
            yield ArrayDifference(file, name, "values", _short(one[name]), _short(other[name]))


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all values that are not objects, with their paths; lists count as values."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{key}" if name else key)
    else:
        yield name, value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:36]} ..."

"""Rows of a generation, read from its shards and those of the generations that it builds on.

A shard is a file ``rows-NNNNN.safetensors``. Its array `row` holds distinct, ascending numbers in the joint row space; `weight`
and `optimizer_state` hold the rows of these numbers. Within a generation a row is in at most one shard.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from adaptive_rec.batch import TableSpec
from adaptive_rec.checkpoint.disk_entry import saved_logs
from adaptive_rec.checkpoint.files import Files
from adaptive_rec.checkpoint.generation import read_json_file
from adaptive_rec.checkpoint.history import chain
from adaptive_rec.checkpoint.safetensors_file import ArraysFile, StoredArray
from adaptive_rec.embedding.disk.saved_segments import NOWHERE
from adaptive_rec.embedding.shard_arrays import ADDRESS, OPTIMIZER_STATE, ROW, WEIGHT
from adaptive_rec.errors import CheckpointError

if TYPE_CHECKING:
    from adaptive_rec.checkpoint.saved_log import SegmentsReader

STATE = "state.json"
"""What rank 0 has saved besides rows, without arrays."""

SHARDS_OF_A_RANK = 100_000
"""How far apart the numbers of the first shards of two ranks are."""

CHUNK_ROWS = 1 << 17
CHUNK_BYTES = 64 << 20
"""Limit of what is read at a time."""

_SHARD = re.compile(r"rows-[0-9]{5,9}\.safetensors")
_MAX_ROWS = 1 << 40
_MAX_ROW_BYTES = 16 << 20
_BLOCK = 1 << 13
"""Number of a shard's row numbers that are searched at a time."""


def shard_name(number: int, rank: int = 0) -> str:
    """Return the name of a shard; each rank of several processes has numbers of its own."""
    return f"rows-{rank * SHARDS_OF_A_RANK + number:05d}.safetensors"


def state_file_names(rank: int) -> tuple[str, str]:
    """Return the names of the files in which a rank saves what is not rows: values and arrays."""
    return (STATE, "state.safetensors") if rank == 0 else (f"state-{rank:05d}.json", f"state-{rank:05d}.safetensors")


def is_shard(name: str) -> bool:
    return _SHARD.fullmatch(name) is not None


def row_number_type(rows: int) -> DTypeLike:
    """Return the type of row numbers for this many rows."""
    return np.uint32 if rows <= 1 << 32 else np.uint64


@dataclass(frozen=True)
class SavedTable:
    """A table of a generation."""

    name: str
    rows: int
    dim: int
    first_row: int
    """First row in the joint row space."""


class SavedRows:
    """Rows of a generation, read part by part. Raises CheckpointError where a row is missing or is there twice."""

    def __init__(self, files: Files, generation: Path) -> None:
        self.tables = saved_tables(files, generation)
        self._files, self._generation = files, generation
        self._types: dict[int, tuple[StoredArray, StoredArray]] = {}
        self._shards: list[list[_Shard]] = []
        """Shards of the generation of all rows, then those of each generation of changes."""
        end_row = sum(table.rows for table in self.tables)
        links = chain(files, generation)
        self.logs = saved_logs(links[-1].manifest, generation)
        """Where the rows of each rank are, where shards have only their addresses."""
        self._reader: SegmentsReader | None = None
        for link in links:
            if bool(link.manifest.disk) != bool(self.logs):
                raise CheckpointError(
                    f"{generation} must have its rows where {link.path.name} has them, which it builds on"
                )
            names = sorted(entry.name for entry in link.manifest.files if is_shard(entry.name))
            values = (ADDRESS,) if self.logs else (WEIGHT, OPTIMIZER_STATE)
            self._shards.append(
                [_Shard(ArraysFile(files, link.path / name), link.path / name, end_row, values) for name in names]
            )

    def index(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint32]]]:
        """Yield rows that were written to a disk, and their addresses; later ones replace earlier ones."""
        for shard in (shard for shards in self._shards for shard in shards):
            yield from shard.addresses()

    def _on_disk(self) -> SegmentsReader:
        if self._reader is None:
            from adaptive_rec.checkpoint.saved_log import SegmentsReader  # late: compiled kernels are slow to load

            assert self.logs, "shards have the rows"
            tables = tuple(TableSpec(table.name, table.rows, table.dim) for table in self.tables)
            self._reader = SegmentsReader(self.logs, saved_seed(self._files, self._generation), tables)
        return self._reader

    def types(self, table: SavedTable) -> tuple[StoredArray, StoredArray]:
        """Return types and shapes of a table's weights and optimizer state, as in the first shard that has some of its rows."""
        if table.first_row not in self._types:
            self._types[table.first_row] = self._find_types(table)
        return self._types[table.first_row]

    def chunks(self, table: SavedTable, first: int = 0, end: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield first and end of the parts in which the rows of a table are read, from a first one to an end, by default all."""
        row_bytes = sum(stored.size_bytes // stored.shape[0] for stored in self.types(table))
        end = table.rows if end is None else end
        step = max(1, min(CHUNK_ROWS, CHUNK_BYTES // row_bytes))
        for low in range(first, end, step):
            yield low, min(low + step, end)

    def read(self, table: SavedTable, first: int, end: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Read some rows of a table, at most CHUNK_ROWS, and their optimizer state; 16-bit floats are bit patterns."""
        low, high = table.first_row + first, table.first_row + end
        found = self._find_rows(table, low, high)
        if self.logs:
            address_N = np.full(end - first, NOWHERE, dtype=np.uint32)
            for shard, lines, row_N in found:
                address_N[row_N - low] = shard.addresses_of(lines)
            return self._on_disk().read(self.tables.index(table), first, address_N)
        kinds = self.types(table)
        weights, state = (np.empty((end - first, *kind.shape[1:]), kind.dtype) for kind in kinds)
        for shard, lines, row_N in found:
            for name, kind, target in ((WEIGHT, kinds[0], weights), (OPTIMIZER_STATE, kinds[1], state)):
                target[row_N - low] = shard.part(name, lines, kind)
        return weights, state

    def _find_rows(self, table: SavedTable, low: int, high: int) -> list[tuple[_Shard, slice, NDArray[np.int64]]]:
        """Find the rows of a range in the shards, oldest generation first, which must have every row."""
        found = []
        for newer, shards in enumerate(self._shards):
            seen_R = np.zeros(high - low, np.bool_)
            for shard in shards:
                lines, row_N = shard.lines(low, high)
                if not len(row_N):
                    continue
                if (twice := seen_R[row_N - low]).any():
                    row = row_N[int(np.flatnonzero(twice)[0])]
                    raise CheckpointError(f"{shard.path} must have rows that no other shard has, got {row}")
                seen_R[row_N - low] = True
                found.append((shard, lines, row_N))
            if not newer and not self.logs and not seen_R.all():
                row = low - table.first_row + int(np.flatnonzero(~seen_R)[0])
                raise CheckpointError(
                    f"{self._generation}: row {row} of table {table.name[:80]!r} must be there; it is missing"
                )
        return found

    def _find_types(self, table: SavedTable) -> tuple[StoredArray, StoredArray]:
        if self.logs:
            weight, state = self._on_disk().types(self.tables.index(table))
            return weight, state
        for shard in (shard for shards in self._shards for shard in shards):
            if shard.has_any(table.first_row, table.first_row + table.rows):
                weight, state = shard.stored(WEIGHT), shard.stored(OPTIMIZER_STATE)
                if weight.shape[1] != table.dim:
                    rule = f"of dim {table.dim} for table {table.name[:80]!r}, got {weight.shape[1]}"
                    raise CheckpointError(f"{WEIGHT} of {shard.path} must be {rule}")
                return weight, state
        raise CheckpointError(f"{self._generation}: rows of table {table.name[:80]!r} must be there, none is")


class _Shard:
    """A file of rows."""

    def __init__(self, file: ArraysFile, path: Path, end_row: int, values: tuple[str, ...]) -> None:
        """`values`: names of the arrays besides the rows' numbers."""
        self._file, self.path = file, path
        row, *others = (self.stored(name) for name in (ROW, *values))
        self._lines = row.shape[0] if len(row.shape) == 1 and row.type in ("U32", "U64") else 0
        if ADDRESS in values:
            if not self._lines or (others[0].shape, others[0].type) != (row.shape, "U32"):
                raise CheckpointError(f"{path} must hold {ROW} (N,) and {ADDRESS} (N,) of U32; these are missing")
        elif not self._lines or any(len(each.shape) != 2 or each.shape[0] != self._lines for each in others):
            raise CheckpointError(
                f"{path} must hold {ROW} (N,), {WEIGHT} (N, D) and {OPTIMIZER_STATE} (N, K); these are missing"
            )
        row_bytes = sum(each.size_bytes for each in others) // self._lines
        if not 0 < row_bytes <= _MAX_ROW_BYTES:
            raise CheckpointError(f"rows of {path} must have 1 to {_MAX_ROW_BYTES} bytes, got {row_bytes}")
        self._first_row_B, self._last_row = self._read_rows(end_row)

    def stored(self, name: str) -> StoredArray:
        if name not in self._file.arrays:
            raise CheckpointError(f"{self.path} must hold {name}, which is missing")
        return self._file.arrays[name]

    def addresses(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint32]]]:
        """Yield all rows and their addresses."""
        for start in range(0, self._lines, 64 * _BLOCK):
            lines = slice(start, start + 64 * _BLOCK)
            yield self._file.rows(ROW, lines.start, lines.stop).astype(np.int64), self.addresses_of(lines)

    def addresses_of(self, lines: slice) -> NDArray[np.uint32]:
        return self._file.rows(ADDRESS, lines.start, lines.stop)

    def lines(self, low: int, high: int) -> tuple[slice, NDArray[np.int64]]:
        """Return the lines of rows in a range, and the numbers of these rows."""
        if self._last_row < low or high <= self._first_row_B[0]:
            return slice(0, 0), np.empty(0, np.int64)
        start_line, row_N = self._around(low, high)
        start, stop = (int(place) for place in np.searchsorted(row_N, (low, high)))
        return slice(start_line + start, start_line + stop), row_N[start:stop]

    def has_any(self, low: int, high: int) -> bool:
        """Return whether the shard has any row of a range."""
        if self._last_row < low or high <= self._first_row_B[0]:
            return False
        if ((self._first_row_B >= low) & (self._first_row_B < high)).any():
            return True
        _, row_N = self._around(low, low + 1)
        return bool(((row_N >= low) & (row_N < high)).any())

    def part(self, name: str, lines: slice, like: StoredArray) -> NDArray[Any]:
        stored = self.stored(name)
        if (stored.type, stored.shape[1:]) != (like.type, like.shape[1:]):
            rule = f"{list(like.shape[1:])} {like.type}, got {list(stored.shape[1:])} {stored.type}"
            raise CheckpointError(f"{name} of {self.path} must be as in the shards before it, rows of {rule}")
        return self._file.rows(name, lines.start, lines.stop)

    def _around(self, low: int, high: int) -> tuple[int, NDArray[np.int64]]:
        """Return the first line and the rows of the blocks that may have rows of a range."""
        first = max(0, int(np.searchsorted(self._first_row_B, low, "right")) - 1)
        end = int(np.searchsorted(self._first_row_B, high))
        return first * _BLOCK, self._file.rows(ROW, first * _BLOCK, end * _BLOCK).astype(np.int64)

    def _read_rows(self, end_row: int) -> tuple[NDArray[np.int64], int]:
        """Check all row numbers. Returns the first one of each block, and the last of all."""
        firsts, last = [], -1
        for start in range(0, self._lines, 64 * _BLOCK):
            row_N = self._file.rows(ROW, start, start + 64 * _BLOCK)
            if (most := int(row_N.max())) >= end_row:
                raise CheckpointError(f"{ROW} of {self.path} must be below {end_row}, as the tables are, got {most}")
            row_N = row_N.astype(np.int64)
            if (np.diff(row_N, prepend=last) <= 0).any():
                raise CheckpointError(f"{ROW} of {self.path} must be distinct and ascending numbers")
            firsts.append(row_N[::_BLOCK].copy())
            last = int(row_N[-1])
        return np.concatenate(firsts), last


def saved_tables(files: Files, generation: Path) -> list[SavedTable]:
    """Read a generation's tables from its ``state.json``; each row of the joint row space must be of one of them."""
    path = generation / STATE
    found = read_json_file(files, path)
    for key in ("run", "tables"):
        found = found.get(key) if isinstance(found, Mapping) else None
    if not isinstance(found, list) or not found:
        raise CheckpointError(f"{path} must have a list of tables in run.tables, it has none")
    tables = [_saved_table(each, path) for each in found]
    end_row = 0
    for table in sorted(tables, key=lambda table: table.first_row):
        if table.first_row != end_row:
            name = repr(table.name[:80])
            raise CheckpointError(f"first_row of table {name} in {path} must be {end_row}, got {table.first_row}")
        end_row += table.rows
    if end_row > _MAX_ROWS:
        raise CheckpointError(f"tables in {path} must have {_MAX_ROWS} rows or fewer, got {end_row}")
    return tables


def saved_seed(files: Files, generation: Path) -> int:
    """Read the seed of a generation's run."""
    path = generation / STATE
    found = read_json_file(files, path)
    seed = found.get("run", {}).get("seed") if isinstance(found, dict) and isinstance(found.get("run"), dict) else None
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 1 << 63:
        raise CheckpointError(f"run.seed in {path} must be a whole number from 0 to 2^63 - 1, got {_short(seed)}")
    return seed


def _saved_table(found: Any, path: Path) -> SavedTable:
    sizes: dict[str, int] = {}
    for name, least in (("rows", 1), ("dim", 1), ("first_row", 0)):
        value = found.get(name) if isinstance(found, Mapping) else None
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MAX_ROWS:
            rule = f"a whole number from {least} to {_MAX_ROWS}"
            raise CheckpointError(f"{name} of a table in {path} must be {rule}, got {_short(value)}")
        sizes[name] = value
    if not isinstance(found.get("name"), str):
        raise CheckpointError(f"name of a table in {path} must be a text, got {_short(found.get('name'))}")
    return SavedTable(name=found["name"], **sizes)


def _short(value: Any) -> str:
    if isinstance(value, int) and abs(value) >= 1 << 64:
        return "a larger one" if value > 0 else "a lower one"
    return repr(value)[:40] if value is None or isinstance(value, int | float) else type(value).__name__

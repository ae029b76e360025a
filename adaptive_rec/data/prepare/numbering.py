"""The second stage of preparing gives the keys of a table contiguous ids, in memory that does not grow with their number."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.prepare.arrays import npy_header
from adaptive_rec.errors import DataError
from adaptive_rec.kernels import number_keys as kernels

FIRST_SLOTS = 1 << 12
GROWTH = 4
FULL_RATIO = 0.7
SLOT_BYTES = 16
CHUNK_KEYS = 1 << 20
MAX_ROWS = (1 << 31) - 1
MAX_PARTITION_BITS = 12


@dataclass(frozen=True)
class KeyFile:
    """Keys of one column of one source, and where their ids go."""

    path: Path
    key_bytes: int
    keys: int
    ids_path: Path

    def chunks(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield (number of the first key, keys), chunk by chunk."""
        if self.keys:
            keys_N = np.memmap(self.path, f"<u{self.key_bytes}", "r", shape=(self.keys,))
            for start in range(0, self.keys, CHUNK_KEYS):
                yield start, keys_N[start : start + CHUNK_KEYS]

    @property
    def header(self) -> bytes:
        """The header of the file of ids: those of bags are an array of the prepared folder, other ids have no header."""
        return npy_header(np.dtype("<i4"), (self.keys,)) if self.ids_path.suffix == ".npy" else b""


class Numbering:
    """Numbers the keys of one table over all its files; see `kernels/number_keys.py`.

    A partition's hash table grows to `max_slots`; where that does not suffice the keys are spread over twice as many
    partitions, and counting starts again.
    """

    def __init__(
        self, files: list[KeyFile], min_count: int, scratch: Path, max_slots: int, report: Callable[[int], None]
    ) -> None:
        """`scratch` is the path with which the names of scratch files begin; `report` gets the number of keys of each chunk."""
        self._files, self._min_count, self._scratch, self._report = files, min_count, scratch, report
        self._max_slots = max_slots
        self._bits = 0

    def run(self) -> int:
        """Write the ids of all files; returns the rows of the table."""
        tables = self._count()
        while tables is None:
            self._bits += 1
            if self._bits > MAX_PARTITION_BITS:
                raise DataError(f"{self._scratch.name} has more distinct values than can be numbered")
            tables = self._count()
        keys = sum(file.keys for file in self._files)
        marks_path = self._scratch.with_suffix(".marks")
        marks_W = self._make_marks(marks_path, -(-keys // 64) or 1)
        marked = sum(kernels.mark_first(self._load(table), self._min_count, marks_W) for table in tables)
        if kernels.FIRST_ID + marked > MAX_ROWS:
            raise DataError(
                f"a table must have at most {MAX_ROWS} rows, {self._scratch.name} has {marked}; raise --min-count"
            )
        sums = np.empty(-(-len(marks_W) // kernels.WORDS_PER_SUM), dtype=np.int64)
        kernels.sum_marks(marks_W, sums)
        for partition, table in enumerate(tables):
            table_S2 = self._load(table)
            kernels.give_ids(table_S2, self._min_count, marks_W, sums)
            self._write(partition, table_S2)
            del table_S2
            if isinstance(table, Path):
                table.unlink()
        marks_path.unlink()
        return kernels.FIRST_ID + marked

    def _count(self) -> list[Path | NDArray[np.uint64]] | None:
        """Return the counted table of each partition, in memory if there is only one; None where one does not fit."""
        tables: list[Path | NDArray[np.uint64]] = []
        for partition in range(1 << self._bits):
            table_S2 = self._count_partition(partition)
            if table_S2 is None:
                return None
            if not self._bits:
                return [table_S2]
            path = self._scratch.with_suffix(f".{partition}.npy")
            np.save(path, table_S2)
            tables.append(path)
            del table_S2  # or there would be two while the next one grows
        return tables

    def _load(self, table: Path | NDArray[np.uint64]) -> NDArray[np.uint64]:
        return np.load(table, allow_pickle=False) if isinstance(table, Path) else table

    def _count_partition(self, partition: int) -> NDArray[np.uint64] | None:
        table_S2, used, first_position = np.zeros((FIRST_SLOTS, 2), dtype=np.uint64), 0, 0
        for file in self._files:
            for start, keys_N in file.chunks():
                done = 0
                while True:
                    room = int(FULL_RATIO * len(table_S2))
                    done, used = kernels.count_keys(
                        keys_N, done, first_position + start, partition, self._bits, table_S2, used, room
                    )
                    if done == len(keys_N):
                        break
                    if len(table_S2) >= self._max_slots:
                        return None
                    larger_S2 = np.zeros((min(GROWTH * len(table_S2), self._max_slots), 2), dtype=np.uint64)
                    kernels.move_table(table_S2, larger_S2)
                    table_S2 = larger_S2
                self._report(len(keys_N) >> (self._bits + 1))
            first_position += file.keys
        return table_S2

    def _make_marks(self, path: Path, words: int) -> NDArray[np.uint64]:
        """Make a bitmap in a file, which need not stay in memory. Its room is claimed first: on a full disk a write to the
        map would kill the process."""
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 8 * words)
        return np.memmap(path, "<u8", "r+", shape=(words,))

    def _write(self, partition: int, table_S2: NDArray[np.uint64]) -> None:
        for file in self._files:
            header = file.header
            with file.ids_path.open("r+b" if partition else "wb") as ids_file:
                ids_file.write(header)
                for start, keys_N in file.chunks():
                    if partition:
                        ids_N = np.fromfile(ids_file, "<i4", len(keys_N))
                        ids_file.seek(len(header) + 4 * start)
                    else:
                        ids_N = np.empty(len(keys_N), dtype=np.int32)
                    kernels.write_ids(keys_N, partition, self._bits, table_S2, ids_N)
                    ids_file.write(ids_N.data)
                    self._report(len(keys_N) >> (self._bits + 1))

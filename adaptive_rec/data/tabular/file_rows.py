"""The rows of a user's own files as one sequence with raw keys, read from any row on, a block at a time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.loaded_samples import ColumnBags, LoadedSamples, offsets_of
from adaptive_rec.data.prepare.formats import check_source
from adaptive_rec.data.prepare.raw import RawBlock, RawReader, SparseColumn
from adaptive_rec.data.tabular.open_rows import Parts
from adaptive_rec.data.tabular.reader import Mark, TabularReader
from adaptive_rec.data.tabular.schema import Schema
from adaptive_rec.data.tabular.times import time_text
from adaptive_rec.data.tabular.values import raw_keys
from adaptive_rec.errors import DataError

MARKED_ROWS = 1 << 14
"""The least number of rows between two marks that are kept, which limits their number."""
PIECE_ROWS = 1 << 12
"""Rows that are looked at together where some of a file are wanted alone."""


class FileRows:
    """Files that are read as one table. Each is read once when it is opened, to count its rows."""

    def __init__(self, paths: list[Path], schema: Schema, skip_bad_rows: bool, by_time: bool = False) -> None:
        """`by_time`: rows must be in order of time. Raises DataError where a file cannot be read, or where a label, a time, or a
        column that none of the files has is missing."""
        self._schema, self._skip_bad_rows, self._by_time = schema, skip_bad_rows, by_time
        self._paths, self._parts = paths, Parts(paths, schema.file)
        common = CommonColumns()
        for path in paths:
            check_source(path)
            common.check(path, self._reader(path))
        self.columns, self.dense_names, self.kind_of = common.columns, common.dense_names, common.kind_of
        self._marks: list[list[Mark]] = []
        self._first = [0]
        """The first row of each file, and the end of the last one."""
        self.bad_rows = 0
        self._labels: list[tuple[int, NDArray[np.uint8]]] = []
        """Rows, and their labels as bits, part after part."""
        for path in paths:
            reader = self._reader(path)
            marks = _thinned(reader.marks())
            self._labels += reader.labels
            self._marks.append(marks)
            self._first.append(self._first[-1] + marks[-1].rows)
            self.bad_rows += marks[-1].bad_rows

    def __len__(self) -> int:
        return self._first[-1]

    def read(self, row: int, dense_only: bool = False) -> Iterator[LoadedSamples]:
        """Yield all rows from one on, block by block. `dense_only`: without keys. Raises DataError where a row must be in order
        of time and is not."""
        order = TimeOrder(self._schema.time.column) if self._by_time else None
        file = bisect_left(self._first, row + 1) - 1
        for path, first, marks in zip(self._paths[file:], self._first[file:], self._marks[file:], strict=False):
            left = max(row - first, 0)
            at = bisect_left([mark.rows for mark in marks], left)
            mark = marks[at if marks[at].rows == left else at - 1]
            left -= mark.rows
            rows = mark.rows
            for block in self._reader(path, dense_only).blocks(mark):
                if order is not None and block.times_B is not None:
                    order.check(path, rows, block.times_B)
                rows += len(block.labels_B)
                samples = loaded(block)
                size = len(samples.labels_B)
                if left < size:
                    yield samples[left:size]
                left = max(left - size, 0)

    def positives(self, rows: range) -> int:
        """Return how many of some rows have label 1."""
        found, first = 0, 0
        for size, bits in self._labels:
            start, stop = max(rows.start, first), min(rows.stop, first + size)
            if start < stop:
                found += int(np.unpackbits(bits, count=size)[start - first : stop - first].sum())
            first += size
        return found

    def forget_labels(self) -> None:
        """Give up the labels, for which `positives` is not asked any more."""
        self._labels.clear()

    def pieces(self, wanted: list[range], most_passed: int) -> list[tuple[int, LoadedSamples]]:
        """Return some ranges of rows, which ascend, in pieces, each with the number of its first row. Those are left out that lie
        further than `most_passed` rows behind the nearest place at which reading can begin. What lies between is not looked at.
        Raises DataError."""
        of_mark: dict[tuple[int, int], list[range]] = {}
        of_file = ((file, rows) for rows in wanted for file, rows in enumerate(self._in_files(rows)) if len(rows))
        for file, rows in of_file:
            places = [self._first[file] + mark.rows for mark in self._marks[file][:-1]]
            at = bisect_left(places, rows.start + 1) - 1
            if rows.stop - places[at] <= most_passed:
                of_mark.setdefault((file, at), []).append(rows)
        return [piece for (file, at), ranges in of_mark.items() for piece in self._behind(file, self._marks[file][at], ranges)]

    def _in_files(self, rows: range) -> list[range]:
        """Return which of some rows each file has."""
        return [
            range(max(rows.start, first), min(rows.stop, end)) for first, end in zip(self._first, self._first[1:], strict=False)
        ]

    def _behind(self, file: int, mark: Mark, wanted: list[range]) -> Iterator[tuple[int, LoadedSamples]]:
        """Yield the parts of ranges of rows behind a mark of a file."""
        first, last = self._first[file], wanted[-1].stop

        def is_wanted(start: int, stop: int) -> bool:
            return any(rows.start < first + stop and first + start < rows.stop for rows in wanted)

        for before, block in self._reader(self._paths[file]).numbered_blocks(mark, is_wanted, PIECE_ROWS):
            start, samples = first + before, loaded(block)
            stop = start + len(samples.labels_B)
            for rows in wanted:
                low, high = max(rows.start, start), min(rows.stop, stop)
                if low < high:
                    yield low, samples[low - start : high - start]
            if stop >= last:
                return

    def _reader(self, path: Path, dense_only: bool = False) -> TabularReader:
        schema = self._schema.without_groups().model_copy(update={"sparse": ()}) if dense_only else self._schema
        return TabularReader(path, schema, self._skip_bad_rows, keeps_values=False, parts=self._parts)


class TimeOrder:
    """A check that rows, read block by block, are in order of time."""

    def __init__(self, column: str) -> None:
        self._column = column
        self._latest: int | None = None

    def check(self, path: Path, rows_before: int, times_B: NDArray[np.int64]) -> None:
        """Raise DataError for the first row that is earlier than the one before it. `rows_before`: well-formed rows of the file
        before these."""
        before = times_B[:1] if self._latest is None else np.array([self._latest])
        falls = np.flatnonzero(np.diff(np.append(before, times_B)) < 0)
        if len(falls):
            row = int(falls[0])
            was = int(times_B[row - 1]) if row else int(before[0])
            raise DataError(
                f"{path}, well-formed row {rows_before + row + 1}, column {self._column}: rows must be in order of time where "
                f'data.order = "time" and data.ids = "raw", got {time_text(int(times_B[row]))} after {time_text(was)}; sort the '
                "files, or leave out data.ids=raw to have them sorted"
            )
        self._latest = int(times_B[-1]) if len(times_B) else self._latest


class CommonColumns:
    """The columns that files have in common, with values of one type in a table: else equal values would have different keys."""

    def __init__(self) -> None:
        self.columns: tuple[SparseColumn, ...] = ()
        self.dense_names: tuple[str, ...] = ()
        self._first: Path | None = None
        self._kinds: dict[str, tuple[str, str]] = {}
        """The type of each table's values, and where it was found."""

    @property
    def kind_of(self) -> dict[str, str]:
        """The type of each table's values, integer or text; a table without any has none."""
        return {table: kind for table, (kind, _) in self._kinds.items()}

    def check(self, path: Path, reader: TabularReader) -> None:
        """Raise DataError where a file has other columns than the first one."""
        if self._first is None:
            self._first, self.columns, self.dense_names = path, reader.columns, reader.dense_names
        elif (reader.columns, reader.dense_names) != (self.columns, self.dense_names):
            raise of_other_columns(path, reader, self._first, self.columns, self.dense_names)
        for column, kind in zip(reader.columns, reader.kinds, strict=True):
            where = f"column {column.name} of {path}"
            known, before = self._kinds.setdefault(column.table, (kind, where)) if kind else (kind, where)
            if kind != known:
                raise DataError(
                    f"values of a table must have one type, {before} has type {known} and {where} has type {kind}; "
                    'write type = "text" for both in the schema'
                )


def of_other_columns(
    path: Path, reader: RawReader, first: Path, columns: tuple[SparseColumn, ...], dense_names: tuple[str, ...]
) -> DataError:
    """Return the error for a file with other columns than the first one, which names one of them."""
    known = {column.name: column for column in columns}
    new = {column.name: column for column in reader.columns}
    names = [name for name in (*new, *known) if new.get(name) != known.get(name)]
    names += [name for name in (*reader.dense_names, *dense_names) if (name in dense_names) != (name in reader.dense_names)]
    if not names:
        return DataError(f"all sources must have the same columns, {path} has others than {first}", faq="other-columns")
    name = names[0]
    if name in new and name in known:
        lists, single = (path, first) if new[name].bag else (first, path)
        return DataError(
            f"all sources must have the same columns, {name} has lists in {lists} and single values in {single}: give it a "
            'separator in the schema, or leave it out',
            faq="other-columns",
        )
    has, lacks = (path, first) if name in new or name in reader.dense_names else (first, path)
    return DataError(f"all sources must have the same columns, {name} is in {has} and not in {lacks}", faq="other-columns")


def loaded(block: RawBlock) -> LoadedSamples:
    """Return rows with their raw keys as ids."""
    keys_F = [raw_keys(keys_N) for keys_N in block.values_F]
    of_column = list(zip(keys_F, block.lengths_F, strict=True))
    singles = [keys_N for keys_N, lengths_B in of_column if lengths_B is None]
    keys_BC = np.stack(singles, axis=1) if singles else np.empty((len(block.labels_B), 0), dtype=np.int64)
    beside = (block.times_B, block.weights_B, block.groups_B)
    bags = [ColumnBags(keys_N, offsets_of(n.astype(np.int64))) for keys_N, n in of_column if n is not None]
    return LoadedSamples(block.dense_BX, block.labels_B.astype(np.int32), keys_BC, tuple(bags), *beside)


def _thinned(marks: Iterator[Mark]) -> list[Mark]:
    """Return the first mark, the last one, which is the file's end, and some of those between."""
    kept: list[Mark] = []
    last = Mark()
    for last in marks:
        if not kept or last.rows >= kept[-1].rows + MARKED_ROWS:
            kept.append(last)
    return [*kept, last]

"""The arrays of a prepared folder as one sequence of rows."""

from __future__ import annotations

import math
import os
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import BESIDE
from adaptive_rec.data.loaded_samples import ColumnBags, Columns, LoadedSamples, offsets_of
from adaptive_rec.data.prepare.meta import Meta, bag_files, beside_file, dense_file, labels_file, sparse_file
from adaptive_rec.errors import DataError, first_line

EMPTY_FILE_BYTES = 4096
"""A size that no header exceeds."""


NEAR_ROWS = 64
"""Rows that are this near to each other are read together, with those between them, where the order is by time."""


class FolderArrays:
    """All arrays of a folder; rows are numbered over all its sources, or by time."""

    def __init__(
        self, folder: Path, meta: Meta, table_rows_F: tuple[int, ...], by_time: bool = False, with_times: bool = False
    ) -> None:
        """`table_rows_F` are the rows of each column's table, into which ids are folded. `by_time`: rows are numbered in order of
        time. `with_times`: samples have their times, where the folder has any."""
        self.columns = Columns.of(meta)
        self._folds = any(rows < column.cardinality for rows, column in zip(table_rows_F, meta.columns, strict=True))
        of_column = list(zip(meta.columns, table_rows_F, strict=True))
        self._rows_C = np.array([rows for column, rows in of_column if not column.bag], dtype=np.int32)
        self._bag_rows = [rows for column, rows in of_column if column.bag]
        self._starts = offsets_of(np.array([source.rows for source in meta.sources]))
        beside = tuple(array for array in meta.beside if with_times or array != "times_B")
        self._sources = [MappedSource(folder, meta, source.name, source.rows, beside) for source in meta.sources]
        self._rows, order = meta.rows, meta.time_order if by_time else None
        self._order = None if order is None else NpyRows(folder / order.name, np.int64, (meta.rows,))

    def read(self, start: int, stop: int) -> LoadedSamples:
        """Copy rows from `start` to `stop` into memory."""
        if self._order is None:
            return self.read_in_file(start, stop)
        row_B = self._ordered(self._order, start, stop)
        samples = [self.read_in_file(first, end).take(inside_R) for first, end, inside_R in near_rows(np.sort(row_B))]
        return LoadedSamples.joined(samples).take(places(row_B))

    def numbers(self, rows: range) -> NDArray[np.int64]:
        """Return the numbers in the order of the files of some rows."""
        if self._order is None:
            return np.arange(rows.start, rows.stop)
        return self._ordered(self._order, rows.start, rows.stop)

    @property
    def is_reordered(self) -> bool:
        """Whether rows are numbered in another order than that of the files."""
        return self._order is not None

    def _ordered(self, order: NpyRows, start: int, stop: int) -> NDArray[np.int64]:
        """Return the rows at some places of the order by time."""
        row_B: NDArray[np.int64] = order.read(start, stop)
        check_values(order, f"rows must lie in [0, {self._rows})", start, row_B, (row_B >= 0) & (row_B < self._rows))
        return row_B

    def read_in_file(self, start: int, stop: int) -> LoadedSamples:
        """Copy rows from `start` to `stop` into memory, by their numbers in the order of the files."""
        samples = LoadedSamples.joined([source.read(first, end) for source, first, end in self._in_file(start, stop)])
        self.fold(samples)
        return samples

    def _in_file(self, start: int, stop: int) -> Iterator[tuple[MappedSource, int, int]]:
        """Yield the sources of rows, by their numbers in the order of the files, and which of their rows these are."""
        source = int(np.searchsorted(self._starts, start, side="right")) - 1
        while start < stop:
            first, end = int(self._starts[source]), min(stop, int(self._starts[source + 1]))
            yield self._sources[source], start - first, end - first
            start, source = end, source + 1

    def labels_in_file(self, rows: range) -> NDArray[np.int32]:
        """Copy the labels of rows, by their numbers in the order of the files."""
        return np.concatenate([each.labels(first, end) for each, first, end in self._in_file(rows.start, rows.stop)])

    def ids_in_file(self, rows: range) -> NDArray[np.int32]:
        """Copy the ids of rows, by their numbers in the order of the files, of the columns without bags."""
        ids_BC = np.concatenate([each.ids(first, end) for each, first, end in self._in_file(rows.start, rows.stop)])
        return np.remainder(ids_BC, self._rows_C) if self._folds else ids_BC

    def fold(self, samples: LoadedSamples) -> None:
        """Fold ids into tables that are smaller than the folder's, in place."""
        if self._folds:
            np.remainder(samples.ids_BC, self._rows_C, out=samples.ids_BC)
            for bags, rows in zip(samples.bags, self._bag_rows, strict=True):
                np.remainder(bags.values_N, np.int32(rows), out=bags.values_N)

    def dense(self, start: int, stop: int) -> NDArray[np.float32]:
        """Copy the dense features of rows from `start` to `stop` into memory."""
        return self._of_each(start, stop, MappedSource.dense)

    def weights(self, start: int, stop: int) -> NDArray[np.float32]:
        """Copy the weights of rows from `start` to `stop` into memory, which must have some."""
        return self._of_each(start, stop, MappedSource.weights)

    def _of_each(self, start: int, stop: int, read: Read) -> NDArray[np.float32]:
        """Copy an array of rows from `start` to `stop` into memory."""
        if self._order is None:
            return self._read_in_file(start, stop, read)
        row_B = self._ordered(self._order, start, stop)
        parts = [self._read_in_file(first, end, read)[inside_R] for first, end, inside_R in near_rows(np.sort(row_B))]
        return np.concatenate(parts)[places(row_B)]

    def _read_in_file(self, start: int, stop: int, read: Read) -> NDArray[np.float32]:
        return np.concatenate([read(source, first, end) for source, first, end in self._in_file(start, stop)])


def near_rows(row_B: NDArray[np.int64]) -> list[tuple[int, int, NDArray[np.int64]]]:
    """Cut sorted rows into groups to be read together: first row, row after the last, and the group's rows from the first on."""
    groups = np.split(row_B, np.flatnonzero(np.diff(row_B) > NEAR_ROWS) + 1)
    return [(int(rows[0]), int(rows[-1]) + 1, rows - rows[0]) for rows in groups if len(rows)]


def places(row_B: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each of some distinct rows is once they are sorted."""
    place_B = np.empty(len(row_B), dtype=np.int64)
    place_B[np.argsort(row_B)] = np.arange(len(row_B))
    return place_B


class MappedSource:
    """The arrays made of one source."""

    def __init__(self, folder: Path, meta: Meta, name: str, rows: int, beside: tuple[str, ...]) -> None:
        """`beside`: the arrays that samples have beside their features."""
        self._single = [column for column in meta.columns if not column.bag]
        self._with_bags = [column for column in meta.columns if column.bag]
        self._most_ids = (
            {history.column: meta.sequence.steps for history in meta.sequence.histories} if meta.sequence else {}
        )
        schema, single = meta.columns_schema, len(self._single)
        self._may_miss_X = np.zeros(len(meta.dense_names), dtype=bool)
        self._may_miss_X[list(schema.standard_columns if schema else ())] = True
        self._rows_C = np.array([column.cardinality for column in self._single], dtype=np.int32)
        self._dense_RX = NpyRows(folder / dense_file(name), np.float32, (rows, len(meta.dense_names)))
        self._labels_R1 = NpyRows(folder / labels_file(name), np.int32, (rows, 1))
        self._ids_RC = NpyRows(folder / sparse_file(name), np.int32, (rows, single)) if single else None
        self._beside = {each: NpyRows(folder / beside_file(name, each), BESIDE[each], (rows,)) for each in beside}
        self._bags = []
        for column in meta.columns:
            if column.bag:
                values, offsets = (folder / file for file in bag_files(name, column.name))
                offsets_R = NpyRows(offsets, np.int64, (rows + 1,))
                values_N = NpyRows(values, np.int32, (int(offsets_R.read(rows, rows + 1)[0]),))
                self._bags.append((values_N, offsets_R))

    def read(self, start: int, stop: int) -> LoadedSamples:
        """Copy rows from `start` to `stop` into memory. Raises DataError where a label is not 0 or 1, a dense value is not
        finite, an id lies outside its table, offsets do not rise, a history is too long, or a file has become shorter."""
        bags = []
        for column, (values_N, offsets_R) in zip(self._with_bags, self._bags, strict=True):
            offsets = offsets_R.read(start, stop + 1)
            if offsets[0] < 0 or offsets[-1] > len(values_N) or (np.diff(offsets) < 0).any():
                raise DataError(
                    f"offsets of bags must rise from 0 to {len(values_N)}, those of rows {start} to {stop} do not"
                )
            lengths_B, most = np.diff(offsets), self._most_ids.get(column.name, len(values_N))
            check_values(offsets_R, f"histories must have at most {most} steps", start, lengths_B, lengths_B <= most)
            ids_N = values_N.read(int(offsets[0]), int(offsets[-1]))
            inside_N = (ids_N >= 0) & (ids_N < column.cardinality)
            check_values(values_N, f"ids must lie in [0, {column.cardinality})", int(offsets[0]), ids_N, inside_N)
            bags.append(ColumnBags(ids_N, offsets - offsets[0]))
        dense_BX, labels_B, ids_BC = self.dense(start, stop), self.labels(start, stop), self.ids(start, stop)
        beside = {array: rows_R.read(start, stop) for array, rows_R in self._beside.items() if array != "weights_B"}
        weights_B = self.weights(start, stop) if "weights_B" in self._beside else None
        return LoadedSamples(dense_BX, labels_B, ids_BC, tuple(bags), **beside, weights_B=weights_B)

    def weights(self, start: int, stop: int) -> NDArray[np.float32]:
        """Copy weights into memory. Raises DataError where one is not finite or below 0."""
        rows_R = self._beside["weights_B"]
        weights_B: NDArray[np.float32] = rows_R.read(start, stop)
        check_values(rows_R, "weights must be finite and at least 0", start, weights_B, np.isfinite(weights_B) & (weights_B >= 0))
        return weights_B

    def labels(self, start: int, stop: int) -> NDArray[np.int32]:
        """Copy labels into memory. Raises DataError where one is not 0 or 1."""
        labels_B: NDArray[np.int32] = self._labels_R1.read(start, stop)[:, 0]
        check_values(self._labels_R1, "labels must be 0 or 1", start, labels_B, (labels_B == 0) | (labels_B == 1))
        return labels_B

    def ids(self, start: int, stop: int) -> NDArray[np.int32]:
        """Copy ids of the columns without bags into memory. Raises DataError where one lies outside its table."""
        if self._ids_RC is None:
            return np.empty((stop - start, 0), np.int32)
        ids_BC: NDArray[np.int32] = self._ids_RC.read(start, stop)
        rule = "ids must lie below the rows of their tables and not below 0"
        check_values(self._ids_RC, rule, start, ids_BC, (ids_BC >= 0) & (ids_BC < self._rows_C))
        return ids_BC

    def dense(self, start: int, stop: int) -> NDArray[np.float32]:
        """Copy dense features into memory. Raises DataError where one is not finite; NaN stands for a missing number that is
        transformed later."""
        dense_BX = self._dense_RX.read(start, stop)
        finite_BX = np.isfinite(dense_BX) | (np.isnan(dense_BX) & self._may_miss_X)
        check_values(self._dense_RX, "dense values must be finite", start, dense_BX, finite_BX)
        return dense_BX


Read = Callable[[MappedSource, int, int], NDArray[np.float32]]
"""Copies an array of some rows of a source into memory."""


class NpyRows:
    """The array of a ``.npy`` file. Rows are read, not mapped: where a mapped file becomes shorter, the process is killed."""

    def __init__(self, path: Path, dtype: type, shape: tuple[int, ...]) -> None:
        """Raises DataError where the file does not hold the expected array."""
        array = mapped(path, dtype, shape)
        self.path = path
        self._dtype, self._shape = array.dtype, shape
        self._start_byte = int(getattr(array, "offset", 0))
        self._row_bytes = array.dtype.itemsize * math.prod(shape[1:])
        self._file = path.open("rb", buffering=0)
        weakref.finalize(self, self._file.close)

    def __len__(self) -> int:
        return self._shape[0]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Copy rows from `start` to `stop` into memory. Raises DataError."""
        rows = np.empty((stop - start, *self._shape[1:]), self._dtype)
        left, place = rows.reshape(-1).view(np.uint8).data, self._start_byte + start * self._row_bytes
        while left:
            try:
                got = os.preadv(self._file.fileno(), [left], place)
            except OSError as error:
                raise DataError(f"{self.path}: reading failed: {error.strerror}") from None
            if not got:
                raise DataError(
                    f"{self.path} must keep its rows while it is read, rows {start} to {stop} are not there any more"
                )
            left, place = left[got:], place + got
        return rows


def check_values(array: NpyRows, rule: str, start: int, values: NDArray[Any], right: NDArray[np.bool_]) -> None:
    """Raise DataError where a value that was read from a row on breaks a rule."""
    if not right.all():
        place = np.argwhere(~right)[0]
        raise DataError(f"{array.path}: {rule}, row {start + int(place[0])} has {values[tuple(place)]}")


def mapped(path: Path, dtype: type, shape: tuple[int, ...]) -> NDArray[Any]:
    """Map a ``.npy`` file for reading; raise DataError where it is not the expected array."""
    array: NDArray[Any]
    try:
        if shape[0]:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # of headers that Python 2 wrote
                warnings.simplefilter("ignore", ResourceWarning)  # of files of others, which may be freed meanwhile
                array = np.lib.format.open_memmap(path, mode="r")
        elif path.stat().st_size <= EMPTY_FILE_BYTES:  # an empty array cannot be mapped
            array = np.load(path, allow_pickle=False)
        else:
            raise DataError(f"{path} must hold an array without rows, it is too large for that")
    except DataError:
        raise
    except PermissionError as error:  # it may be whole all the same
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except Exception as error:  # NumPy evaluates headers as Python and can fail in many ways
        objects = "pickle" in str(error)  # NumPy's words advise to load it without safety
        reason = "it holds objects or no array" if objects else f"{type(error).__name__}: {first_line(error)}"
        raise DataError(f"{path} must be a .npy file: {reason}") from None
    if array.dtype != dtype or array.shape != shape:
        expected = f"{np.dtype(dtype).name} of shape {shape}"
        raise DataError(f"{path} must be {expected}, got {array.dtype} of shape {array.shape}")
    if not array.flags.c_contiguous:
        raise DataError(f"{path} must hold its array row by row (C order), got Fortran order")
    return array

"""The first stage of preparing reads a source: it writes its final dense features, labels and bag offsets, and a file of keys for
each sparse column."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import BESIDE
from adaptive_rec.config.knobs import Frozen
from adaptive_rec.data.prepare.arrays import NpyWriter
from adaptive_rec.data.prepare.meta import bag_files, beside_file, dense_file, labels_file
from adaptive_rec.data.prepare.raw import RawBlock, RawReader, SparseColumn, arrays_beside, check_block
from adaptive_rec.data.prepare.values import FirstValues
from adaptive_rec.errors import DataError
from adaptive_rec.system.durable import sync_files


class ReadSource(Frozen):
    """The result of reading a source."""

    rows: int
    bad_rows: int
    bad_of: dict[str, int] = {}
    """Bad rows by the column that breaks its rule first, of files with a schema."""
    key_bytes: tuple[int, ...]
    """Bytes of a key of each column: 4 or 8."""
    keys: tuple[int, ...]
    """Keys of each column."""


def keys_file(scratch: Path, name: str, column: int) -> Path:
    return scratch / f"{name}.{column}.keys"


def first_values_file(scratch: Path, name: str, column: int) -> Path:
    return scratch / f"{name}.{column}.values"


def read_source(
    reader: RawReader, name: str, folder: Path, scratch: Path, report: Callable[[int, float], None]
) -> ReadSource:
    """Read a whole source; all its files are then on the disk. `report` gets (rows so far, share of the source read)."""
    with ExitStack() as stack:
        outputs = SourceWriter(reader, name, folder, scratch, stack)
        for block in reader.blocks():
            check_block(block, reader)
            outputs.append(block)
            report(outputs.labels.rows, reader.read_ratio)
    if not outputs.labels.rows:
        raise DataError(f"a source must hold at least one well-formed row, {name} has none", faq="empty-file")
    sync_files(outputs.paths)
    return ReadSource(
        rows=outputs.labels.rows,
        bad_rows=reader.bad_rows,
        bad_of=dict(reader.bad_of),
        key_bytes=tuple(column.key_bytes for column in outputs.columns),
        keys=tuple(column.keys for column in outputs.columns),
    )


class SourceWriter:
    """The files into which a source is read."""

    def __init__(self, reader: RawReader, name: str, folder: Path, scratch: Path, stack: ExitStack) -> None:
        dense, labels = folder / dense_file(name), folder / labels_file(name)
        keys = [keys_file(scratch, name, c) for c in range(len(reader.columns))]
        offsets = [folder / bag_files(name, column.name)[1] for column in reader.columns]
        bags = [path for path, column in zip(offsets, reader.columns, strict=True) if column.bag]
        values = [first_values_file(scratch, name, c) for c in range(len(reader.columns) if reader.schema else 0)]
        self.paths = [dense, labels, *bags, *keys, *values]
        self._dense = stack.enter_context(NpyWriter(dense, "<f4", len(reader.dense_names)))
        self.labels = stack.enter_context(NpyWriter(labels, "<i4", 1))
        self.columns = [ColumnWriter(*paths, stack) for paths in zip(reader.columns, keys, offsets, strict=True)]
        self._beside: dict[str, NpyWriter] = {}
        for array in arrays_beside(reader.has_times, reader.schema):
            self.paths.append(folder / beside_file(name, array))
            self._beside[array] = stack.enter_context(NpyWriter(self.paths[-1], np.dtype(BESIDE[array]).str, None))
        self._values = [stack.enter_context(FirstValues(path)) for path in values]

    def append(self, block: RawBlock) -> None:
        self._dense.append(block.dense_BX)
        self.labels.append(block.labels_B.astype(np.int32)[:, None])
        for array, writer in self._beside.items():
            writer.append(getattr(block, array))
        for column, values, lengths in zip(self.columns, block.values_F, block.lengths_F, strict=True):
            column.append(values, lengths)
        for first, (distinct, lookups_U), keys in zip(self._values, block.firsts_F or (), block.values_F, strict=False):
            first.append(distinct, lookups_U, len(keys))


class ColumnWriter:
    """The files of a sparse column: its keys, and where its bags begin."""

    def __init__(self, column: SparseColumn, path: Path, offsets_path: Path, stack: ExitStack) -> None:
        self._file: BinaryIO = stack.enter_context(path.open("wb"))
        self._offsets = stack.enter_context(NpyWriter(offsets_path, "<i8", None)) if column.bag else None
        if self._offsets is not None:
            self._offsets.append(np.zeros(1, dtype=np.int64))
        self._name = column.name
        self.key_bytes = 4
        self.keys = 0

    def append(self, values: NDArray[np.uint32] | NDArray[np.uint64], lengths: NDArray[np.int32] | None) -> None:
        if not self.keys:
            self.key_bytes = values.dtype.itemsize
        if values.dtype != np.dtype(f"<u{self.key_bytes}"):
            raise DataError(
                f"keys of column {self._name} must have one dtype, got {values.dtype} after uint{8 * self.key_bytes}"
            )
        if self._offsets is not None and lengths is not None:
            self._offsets.append(self.keys + np.cumsum(lengths, dtype=np.int64))
        self._file.write(np.ascontiguousarray(values).data)
        self.keys += len(values)

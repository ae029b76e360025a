"""Files of a user's own with a schema, as raw rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.prepare.raw import RawBlock, SparseColumn
from adaptive_rec.data.tabular.arrow_files import BLOCK_ROWS
from adaptive_rec.data.tabular.files import partition_values
from adaptive_rec.data.tabular.judged_rows import JudgedRows
from adaptive_rec.data.tabular.kinds import natural_kind
from adaptive_rec.data.tabular.open_rows import Parts, open_rows, text_of
from adaptive_rec.data.tabular.schema import CONSTANT, Schema
from adaptive_rec.data.tabular.values import is_list, label_numbers
from adaptive_rec.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Mark:
    """A place in a file at which reading can begin."""

    place: int = 0
    rows: int = 0
    """Well-formed rows before it."""
    bad_rows: int = 0
    """Malformed rows before it."""


START = Mark()


class TabularReader:
    """A reader of one file, in blocks of rows; it reads only the columns of the schema."""

    sequence = None

    def __init__(
        self,
        path: Path,
        schema: Schema,
        skip_bad_rows: bool,
        labelled: bool = True,
        keeps_values: bool = True,
        grows: bool = False,
        parts: Parts | None = None,
    ) -> None:
        """`labelled`: rows have a label. Without labels their column is not read, nor weights and groups, and all labels are 0.
        `keeps_values`: blocks have the values that their keys stand for. `grows`: only lines are read whose end is there.
        `parts`: the files that are read with it, whose columns it may lack."""
        schema = schema if labelled else schema.without_weights().without_groups()
        self._path, self.schema, self._skip_bad_rows, self._labelled = path, schema, skip_bad_rows, labelled
        self._keeps_values = keeps_values
        label = schema.comparison.column
        self._file = open_rows(path, schema.file, skip_bad_rows, grows, None if labelled else label or None)
        self._names = [name for name in schema.columns if labelled or name != label]
        self._parts = parts
        if parts is not None:
            needed = (label, schema.time.column, schema.weight)
            self._file = parts.completed(self._file, [name for name in self._names if name not in needed])
        for column in self._names:
            if column not in self._file.names:
                known = ", ".join(self._file.names)
                raise DataError(
                    f"{path} must have the column {column} of the schema, it has {known}{self._way_out(column)}",
                    faq="other-columns",
                )
        self.dense_names = tuple(column.feature for column in schema.dense) or (CONSTANT,)
        self.dense_transform = ", ".join(f"{c.column}: {c.transform}" for c in schema.dense) or "the constant 1"
        self.columns = tuple(
            SparseColumn(c.feature, c.table_name, bool(c.separator or c.list) or self._has_lists(c.column))
            for c in schema.sparse
        )
        self.has_times = bool(schema.time.column)
        self._bad_rows, self._has_read_times = 0, False
        self._bad_of: Counter[str] = Counter()
        self.mark: Mark | None = START
        """The mark at which the block begins that was yielded last; None: reading cannot begin there."""
        self.end = START
        """The mark behind all rows, once all were read."""
        self.labels: list[tuple[int, NDArray[np.uint8]]] = []
        """The labels that `marks` has read: rows, and their labels as bits."""

    def _way_out(self, column: str) -> str:
        """Return what gives the file a column that it does not have."""
        if column in partition_values(self._path):
            return f'; a folder of its path names it: write partitions = ["{column}"] under [file] of the schema'
        text = text_of(self._file)
        fault = text.row_fault if text else ""
        return f": {fault}" if fault else ""

    @property
    def lacking(self) -> list[str]:
        """What is to be said of columns that some of the files that are read with it lack, and others have."""
        return [] if self._parts is None else self._parts.lacking(self._names)

    @property
    def bad_rows(self) -> int:
        return self._bad_rows + self._file.bad_rows

    @property
    def bad_of(self) -> dict[str, int]:
        """Malformed rows that were skipped so far, by the column that breaks its rule first; `row` stands for rows that could not
        be read as such."""
        return ({"row": self._file.bad_rows} if self._file.bad_rows else {}) | dict(self._bad_of)

    @property
    def read_ratio(self) -> float:
        return self._file.read_ratio

    @property
    def kinds(self) -> tuple[str, ...]:
        """The type of each sparse column's values; empty for a Parquet column that has none, or bytes."""
        return tuple(column.type or self._kind(column.column) for column in self.schema.sparse)

    def _kind(self, column: str) -> str:
        if self._file.schema is None:
            return "text"

        kind: Any = self._file.schema.field(column).type
        return natural_kind(kind.value_type if is_list(kind) else kind) or ""

    def _has_lists(self, column: str) -> bool:
        if self._file.schema is None:
            return False
        import pyarrow as pa

        kind: Any = self._file.schema.field(column).type
        if pa.types.is_nested(kind) and (not is_list(kind) or pa.types.is_nested(kind.value_type)):
            raise DataError(f"{self._path}, column {column}: must hold scalars or lists of them, got {kind}")
        return is_list(kind)

    def blocks(self, mark: Mark = START) -> Iterator[RawBlock]:
        """Yield the rows in order, from a mark on. A row without a label, with a dense feature that is no finite number, or with
        a category of another type than the column's is a bad one."""
        return (block for _, block in self.numbered_blocks(mark))

    def numbered_blocks(
        self, mark: Mark = START, wanted: Callable[[int, int], bool] | None = None, most: int = BLOCK_ROWS
    ) -> Iterator[tuple[int, RawBlock]]:
        """Yield as `blocks` does, blocks of at `most` so many rows, each with the well-formed rows before it. Unless malformed
        rows are skipped, blocks that are not `wanted`, by their first row and the one after the last, are not looked at."""
        done, rows = mark.rows + mark.bad_rows, mark.rows
        bad = mark.bad_rows
        for batch in self._file.batches(self._names, mark.place, done):
            self.mark = None if self._file.place is None else Mark(self._file.place, rows, bad)
            for start in range(0, batch.num_rows, most):
                part = batch.slice(start, most)
                if wanted and not self._skip_bad_rows and not wanted(rows, rows + part.num_rows):
                    rows += part.num_rows
                    continue
                block = self._block(part, done + start)
                yield rows, block
                rows += len(block.labels_B)
                self.mark = None
            done, bad = done + batch.num_rows, mark.bad_rows + self.bad_rows
        self.end = Mark(self._file.end, rows, bad)

    def marks(self) -> Iterator[Mark]:
        """Read the whole file and yield the marks in it, and one at its end. Unless malformed rows are skipped, they are not
        looked for. Labels are added to `labels`."""
        rows = bad = 0
        names = self._names if self._skip_bad_rows else self._names[:1]
        for batch in self._file.batches(names):
            if self._file.place is not None:
                yield Mark(self._file.place, rows, bad)
            if self._skip_bad_rows:
                parts = range(0, batch.num_rows, BLOCK_ROWS)
                found = [self._block(batch.slice(start, BLOCK_ROWS), 0).labels_B > 0 for start in parts]
            else:
                found = [self._likely_labels(batch)]
            rows += sum(map(len, found))
            self.labels += [(len(label_B), np.packbits(label_B)) for label_B in found]
            bad = self.bad_rows
        yield Mark(0, rows, bad)

    def _block(self, batch: pa.RecordBatch, rows_before: int) -> RawBlock:
        rows, schema = batch.num_rows, self.schema
        first_row = rows_before + self._file.bad_rows + 1
        judged = JudgedRows(batch, self._path, first_row, self._skip_bad_rows, self._bad_of)
        label_B = np.full(rows, self._labelled, dtype=np.float32)
        if self._labelled and schema.label:
            label_B = judged.labels(schema.comparison)
        dense_BX = np.ones((rows, max(1, len(schema.dense))), dtype=np.float32)
        for x, dense in enumerate(schema.dense):
            dense_BX[:, x] = judged.dense(dense)
        found = [judged.categories(column) for column in schema.sparse]
        times_B = judged.times(schema.time, is_first=not self._has_read_times) if self.has_times else None
        self._has_read_times = True
        weights_B = judged.weights(schema.weight, schema.class_weight, label_B) if schema.is_weighted else None
        groups_B = judged.groups(schema.group) if schema.group.column else None
        good_B = ~judged.bad_B
        self._bad_rows += rows - int(np.count_nonzero(good_B))
        found = [column.kept(good_B) for column in found]
        return RawBlock(
            dense_BX[good_B],
            label_B[good_B],
            [column.keys_N for column in found],
            [column.lengths_B for column in found],
            [column.first_lookups() for column in found] if self._keeps_values else None,
            None if times_B is None else times_B[good_B],
            None if weights_B is None else weights_B[good_B],
            None if groups_B is None else groups_B[good_B],
        )

    def _likely_labels(self, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        """Return which rows have label 1, without a look at whether their labels are ones."""
        import pyarrow

        label = self.schema.comparison
        if not self.schema.label:
            return np.ones(batch.num_rows, dtype=bool)
        try:
            encoded = batch.column(label.column).dictionary_encode()
            found = label_numbers(encoded.dictionary, label.equals)
        except pyarrow.ArrowException:
            found = None
        if found is None:
            return np.zeros(batch.num_rows, dtype=bool)
        label_U = np.append(label.of(found.values_B) == 1, False)
        number_B = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy(zero_copy_only=False)
        return np.asarray(label_U[number_B])

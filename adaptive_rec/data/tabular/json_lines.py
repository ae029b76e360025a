"""JSON Lines files, plain or packed: an object a line, whose columns have one type in all rows of the file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_rec.data.lines import line_blocks, plain_bytes, quote_field
from adaptive_rec.errors import DataError, first_line

if TYPE_CHECKING:
    import pyarrow as pa

OBJECT = "each line must be a JSON object"


class JsonLinesFile:
    """A JSON Lines file, opened. It is read once for the columns and their types, and again for its rows."""

    delimiter = escape = ""

    def __init__(self, path: Path, skip_bad_rows: bool) -> None:
        self.path, self._skip_bad_rows = path, skip_bad_rows
        status = path.stat()
        self.schema: pa.Schema | None = _types(str(path), skip_bad_rows, status.st_size, status.st_mtime_ns)
        self.written, self.names = self.schema, tuple(self.schema.names)
        self.bad_rows, self.end, self._read_bytes, self._size_bytes = 0, 0, 0, plain_bytes(path)
        self.place: int | None = 0

    @property
    def read_ratio(self) -> float:
        """Share of the file that `batches` has read."""
        return min(1.0, self._read_bytes / self._size_bytes)

    def batches(self, columns: Sequence[str], place: int = 0, rows_before: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield these columns of all rows from a byte of the unpacked file on. A line that is no object raises DataError, or is
        skipped."""
        import pyarrow

        assert self.schema is not None
        kinds = pyarrow.schema([self.schema.field(name) for name in columns])
        for text in line_blocks(self.path, place):
            self.place = place
            place, self._read_bytes = place + len(text), self._read_bytes + len(text)
            table, bad = _parsed(self.path, text, kinds, self._skip_bad_rows, rows_before)
            self.bad_rows, rows_before = self.bad_rows + bad, rows_before + table.num_rows + bad
            batch = pyarrow.record_batch(
                [column.combine_chunks() for column in table.select(list(columns)).columns], schema=kinds
            )
            yield batch
        self.end = place

    def as_written(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield these columns of all rows."""
        return self.batches(columns)


@lru_cache(maxsize=256)
def _types(name: str, skip_bad_rows: bool, size: int, changed_ns: int) -> pa.Schema:
    """Read a whole file and return its columns with a type for each that all of its values have. Raises DataError."""
    import pyarrow

    path, found, rows = Path(name), pyarrow.schema([]), 0
    for text in line_blocks(path):
        table, bad = _parsed(path, text, None, skip_bad_rows, rows)
        rows += table.num_rows + bad
        schema = _with_large_integers(path, table, text)
        schema = pyarrow.schema([pyarrow.field(field.name, _of_texts(field.type)) for field in schema])
        found = pyarrow.schema([_common(path, field, found) for field in _joined(found, schema)])
    return found


def _with_large_integers(path: Path, table: pa.Table, text: bytes) -> pa.Schema:
    """Return the types of a block's columns, where Arrow makes doubles of whole numbers beyond 2**63 those of 64 bits without a
    sign. Raises DataError where these are too few."""
    import pyarrow as pa
    import pyarrow.compute as pc

    schema = table.schema
    for place, field in enumerate(schema):
        largest = pc.max(pc.abs(table[field.name])).as_py() if pa.types.is_floating(field.type) else None
        if largest is None or largest < 2.0**63:
            continue
        values = [json.loads(line).get(field.name) for line in text.splitlines() if line.strip().startswith(b"{")]
        whole = [value for value in values if value is not None]
        if all(isinstance(value, int) for value in whole):
            if min(whole) < 0 or max(whole) >= 1 << 64:
                raise DataError(
                    f"{path}, column {field.name}: whole numbers must have 64 bits, got {max(whole, key=abs)}; write them "
                    "as texts"
                )
            schema = schema.set(place, pa.field(field.name, pa.uint64()))
    return schema


def _of_texts(kind: Any) -> pa.DataType:
    """Return a type with texts where Arrow makes times of them: JSON has none, and a day can be a category, as in a CSV file."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_of_texts(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _of_texts(field.type)) for field in kind])
    return kind


def _joined(before: pa.Schema, after: pa.Schema) -> list[pa.Field]:
    """Return the fields of a block after those that only earlier blocks have."""
    return [field for field in before if field.name not in after.names] + list(after)


def _common(path: Path, field: pa.Field, before: pa.Schema) -> pa.Field:
    """Return a field with a type for its values so far too. Raises DataError where there is none."""
    import pyarrow as pa

    if field.name not in before.names:
        return field
    kinds = [before.field(field.name).type, field.type]
    if set(kinds) == {pa.int64(), pa.uint64()}:
        return pa.field(field.name, pa.uint64())
    try:
        return pa.unify_schemas([pa.schema([field]), pa.schema([before.field(field.name)])], promote_options="permissive")[0]
    except pa.ArrowException:
        raise DataError(
            f"{path}, column {field.name}: must have values of one type in all rows, got {kinds[0]} and {kinds[1]}; write all "
            "of them as texts"
        ) from None


def _parsed(
    path: Path, text: bytes, kinds: pa.Schema | None, skip_bad_rows: bool, rows_before: int
) -> tuple[pa.Table, int]:
    """Return whole lines as a table, with these types where they are known, and the number of bad lines left out."""
    import pyarrow
    from pyarrow import json as arrow_json

    read = arrow_json.ReadOptions(use_threads=False, block_size=len(text) + 1)
    others = "infer" if kinds is None else "ignore"
    parse = arrow_json.ParseOptions(explicit_schema=kinds, unexpected_field_behavior=others)
    try:
        if not text.strip():
            return (pyarrow.schema([]) if kinds is None else kinds).empty_table(), 0
        return arrow_json.read_json(pyarrow.BufferReader(text), read, parse), 0
    except pyarrow.ArrowException as error:
        good, bad, fault = _objects(text, rows_before)
        if fault and not skip_bad_rows:
            raise DataError(f"{path}, {fault}") from None
        if not fault:
            raise DataError(
                f"{path}: a column must have values of one type, below row {rows_before}: {first_line(error)}; write all of them "
                "as texts"
            ) from None
    return _parsed(path, good, kinds, skip_bad_rows=False, rows_before=rows_before)[0], bad


def _objects(text: bytes, rows_before: int) -> tuple[bytes, int, str]:
    """Return the lines that are objects, the number of others, and the fault of the first of these."""
    good, bad, fault, row = [], 0, "", rows_before
    for line in text.splitlines(keepends=True):
        if not line.strip():
            continue
        row += 1
        try:
            is_object = isinstance(json.loads(line), dict)
        except ValueError:
            is_object = False
        if is_object:
            good.append(line)
        else:
            bad, fault = bad + 1, fault or f"row {row}: {OBJECT}, got {quote_field(line.rstrip())}"
    return b"".join(good), bad, fault

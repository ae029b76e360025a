"""The first rows of files that are read as one table, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_rec.data.tabular.open_rows import RowFile, check_pyarrow, lacking, open_rows, text_of
from adaptive_rec.data.tabular.schema_file import FileSchema
from adaptive_rec.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

SAMPLE_ROWS = 100_000
MOST_BAD_RATIO = 0.01
"""Where malformed rows are skipped: share of the rows above which they say something else of the file, that it is in another
encoding than UTF-8 or has labels other than 0 and 1."""


@dataclass(frozen=True)
class Reading:
    """How the first rows are read."""

    skip_bad_rows: bool = False
    """Rows that cannot be read are left out."""
    grows: bool = False
    """What follows the last whole row is left for later."""


STRICT = Reading()


@dataclass
class FirstRows:
    """The first rows of some files."""

    columns: dict[str, pa.Array] = field(default_factory=dict)
    """Those of each column, in the order in which columns come."""
    file: FileSchema = FileSchema()
    """How the files are written, as far as it was found out."""
    of_two_types: dict[str, str] = field(default_factory=dict)
    """Columns whose types in two files have nothing in common but their text, with the reason why others are not used."""
    unread: dict[str, str] = field(default_factory=dict)
    """Columns whose values cannot be read, with the reason."""
    notes: list[str] = field(default_factory=list)


def first_rows(paths: Sequence[Path], file: FileSchema, reading: Reading) -> FirstRows:
    """Read the first rows of files, at most SAMPLE_ROWS, and of each column that only later files have. Raises DataError where a
    file cannot be read, or looks like one without a header, or there is no row, UsageError where pyarrow is not installed."""
    check_pyarrow()
    import pyarrow as pa

    opened, found = [], FirstRows(file=file)
    pieces: dict[str, list[pa.Array]] = {}
    left = SAMPLE_ROWS
    for path in paths:
        rows = open_rows(path, file, reading.skip_bad_rows, reading.grows)
        if (text := text_of(rows)) and text.row_fault:
            raise DataError(text.row_fault, faq="first-line")
        opened.append(rows)
        new = [name for name in rows.names if left > 0 or name not in pieces]
        if not new:
            continue
        new, batches = _read(rows, new, left if left > 0 else SAMPLE_ROWS, found.unread)
        for name in new:
            pieces.setdefault(name, []).extend(batch.column(name) for batch in batches if name)
        left -= sum(batch.num_rows for batch in batches)
    if left == SAMPLE_ROWS:
        raise DataError(f"a source must hold at least one row, {paths[0]} has none", faq="empty-file")
    del batches
    for name in list(pieces):  # one column at a time is in memory twice
        found.columns[name] = _joined(name, pieces.pop(name), found)
        pa.default_memory_pool().release_unused()
    found.file = _as_found(file, opened)
    found.notes += lacking([set(rows.names) for rows in opened], [name for name in found.columns if name])
    return found


def _read(
    rows: RowFile, names: list[str], most: int, unread: dict[str, str]
) -> tuple[list[str], list[pa.RecordBatch]]:
    """Return the columns of a file that can be read, with their first rows, and note why others cannot. Raises DataError where
    none can, or where rows are texts."""
    named = [name for name in names if name]
    try:
        return names, _first_batches(rows, named, most)
    except DataError:
        if rows.schema is None:
            raise
        faults = {name: fault for name in named if (fault := _fault(rows, name))}
        if len(faults) == len(named):
            raise
        unread |= faults
        return [name for name in names if name not in faults], _first_batches(rows, [n for n in named if n not in faults], most)


def _fault(rows: RowFile, name: str) -> str:
    """Return why a column cannot be read; empty where it can."""
    try:
        next(iter(rows.batches([name])), None)
    except DataError as error:
        return f"it cannot be read: {error}"
    return ""


def _first_batches(rows: RowFile, names: list[str], most: int) -> list[pa.RecordBatch]:
    """Return the first rows of a file. Raises DataError where more of them are in another encoding than malformed ones are."""
    batches, left = [], most
    for batch in rows.batches(names):
        batches.append(batch.slice(0, left))
        left -= batches[-1].num_rows
        if left <= 0:
            break
    text = text_of(rows)
    if text and text.other_rows > MOST_BAD_RATIO * (text.other_rows + most - left):
        raise DataError(f"{rows.path} must be in {text.encoding}, {text.other_rows} of its first rows are not")
    return batches


def _as_found(file: FileSchema, opened: Sequence[RowFile]) -> FileSchema:
    """Return how files are written, with what had to be found out. Raises DataError where they are written in different ways."""
    texts = [rows for rows in opened if rows.delimiter]
    found = {}
    for name, usual in (("delimiter", ","), ("escape", "")):
        marks = {getattr(rows, name): rows.path for rows in texts if name != "escape" or getattr(rows, name)}
        if len(marks) > 1 and not getattr(file, name):
            (one, first), (other, second), *_ = marks.items()
            raise DataError(f"all files must have one {name}, {first} has {one!r} and {second} has {other!r}")
        mark = next(iter(marks), usual)
        if mark != usual and not getattr(file, name):
            found[name] = mark
    return file.model_copy(update=found)


def _joined(name: str, arrays: list[pa.Array], found: FirstRows) -> pa.Array:
    """Return the pieces of a column as one array of a type that all of them have; texts where they have none."""
    import pyarrow as pa

    kinds = list(dict.fromkeys(each.type for each in arrays if not pa.types.is_null(each.type)))
    if not arrays or not kinds:
        return pa.nulls(sum(map(len, arrays)))
    kind = kinds[0] if len(kinds) == 1 else _of_numbers(arrays, kinds) or _common(kinds)
    if kind is None:
        plain = all(_is_plain(each) for each in kinds)
        found.of_two_types[name] = "" if plain else f"{kinds[0]} in one file and {kinds[1]} in another"
        kind = pa.string()
        arrays = [each if plain else pa.nulls(len(each)) for each in arrays]
    arrays = [each if each.type == kind else each.cast(kind, safe=False) for each in arrays]
    return pa.chunked_array(arrays, kind).combine_chunks()


def _of_numbers(arrays: list[pa.Array], kinds: list[pa.DataType]) -> pa.DataType | None:
    """Return a type for whole numbers and decimals of several types that has all their values; None where others are among
    them."""
    import pyarrow as pa

    decimals = [each for each in kinds if pa.types.is_decimal(each)]
    if not all(pa.types.is_integer(each) or pa.types.is_decimal(each) for each in kinds):
        return None
    scale = max((each.scale for each in decimals), default=0)
    wide: Any
    for wide in (*([] if decimals else [pa.int64()]), pa.decimal128(38, scale), pa.decimal256(76, scale)):
        try:
            for each in arrays:
                each.cast(wide)
        except pa.ArrowException:
            continue
        return wide
    return None


def _common(kinds: list[pa.DataType]) -> pa.DataType | None:
    import pyarrow as pa

    try:
        fields = [pa.schema([pa.field("column", kind)]) for kind in kinds]
        return pa.unify_schemas(fields, promote_options="permissive").field(0).type
    except pa.ArrowException:
        return None


def _is_plain(kind: pa.DataType) -> bool:
    """Whether values of a type can be categories beside texts."""
    import pyarrow as pa

    rules = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_string)
    return any(rule(kind) for rule in rules)

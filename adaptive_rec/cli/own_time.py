"""``--time COLUMN``: rows in order of their times, the newest held out."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from adaptive_rec.cli.parser import describes_files
from adaptive_rec.errors import DataError, UsageError, did_you_mean

if TYPE_CHECKING:
    from adaptive_rec.data.tabular.first_rows import Reading
    from adaptive_rec.data.tabular.infer import Inferred
    from adaptive_rec.data.tabular.open_rows import RowFile
    from adaptive_rec.data.tabular.schema import Schema

IN_TIME = ("data.order=time", "data.shuffle=false")


def in_time(args: argparse.Namespace) -> argparse.Namespace:
    """Return the command line with the settings that --time stands for; those of --set come after them. Raises UsageError where
    the data cannot have times."""
    if args.time is None:
        return args
    if not describes_files(args):
        check_folder(args.time, args.data)
    return argparse.Namespace(**{**vars(args), "set": [*IN_TIME, *args.set]})


def check_folder(column: str, data: str | None) -> None:
    """Raise UsageError unless --data is a prepared folder whose rows have the times of a column."""
    from adaptive_rec.data.prepare.meta import load_meta
    from adaptive_rec.data.prepare.place import is_prepared

    if data is None or not is_prepared(data):
        raise UsageError(
            "--time names a column of CSV, TSV or Parquet files: give --label COLUMN or --schema FILE with it, or --item COLUMN "
            "where every row is a positive"
        )
    schema = load_meta(Path(data)).columns_schema
    found = schema.time.column if schema is not None else ""
    if found != column:
        times = f"has the times of {found!r}" if found else "was prepared without times"
        raise UsageError(f"--time must be the column of the times of {data}, got {column!r}; the folder {times}")


def timed(schema: Schema, column: str | None, source: Path, file: Path, reading: Reading) -> Schema:
    """Return a schema whose time is a column of `source`, in the unit that its first values show. `file` has the schema. Raises
    UsageError where the schema has another time, or where the column is not there or holds no times."""
    if column is None or schema.time.column == column:
        return schema
    if schema.time.column:
        raise UsageError(f"--time must be the time of {file}, {schema.time.column!r}, got {column!r}; change it there")
    from adaptive_rec.data.tabular.sample import present
    from adaptive_rec.data.tabular.schema_columns import TimeColumn
    from adaptive_rec.data.tabular.times import unit_of_column

    rows = rows_with("--time", column, schema, source, reading)
    batch = next(iter(rows.batches([column])), None)
    try:
        unit = "" if batch is None else unit_of_column(present(batch.column(0)))
    except DataError as error:
        raise UsageError(f"--time must be a column of times, {column} of {source} is none: {error}") from None
    return schema.model_copy(update={"time": TimeColumn.model_validate({"column": column, "unit": unit})})


def rows_with(option: str, column: str, schema: Schema, source: Path, reading: Reading) -> RowFile:
    """Return the rows of a file that must have a column. Raises UsageError, which begins with the option that names it."""
    from adaptive_rec.data.tabular.open_rows import open_rows

    rows = open_rows(source, schema.file, reading.skip_bad_rows, reading.grows)
    if column not in rows.names:
        known = ", ".join(rows.names)
        hint = did_you_mean(column, rows.names)
        raise UsageError(f"{option} must be a column of {source}, got {column!r}; the first line names {known}{hint}")
    return rows


def inferred_in_time(inferred: Inferred, column: str | None, source: Path, file: Path, reading: Reading) -> Inferred:
    """Return what was inferred with a column as the time, as `timed` does. It is no feature, unless it is the only category."""
    schema = timed(inferred.schema, column, source, file, reading)
    if column is None or all(each.column == column for each in schema.sparse):
        return replace(inferred, schema=schema)
    return without_feature(replace(inferred, schema=schema), column, "the time of the rows (--time)")


def without_feature(inferred: Inferred, column: str, why: str) -> Inferred:
    """Return what was inferred with a column that is no feature, and the reason."""
    schema = inferred.schema
    sparse, dense = (tuple(each for each in part if each.column != column) for part in (schema.sparse, schema.dense))
    remarks = {name: why for name, why in inferred.remarks.items() if name != column}
    schema = schema.model_copy(update={"sparse": sparse, "dense": dense})
    return replace(inferred, schema=schema, remarks=remarks, unused={**inferred.unused, column: why})

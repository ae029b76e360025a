"""``--time``, ``--weight`` and ``--group``: the columns of the rows' times, of how much each row counts, and of the groups within
which rows are ranked."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from adaptive_rec.cli.parser import describes_files, order_settings
from adaptive_rec.errors import DataError, UsageError, did_you_mean

if TYPE_CHECKING:
    from adaptive_rec.data.tabular.first_rows import Reading
    from adaptive_rec.data.tabular.infer import Inferred
    from adaptive_rec.data.tabular.open_rows import RowFile
    from adaptive_rec.data.tabular.schema import Schema
    from adaptive_rec.data.tabular.schema_columns import GroupColumn


def in_time(args: argparse.Namespace) -> argparse.Namespace:
    """Return the command line with the settings that --time stands for; those of --set come after them. Raises UsageError where
    the options name columns that the rows of a prepared folder do not have."""
    if not describes_files(args):
        check_folder(args)
    return argparse.Namespace(**{**vars(args), "set": [*order_settings(args), *args.set]})


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
        raise UsageError(
            f"{option} must be a column of {source}, got {column!r}; the first line names {known}{hint}", faq="label-column"
        )
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


OPTIONS = {"--time": "times", "--weight": "weights", "--group": "groups"}
"""The options, and what their columns hold."""


def check_folder(args: argparse.Namespace) -> None:
    """Raise UsageError unless the options name columns that the rows of the prepared folder --data have."""
    from adaptive_rec.data.prepare.meta import load_meta
    from adaptive_rec.data.prepare.place import is_prepared

    given = {option: column for option, column in {"--time": args.time, **_given(args)}.items() if column is not None}
    if not given:
        return
    if args.data is None or not is_prepared(args.data):
        option, where = next(iter(given)), "CSV, TSV or Parquet files"
        raise UsageError(
            f"{option} names a column of {where}: give --label COLUMN or --schema FILE with it, or --item COLUMN where every row "
            "is a positive"
        )
    schema = load_meta(Path(args.data)).columns_schema
    known = {} if schema is None else {"--time": schema.time.column, **_columns(schema)}
    for option, column in given.items():
        found, what = known.get(option, ""), OPTIONS[option]
        if found != column:
            has = f"has the {what} of {found!r}" if found else f"was prepared without {what}"
            raise UsageError(f"{option} must be the column of the {what} of {args.data}, got {column!r}; the folder {has}")


def with_beside(schema: Schema, args: argparse.Namespace, source: Path, file: Path, reading: Reading) -> Schema:
    """Return a schema with the columns of `source` that the options name. `file` has the schema. Raises UsageError where the
    schema has others, or where a column is not there or is a feature and must not be."""
    for option, column in _given(args).items():
        found = _columns(schema)[option]
        if column is None or found == column:
            continue
        if found:
            rule = f"{option} must be the column of {OPTIONS[option]} of {file}, {found!r}"
            raise UsageError(f"{rule}, got {column!r}; change it there")
        rows_with(option, column, schema, source, reading)
        if column == schema.comparison.column:
            raise UsageError(f"{option} must be another column than the label, got {column!r}")
        if option == "--weight":
            _check_weight(schema, column, file)
            schema = schema.model_copy(update={"weight": column})
        else:
            schema = schema.model_copy(update={"group": _group(schema, column)})
    return schema


def is_beside(schema: Schema, args: argparse.Namespace) -> bool:
    """Whether a schema has the columns that the options name."""
    columns = _columns(schema)
    return all(column in (None, columns[option]) for option, column in _given(args).items())


def has_columns_of(schema: Schema, inferred: Schema) -> bool:
    """Whether a schema has the weight, groups and time of one that was inferred with the options, and no others."""
    return schema.time.column == inferred.time.column and _columns(schema) == _columns(inferred)


def inferred_with_beside(inferred: Inferred, args: argparse.Namespace, source: Path, file: Path, reading: Reading) -> Inferred:
    """Return what was inferred with the columns that the options name. A weight is no feature."""
    column = args.weight
    if column is not None:
        if all(each.column == column for each in inferred.schema.sparse):
            raise UsageError(f"--weight must leave a column of categories, {column!r} is the only one of {source}")
        rows_with("--weight", column, inferred.schema, source, reading)
        inferred = without_feature(inferred, column, "the weight of the rows (--weight)")
    return replace(inferred, schema=with_beside(inferred.schema, args, source, file, reading))


def _given(args: argparse.Namespace) -> dict[str, str | None]:
    return {"--weight": args.weight, "--group": args.group}


def _columns(schema: Schema) -> dict[str, str]:
    return {"--weight": schema.weight, "--group": schema.group.column}


def _check_weight(schema: Schema, column: str, file: Path) -> None:
    features = [each.column for part in (schema.dense, schema.sparse) for each in part]
    if column in features:
        raise UsageError(f"--weight must be no feature, {file} lists {column!r} as one; take it out there")
    if column == schema.time.column:
        raise UsageError(f"--weight must be another column than the time, got {column!r}")


def _group(schema: Schema, column: str) -> GroupColumn:
    """Return a column of groups, whose values have the type of the feature that it is besides, if it is one."""
    from adaptive_rec.data.tabular.schema_columns import GroupColumn

    kinds = [each.type for each in schema.sparse if each.column == column and each.type]
    return GroupColumn(column=column, type=kinds[0]) if kinds else GroupColumn(column=column)

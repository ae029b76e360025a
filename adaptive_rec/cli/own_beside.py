"""``--weight COLUMN`` and ``--group COLUMN``: how much each row counts, and the groups within which rows are ranked."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from adaptive_rec.cli.own_time import rows_with, without_feature
from adaptive_rec.errors import UsageError

if TYPE_CHECKING:
    from adaptive_rec.data.tabular.first_rows import Reading
    from adaptive_rec.data.tabular.infer import Inferred
    from adaptive_rec.data.tabular.schema import Schema
    from adaptive_rec.data.tabular.schema_columns import GroupColumn

OPTIONS = {"--weight": "weights", "--group": "groups"}
"""The options, and what their columns hold."""


def check_folder(args: argparse.Namespace) -> None:
    """Raise UsageError unless the options name columns that the rows of the prepared folder --data have."""
    from adaptive_rec.data.prepare.meta import load_meta
    from adaptive_rec.data.prepare.place import is_prepared

    given = {option: column for option, column in _given(args).items() if column is not None}
    if not given:
        return
    if args.data is None or not is_prepared(args.data):
        option = next(iter(given))
        raise UsageError(f"{option} names a column of CSV, TSV or Parquet files: give --label COLUMN or --schema FILE with it")
    schema = load_meta(Path(args.data)).columns_schema
    for option, column in given.items():
        found = "" if schema is None else _columns(schema)[option]
        if found != column:
            what = OPTIONS[option]
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

"""A schema inferred from the first rows of a file. A person reads it, and may edit it, before or after the first run.

Names say most: a whole number called `user_id` is a category, one called `timestamp` is a time. Values decide the rest. Where
both
are possible, a whole number becomes a category: that costs rows in a table, while a category that is taken for a quantity says
nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptive_rec.data.tabular.column_kind import Sample, judge, present
from adaptive_rec.data.tabular.delimited import DelimitedFile
from adaptive_rec.data.tabular.reader import ParquetFile, open_rows
from adaptive_rec.data.tabular.schema import PLAIN_NAME, FileSchema, Label, Schema, parse_label, parse_schema
from adaptive_rec.data.tabular.values import is_list, numbers
from adaptive_rec.errors import DataError, UsageError, did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

SAMPLE_ROWS = 100_000
SHARED_BELOW = 2
"""`min_count` of an inferred schema: a value that occurs once says little, and the row that all of them share is read for values
that are unknown when the model is used (measured: docs/benchmarks.md, "A CSV file against logistic regression")."""
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
class Inferred:
    """A schema and the reasons for it."""

    schema: Schema
    remarks: dict[str, str]
    """Why a column is dense or sparse."""
    unused: dict[str, str]
    """Why a column is not used."""
    notes: list[str]


def infer(path: Path, label: str, reading: Reading = STRICT) -> Inferred:
    """Infer the schema of a file. `label` is a column or a comparison. Raises UsageError for a label that cannot be one."""
    file = FileSchema()
    try:
        rows, samples = _first_rows_of(path, file, reading)
    except DataError as error:
        if "must be in utf-8" not in str(error) or "UTF-16" in str(error):
            raise
        file = FileSchema(encoding="latin-1")
        rows, samples = _first_rows_of(path, file, reading)
    remarks: dict[str, str] = {}
    unused: dict[str, str] = {}
    notes: list[str] = []
    if file.encoding != "utf-8":
        notes.append(
            f"{path.name} is not in UTF-8: it is read as latin-1; change encoding in the schema if that is wrong"
        )
    target = check_label(path, label, samples, MOST_BAD_RATIO if reading.skip_bad_rows else 0.0)
    dense: list[dict[str, Any]] = []
    sparse: list[dict[str, Any]] = []
    for name in rows.names:
        if name == target.column:
            continue
        kind, column, why = judge(samples[name]) if name else ("unused", {}, "it has no name")
        if kind == "unused":
            unused[name or '""'] = why
            continue
        remarks[name] = why
        (dense if kind == "dense" else sparse).append({"column": name, **column})
    if not sparse:
        why = "; ".join(f"{name}: {text}" for name, text in (unused | remarks).items())
        raise UsageError(
            f"{path} must have at least one column of categories beside the label {label}; found {why or 'none'}; "
            "--schema FILE can name one that was not taken for a category"
        )
    give_names(sparse)
    settings = file.model_dump(exclude_defaults=True)
    if not isinstance(rows, ParquetFile) and rows.delimiter != ",":
        settings["delimiter"] = rows.delimiter
    values = {"label": label, "dense": dense, "sparse": sparse, "min_count": SHARED_BELOW, "file": settings}
    return Inferred(parse_schema(values, f"the schema of {path}"), remarks, unused, notes)


def _first_rows_of(
    path: Path, file: FileSchema, reading: Reading
) -> tuple[ParquetFile | DelimitedFile, dict[str, Sample]]:
    """Open a file and return it with its first rows, column by column. Raises DataError where more of them are in another
    encoding than malformed ones would be."""
    rows = open_rows(path, file, reading.skip_bad_rows, reading.grows)
    batches = _first_batches(rows)
    read = sum(batch.num_rows for batch in batches)
    if isinstance(rows, DelimitedFile) and rows.other_rows > MOST_BAD_RATIO * (rows.other_rows + read):
        raise DataError(f"{path} must be in {rows.encoding}, {rows.other_rows} of its first rows are not")
    if not read:
        raise DataError(f"a source must hold at least one row, {path} has none")
    return rows, _samples(batches)


def _first_batches(rows: ParquetFile | DelimitedFile) -> list[pa.RecordBatch]:
    batches, left = [], SAMPLE_ROWS
    for batch in rows.batches([name for name in rows.names if name]):
        batches.append(batch.slice(0, left))
        left -= batches[-1].num_rows
        if left <= 0:
            break
    return batches


def _samples(batches: list[pa.RecordBatch]) -> dict[str, Sample]:
    import pyarrow as pa
    import pyarrow.compute as pc

    table = pa.Table.from_batches(batches)
    found = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        distinct = 0 if is_list(column.type) or pa.types.is_nested(column.type) else pc.count_distinct(column).as_py()
        found[name] = Sample(name, present(column), table.num_rows, distinct)
    return found


def check_label(path: Path, label: str, samples: dict[str, Sample], most_bad_ratio: float = 0.0) -> Label:
    """Return the label's column. Raises UsageError where there is none, or where it does not hold two classes, but for some rows
    that are left out."""
    target = parse_label(label)
    if label in samples and target.column != label:
        raise UsageError(
            f"--label must be a column or a comparison, {label!r} is both in {path}: rename the column that is called so"
        )
    if target.column not in samples:
        known = ", ".join(samples)
        raise UsageError(
            f"--label must be a column of {path}, or a comparison such as 'rating >= 4', got {label!r}; the first line names "
            f"{known}{did_you_mean(target.column, samples)}"
        )
    sample = samples[target.column]
    found = numbers(sample.values)
    most_bad = most_bad_ratio * len(sample.values)
    if found is None or np.count_nonzero(found.bad_B) > most_bad:
        got = (
            "values that are no numbers"
            if found is None
            else ascii(sample.values[int(np.flatnonzero(found.bad_B)[0])].as_py())
        )
        raise UsageError(f"--label must be a column of 0 and 1 (or true and false), {target.column} holds {got}")
    values_B = found.values_B[~np.isnan(found.values_B)]
    if not len(values_B):
        raise UsageError(
            f"--label must be a column of 0 and 1, {target.column} is empty in the first {sample.rows:,} rows"
        )
    if target.rule.endswith("1") and np.count_nonzero(~np.isin(values_B, (0.0, 1.0))) > most_bad:
        low, high = values_B.min(), values_B.max()
        above_B = values_B[values_B > low]
        bar = max(np.median(values_B), above_B.min()) if len(above_B) else low  # the median of a rare label is its lowest value
        raise UsageError(
            f"--label must be a column of 0 and 1, {target.column} holds numbers from {low:g} to {high:g}; a comparison "
            f"makes a label of it: --label '{target.column} >= {bar:g}'"
        )
    return target


def give_names(sparse: list[dict[str, Any]]) -> None:
    """Give a name of its own to each column that is called otherwise than a feature may be."""
    taken = {column["column"] for column in sparse}
    for column in sparse:
        if not PLAIN_NAME.fullmatch(column["column"]):
            plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", column.get("name") or column["column"]).strip("_")[:60] or "column"
            number = 1
            while (name := plain if number == 1 else f"{plain}_{number}") in taken:
                number += 1
            taken.add(name)
            column["name"] = name

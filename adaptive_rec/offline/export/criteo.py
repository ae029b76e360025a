"""The part of an exported model that is its own where a Criteo file was trained on: hexadecimal values, in a file without names
of columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.config.tree import Config
from adaptive_rec.data.criteo_rows import numbered_values
from adaptive_rec.data.prepare.meta import Meta
from adaptive_rec.data.tabular.schema import Schema
from adaptive_rec.data.tabular.schema_columns import DenseColumn, SparseColumnSchema
from adaptive_rec.data.tabular.trained import TrainedColumns
from adaptive_rec.errors import UsageError
from adaptive_rec.kernels.number_keys import FIRST_ID
from adaptive_rec.offline.export.model_values import HEX

NO_ID = -1
"""The id of a value that the training file does not have: its feature adds nothing."""


def note_reading(facts: dict[str, Any], trained: TrainedColumns) -> None:
    """Note in ``model.json`` how a Criteo file is read."""
    schema = trained.schema
    columns = [schema.label, *(each.column for each in schema.dense), *(each.column for each in schema.sparse)]
    facts["file"] = {"delimiter": "\t", "columns": columns}
    for column in facts["sparse"]:
        column["type"] = "hex"


def category_of(value: str) -> int:
    """Return the number of a category as a Criteo file has it; an empty one is missing, which is 0 there."""
    if value and not HEX.fullmatch(value):
        raise UsageError(f"VALUE must be a hexadecimal number of at most 8 digits, as in the file, got {value!r}")
    return int(value or "0", 16)


class CriteoValues:
    """The values of a table's ids in a folder that was prepared from Criteo files."""

    def __init__(self, keys_U: NDArray[np.uint64] | NDArray[np.uint32]) -> None:
        self._keys_U = keys_U

    def of(self, row: int) -> str | None:
        """Return the value of an id as in the file; None for the ids of missing and of infrequent values."""
        return f"{self._keys_U[row - FIRST_ID]:08x}" if FIRST_ID <= row < FIRST_ID + len(self._keys_U) else None

    def row_of(self, text: str) -> int | None:
        """Return the id of a value; None where the table has no such value. Raises UsageError for one that no file can have."""
        places = np.flatnonzero(self._keys_U == category_of(text))
        return FIRST_ID + int(places[0]) if len(places) else None


def criteo_folder_columns(meta: Meta) -> TrainedColumns:
    """Return the columns of the Criteo files that a folder was prepared from. Raises UsageError where it was prepared from
    another log."""
    if meta.job.format != "criteo":
        raise UsageError(
            "RUN must have been trained on CSV, TSV, Parquet or Criteo files, whose columns have values of their own; "
            f"it was trained on format {meta.job.format}, whose columns are made of fields of the log; train on the log as CSV "
            "(--data FILE --label COLUMN)"
        )
    dense = tuple(DenseColumn(column=name, transform="log") for name in meta.dense_names)
    sparse = tuple(SparseColumnSchema(column=each.name, table=each.table) for each in meta.columns)
    return TrainedColumns(Schema(label="label", dense=dense, sparse=sparse), (False,) * len(sparse), None)


def write_criteo_values(facts: dict[str, Any], config: Config, out: Path) -> None:
    """Write the values of each table's ids, one a line, unless ids follow from the values alone; note which in the tables."""
    facts.update(missing_id=NO_ID, unknown_id=NO_ID, first_id=0)
    numbered = numbered_values(config)
    if numbered is None:
        for table in facts["tables"]:
            table["folded"] = True
        return
    out.mkdir()
    for table, values in zip(facts["tables"], numbered, strict=True):
        table["ids"] = f"{Path(table['weights']).stem}.jsonl"
        with (out / table["ids"]).open("w", encoding="utf-8") as lines:
            lines.writelines(json.dumps(value) + "\n" for value in values.value_U.tolist())

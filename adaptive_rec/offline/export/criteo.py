"""The part of an exported model that is its own where a Criteo file was trained on: hexadecimal values, in a file without names
of columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from adaptive_rec.config.tree import Config
from adaptive_rec.data.criteo_rows import numbered_values
from adaptive_rec.data.prepare.meta import Meta
from adaptive_rec.data.tabular.schema import DenseColumn, Schema, SparseColumnSchema
from adaptive_rec.data.tabular.trained import TrainedColumns
from adaptive_rec.errors import UsageError

NO_ID = -1
"""The id of a value that the training file does not have: its feature adds nothing."""


def note_reading(facts: dict[str, Any], trained: TrainedColumns) -> None:
    """Note in ``model.json`` how a Criteo file is read."""
    schema = trained.schema
    columns = [schema.label, *(each.column for each in schema.dense), *(each.column for each in schema.sparse)]
    facts["file"] = {"delimiter": "\t", "columns": columns}
    for column in facts["sparse"]:
        column["type"] = "hex"


def criteo_folder_columns(meta: Meta) -> TrainedColumns:
    """Return the columns of the Criteo files that a folder was prepared from. Raises UsageError where it was prepared from
    another log."""
    if meta.job.format != "criteo":
        raise UsageError(
            "RUN must have been trained on CSV, TSV, Parquet or Criteo files to be exported, whose columns model.py reads; "
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

"""The part of an exported model that is its own where a Criteo file was trained on: hexadecimal values, in a file without names
of columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from adaptive_rec.config.tree import Config
from adaptive_rec.data.criteo_rows import numbered_values
from adaptive_rec.data.tabular.trained import TrainedColumns

NO_ID = -1
"""The id of a value that the training file does not have: its feature adds nothing."""


def note_reading(facts: dict[str, Any], trained: TrainedColumns) -> None:
    """Note in ``model.json`` how a Criteo file is read."""
    schema = trained.schema
    columns = [schema.label, *(each.column for each in schema.dense), *(each.column for each in schema.sparse)]
    facts["file"] = {"delimiter": "\t", "columns": columns}
    facts.update(missing_id=NO_ID, unknown_id=NO_ID, first_id=0)
    for column in facts["sparse"]:
        column["type"] = "hex"


def write_criteo_values(facts: dict[str, Any], config: Config, out: Path) -> None:
    """Write the values of each table's ids, one a line, unless ids follow from the values alone; note which in the tables."""
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

"""The values whose rows point in nearly the same direction as that of one value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.rows import SavedRows
from adaptive_rec.config.tree import Config, load_config
from adaptive_rec.data.criteo_rows import criteo_columns, numbered_values
from adaptive_rec.data.prepare.meta import load_meta
from adaptive_rec.errors import UsageError
from adaptive_rec.kernels.number_keys import FIRST_ID
from adaptive_rec.offline.export.criteo import category_of
from adaptive_rec.offline.export.nearest_raw import (
    Neighbour,
    column_of,
    most_similar,
    nearest_keys,
    table_weights,
    values_of_column,
)
from adaptive_rec.run.chosen_checkpoint import Chosen, chosen_checkpoint
from adaptive_rec.run.inputs import reads_criteo


def nearest_values(
    run: Path,
    column: str,
    value: str,
    limit: int,
    warn: Callable[[str], None] = lambda text: None,
    names: Path | None = None,
    wanted: str | None = None,
) -> tuple[list[Neighbour], Chosen]:
    """Return the most similar values, without the value itself, and the checkpoint that was read. `names`: data in which the
    texts of raw keys are found; `wanted` and `warn` are those of `chosen_checkpoint`. Raises UsageError for a column or a value
    that the model does not know."""
    with chosen_checkpoint(run, wanted, warn) as chosen:
        return _nearest(run, chosen.generation, column, value, limit, names), chosen


def _nearest(run: Path, generation: Path, column: str, value: str, limit: int, names: Path | None) -> list[Neighbour]:
    config = load_config(str(run / "config.toml"), {})
    if config.data.ids == "raw":
        return nearest_keys(config, generation, column, value, limit, names)
    if names is not None:
        raise UsageError(f"--data is for raw ids that are texts, the ids of {run} are numbers of values that it has")
    if reads_criteo(config.data):
        return nearest_criteo(config, generation, column, value, limit)
    return nearest_numbers(Path(config.data.source), generation, column, value, limit)


def nearest_criteo(config: Config, generation: Path, column: str, value: str, limit: int) -> list[Neighbour]:
    """Return the values whose rows are most similar, where the values of a Criteo file are numbered: hexadecimal, as there."""
    table = column_of(criteo_columns(config).schema, column, "the training data").table_name
    numbered = numbered_values(config)
    if numbered is None:
        rule = 'data.ids must be "auto", "contiguous" or "raw" where a Criteo file\'s values are to be found by their rows'
        raise UsageError(f"{rule}; {config.data.source} was read by ids that several values share")
    saved = SavedRows(DISK, generation)
    values = numbered[[each.name for each in saved.tables].index(table)]
    if len(values.value_U) > values.rows:
        raise UsageError(
            f"values of {column} share rows: data.max_table_rows has cut its table to {values.rows} rows for "
            f"{len(values.value_U)} values"
        )
    row = int(values.ids(np.array([category_of(value)], dtype=np.uint32))[0])
    if row < 0:
        raise UsageError(f"VALUE must be a value that {column} has in the training data, got {value!r}")
    found = most_similar(table_weights(saved, table, values.rows), np.arange(values.rows), row, limit)
    return [Neighbour(f"{int(values.value_U[k]):08x}" if values.value_U[k] else None, k, near) for k, near in found]


def nearest_numbers(folder: Path, generation: Path, column: str, value: str, limit: int) -> list[Neighbour]:
    """Return the values whose rows are most similar, where the values of a prepared folder are numbered."""
    meta = load_meta(folder)
    table, values = values_of_column(folder, meta, column)
    row = values.row_of(value)
    if row is None:
        often = f" {meta.ids.min_count} times or more" if meta.ids.min_count > 1 else ""
        raise UsageError(f"VALUE must be a value that {column} has in the training data{often}, got {value!r}")
    saved = SavedRows(DISK, generation)
    rows = next(each.rows for each in saved.tables if each.name == table)
    if row >= rows:
        raise UsageError(
            f"{column} {value!r} shares a row with others: data.max_table_rows has cut its table to {rows} rows"
        )
    row_K = np.arange(min(FIRST_ID, rows), rows)
    found = most_similar(table_weights(saved, table, rows), row_K, row, limit)
    return [Neighbour(values.of(int(row_K[k])), int(row_K[k]), similarity) for k, similarity in found]

"""The raw keys whose rows point in nearly the same direction as that of one key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.rows import SavedRows
from adaptive_rec.checkpoint.safetensors_file import as_numbers
from adaptive_rec.checkpoint.saved_keys import saved_keys
from adaptive_rec.config.tree import Config
from adaptive_rec.data.new_rows import folder_keys
from adaptive_rec.data.prepare.formats import check_source
from adaptive_rec.data.prepare.meta import Meta, load_meta
from adaptive_rec.data.prepare.values import TableValues, values_file
from adaptive_rec.data.tabular.files import files_of
from adaptive_rec.data.tabular.kinds import RULES
from adaptive_rec.data.tabular.open_rows import Parts
from adaptive_rec.data.tabular.reader import TabularReader
from adaptive_rec.data.tabular.schema import Schema
from adaptive_rec.data.tabular.schema_columns import SparseColumnSchema
from adaptive_rec.data.tabular.values import categories, keys_of, raw_keys
from adaptive_rec.errors import CheckpointError, UsageError, did_you_mean
from adaptive_rec.offline.export.criteo import CriteoValues, criteo_folder_columns
from adaptive_rec.run.inputs import is_folder
from adaptive_rec.run.scoring import trained_columns


@dataclass(frozen=True)
class Neighbour:
    """A value whose row is like that of another one."""

    value: Any
    """None for a missing value, and for a text of which only the key is known."""
    id: int
    """The number of its row, or its raw key."""
    similarity: float
    """The cosine of the angle between both rows."""


def column_of(schema: Schema | None, column: str, of_what: str) -> SparseColumnSchema:
    """Return a sparse column by its name in the data, or that of its feature. Raises UsageError."""
    sparse = schema.sparse if schema else ()
    named = {each.feature: each for each in sparse}
    named |= {each.column: each for each in sparse}
    if column not in named:
        raise UsageError(
            f"COLUMN must be a sparse column of {of_what}, one of {', '.join(named) or 'none'}, got "
            f"{column!r}{did_you_mean(column, named)}"
        )
    return named[column]


def table_weights(saved: SavedRows, name: str, rows: int) -> NDArray[np.float32]:
    """Return the weights of the first rows of a table."""
    table = next(table for table in saved.tables if table.name == name)
    kind, _ = saved.types(table)
    parts = [
        as_numbers(saved.read(table, first, min(end, rows))[0], kind.type)
        for first, end in saved.chunks(table)
        if first < rows
    ]
    return np.concatenate(parts).astype(np.float32)


def most_similar(
    weights_RD: NDArray[np.float32], row_K: NDArray[np.int64], row: int, limit: int
) -> list[tuple[int, float]]:
    """Return the places in `row_K` of the rows that are most similar to one of them, without that one, and the similarities."""
    similarity_K = cosine(weights_RD, weights_RD[row])[row_K]
    similarity_K[row_K == row] = -np.inf
    best = np.argsort(-similarity_K, kind="stable")[:limit]
    return [(int(k), float(similarity_K[k])) for k in best if np.isfinite(similarity_K[k])]


def cosine(weights_RD: NDArray[np.float32], row_D: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the cosine similarity of each row with one of them; 0 for a row of zeros."""
    lengths_R = np.sqrt(np.einsum("rd,rd->r", weights_RD, weights_RD, dtype=np.float64))
    products_R = (weights_RD @ row_D).astype(np.float64)
    return products_R / np.maximum(lengths_R * np.sqrt(float(row_D @ row_D)), 1e-30)


LARGEST = 1 << 63
KEY_OF_MISSING = -LARGEST

ValueOf = Callable[[list[int]], dict[int, Any]]
"""Returns the values of some keys, as far as they are known."""


def nearest_keys(
    config: Config, generation: Path, column: str, value: str, limit: int, names: Path | None
) -> list[Neighbour]:
    """Return the keys whose rows are most similar, of those that have a row of their own. Raises UsageError."""
    saved = SavedRows(DISK, generation)
    tables = [table.name for table in saved.tables]
    name, key, value_of = _key_of(config, generation, tables, column, value, names)
    keys = saved_keys(generation, saved.tables)
    if keys is None:
        raise CheckpointError(f"{generation} must have the raw ids of its run, it has none")
    found = keys.table(tables.index(name))
    places = np.flatnonzero(found.key_K == key)
    if not len(places):
        rule = f"VALUE must be a value of {column} that has a row of its own"
        raise UsageError(
            f"{rule}, got {value!r}, which shares one: it is new or rare (knobs.admit_after), or has lost its row"
        )
    weights_RD = table_weights(saved, name, int(found.row_K.max()) + 1)
    best = most_similar(weights_RD, found.row_K, int(found.row_K[places[0]]), limit)
    values = value_of([int(found.key_K[k]) for k, _ in best])
    return [Neighbour(values.get(int(found.key_K[k])), int(found.key_K[k]), similarity) for k, similarity in best]


def _key_of(
    config: Config, generation: Path, tables: list[str], column: str, value: str, names: Path | None
) -> tuple[str, int, ValueOf]:
    """Return the table of a column, the key of a value, and what finds values of other keys."""
    data = config.data
    if data.schema_file:
        schema = trained_columns(config, generation).schema
        of = column_of(schema, column, "the training data")
        if of.type not in ("integer", "float"):
            return of.table_name, _key_in(of, value), lambda keys: _texts_of(schema, of.table_name, keys, names)
        _check_no_names(names, column)
        return of.table_name, _key_in(of, value), _numbers if of.type == "integer" else _floats
    _check_no_names(names, column)
    if is_folder(data):
        folder = Path(data.source)
        table, values = values_of_column(folder, load_meta(folder), column)
        number = values.row_of(value)
        if number is None:
            raise UsageError(f"VALUE must be a value that {column} has in the training data, got {value!r}")
        return table, number, lambda keys: {key: values.of(key) for key in keys}
    if column not in tables:
        known = ", ".join(tables)
        raise UsageError(
            f"COLUMN must be a table of the run, one of {known}, got {column!r}{did_you_mean(column, tables)}"
        )
    try:
        key = int(value, 0)
    except ValueError:
        key = LARGEST
    if not -LARGEST <= key < LARGEST:
        raise UsageError(f"VALUE must be a whole number of 64 bits, such as 17 or 0x68fd1e64, got {value!r}")
    return column, key, _numbers


def values_of_column(folder: Path, meta: Meta, column: str) -> tuple[str, TableValues | CriteoValues]:
    """Return the table of a column of a prepared folder, and the values of its ids. Raises UsageError."""
    schema = meta.columns_schema or criteo_folder_columns(meta).schema
    table = column_of(schema, column, str(folder)).table_name
    if meta.columns_schema is None:
        return table, CriteoValues(folder_keys(meta, folder)[table])
    return table, TableValues(folder / values_file(table))


def _check_no_names(names: Path | None, column: str) -> None:
    if names is not None:
        raise UsageError(f"--data is for raw ids that are texts, those of {column} are known without it")


def _numbers(keys: list[int]) -> dict[int, int]:
    """Return the values of keys that are numbers themselves."""
    return {key: key for key in keys if key != KEY_OF_MISSING}


def _floats(keys: list[int]) -> dict[int, float]:
    """Return the values of keys that are the bits of floats."""
    known = np.array([key for key in keys if key != KEY_OF_MISSING], dtype=np.int64)
    return dict(zip(known.tolist(), known.view(np.float64).tolist(), strict=True))


def _key_in(of: SparseColumnSchema, value: str) -> int:
    """Return the key that a value has in a file; a text without a character is a missing one."""
    import pyarrow as pa

    found = categories(pa.array([value]), of.type, "", "VALUE")
    if found.bad_N.any():
        raise UsageError(f"VALUE {RULES[of.type].partition(',')[0]}, as {of.column} has them, got {value!r}")
    return int(raw_keys(found.keys_N)[0])


def _texts_of(schema: Schema, table: str, keys: list[int], names: Path | None) -> dict[int, str]:
    """Return the texts that have these keys, as far as data has them; it is read until all are found."""
    found: dict[int, str] = {}
    if names is None:
        return found
    sparse = tuple(column for column in schema.sparse if column.table_name == table)
    schema, wanted = schema.model_copy(update={"dense": (), "sparse": sparse}), set(keys) - {KEY_OF_MISSING}
    files = files_of(names)
    parts = Parts(files, schema.file)
    for path in files:
        check_source(path)
        for block in TabularReader(path, schema, skip_bad_rows=False, labelled=False, parts=parts).blocks():
            for texts, _ in block.firsts_F or ():
                key_U = raw_keys(keys_of(texts))
                for place in np.flatnonzero(np.isin(key_U, sorted(wanted))):
                    found[int(key_U[place])] = texts[int(place)].as_py()
            wanted -= found.keys()
            if not wanted:
                return found
    return found

"""Rows that point in nearly the same direction as another one, and what is said of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.checkpoint.rows import SavedRows
from adaptive_rec.checkpoint.safetensors_file import as_numbers
from adaptive_rec.data.tabular.schema import Schema
from adaptive_rec.data.tabular.schema_columns import SparseColumnSchema
from adaptive_rec.errors import UsageError, did_you_mean


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

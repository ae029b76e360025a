"""The values whose rows point in nearly the same direction as that of one value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.rows import SavedRows, saved_tables
from adaptive_rec.checkpoint.safetensors_file import as_numbers
from adaptive_rec.checkpoint.saved_keys import saved_keys
from adaptive_rec.data.prepare.meta import load_meta
from adaptive_rec.data.prepare.values import TableValues, values_file
from adaptive_rec.errors import UsageError, did_you_mean
from adaptive_rec.kernels.number_keys import FIRST_ID
from adaptive_rec.run.inputs import check_own_data
from adaptive_rec.run.resume import newest_generation


def nearest_values(
    run: Path, column: str, value: str, limit: int, warn: Callable[[str], None] = lambda text: None
) -> list[tuple[Any, int, float]]:
    """Return values with their ids and cosine similarities, the most similar first, without the value itself. Raises UsageError
    for a
    column or a value that the model does not know."""
    folder = check_own_data(run)
    meta = load_meta(folder)
    named = {feature.feature: feature for feature in meta.columns_schema.sparse} if meta.columns_schema else {}
    named |= {feature.column: feature for feature in named.values()}
    if column not in named:
        raise UsageError(
            f"COLUMN must be a sparse column of {folder}, one of {', '.join(named) or 'none'}, got "
            f"{column!r}{did_you_mean(column, named)}"
        )
    table = named[column].table_name
    values = TableValues(folder / values_file(table))
    row = values.row_of(value)
    if row is None:
        often = f" {meta.ids.min_count} times or more" if meta.ids.min_count > 1 else ""
        raise UsageError(f"VALUE must be a value that {column} has in the training data{often}, got {value!r}")
    with newest_generation(run, warn) as generation:
        if saved_keys(generation, saved_tables(DISK, generation)) is not None:
            raise UsageError(f"neighbours are found where ids are rows, {run} has data.ids=raw")
        weights_RD = table_weights(generation, table)
    if row >= len(weights_RD):
        raise UsageError(
            f"{column} {value!r} shares a row with others: data.max_table_rows has cut its table to {len(weights_RD)} rows"
        )
    similarity_R = cosine(weights_RD, weights_RD[row])
    similarity_R[[*range(min(FIRST_ID, len(similarity_R))), row]] = -np.inf
    best = np.argsort(-similarity_R, kind="stable")[:limit]
    return [(values.of(int(r)), int(r), float(similarity_R[r])) for r in best if np.isfinite(similarity_R[r])]


def table_weights(generation: Path, name: str) -> NDArray[np.float32]:
    """Return the weights of a table in a checkpoint."""
    saved = SavedRows(DISK, generation)
    table = next(table for table in saved.tables if table.name == name)
    kind, _ = saved.types(table)
    parts = [as_numbers(saved.read(table, first, end)[0], kind.type) for first, end in saved.chunks(table)]
    return np.concatenate(parts).astype(np.float32)


def cosine(weights_RD: NDArray[np.float32], row_D: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the cosine similarity of each row with one of them; 0 for a row of zeros."""
    lengths_R = np.sqrt(np.einsum("rd,rd->r", weights_RD, weights_RD, dtype=np.float64))
    products_R = (weights_RD @ row_D).astype(np.float64)
    return products_R / np.maximum(lengths_R * np.sqrt(float(row_D @ row_D)), 1e-30)

"""The part of an exported model that is its own where ids are raw keys: rows, keys, and made-up rows to check the loader by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, Position
from adaptive_rec.checkpoint.changed_rows import IdentifiedRows
from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.rows import SavedRows, SavedTable
from adaptive_rec.checkpoint.safetensors_file import ArrayInParts
from adaptive_rec.checkpoint.saved_keys import TableKeys
from adaptive_rec.checkpoint.table_files import file_names, write_file
from adaptive_rec.data.loaded_samples import offsets_of
from adaptive_rec.data.raw.raw_ids import RawIds

MOST_LOOKUPS = 3
"""Lookups of a made-up row in a column of lists."""


def write_tables_of_keys(tables: list[dict[str, Any]], generation: Path, draft: Path, out: Path) -> None:
    """Write the rows of each table up to the last one that a key has, its keys in rising order, and their rows; note them in
    `tables`."""
    saved = IdentifiedRows(generation, DISK)
    assert saved.salts is not None, "ids are raw"
    for folder in ("tables", "ids"):
        (draft / folder).mkdir()
    names = file_names([table.name for table in saved.rows.tables])
    for index, (name, table) in enumerate(zip(names, tables, strict=True)):
        keys = saved.ids(index)
        assert isinstance(keys, TableKeys), "ids are raw"
        rows, file = int(keys.row_K.max(initial=keys.shared_rows - 1)) + 1, Path("tables") / f"{name}.npy"
        weight = _weights(saved.rows, saved.rows.tables[index], rows)
        write_file(draft / file, out / file, {"weight": weight})
        order = np.argsort(keys.key_K)
        np.save(draft / "ids" / f"{name}.keys.npy", keys.key_K[order])
        np.save(draft / "ids" / f"{name}.rows.npy", keys.row_K[order])
        table.update(
            rows=rows,
            weights=file.name,
            keys=f"{name}.keys.npy",
            key_rows=f"{name}.rows.npy",
            shared_rows=keys.shared_rows,
            salt=f"{saved.salts[index]:016x}",
        )


def _weights(saved: SavedRows, table: SavedTable, rows: int) -> ArrayInParts:
    kind, _ = saved.types(table)
    parts = (saved.read(table, first, end)[0] for first, end in saved.chunks(table, 0, rows))
    return ArrayInParts((rows, *kind.shape[1:]), kind.type, parts)


def made_up_batches(source: RawIds, bag_C: tuple[bool, ...], rows: int, batch_size: int) -> Iterator[Batch]:
    """Yield batches of made-up rows with keys for ids: every second one is a key that has a row of its own, as far as there are
    any."""
    random = np.random.default_rng(1)
    own_T = [source.keys.keys_of(table)[1] for table in range(len(source.tables))]
    for start in range(0, rows, batch_size):
        size = min(batch_size, rows - start)
        most_F = np.where(bag_C, MOST_LOOKUPS, 1)
        lengths_BF = random.integers(1 - np.array(bag_C), most_F + 1, (size, len(bag_C)))
        lengths_BF[0] = most_F
        offsets = offsets_of(lengths_BF.reshape(-1))
        key_N = random.integers(-(2**63), 2**63 - 1, offsets[-1], endpoint=True)
        of_N = feature_of(lengths_BF)
        for f, feature in enumerate(source.features):
            (some,) = np.nonzero((of_N == f) & (random.random(len(key_N)) < 0.5))
            if len(own := own_T[feature.table]):
                key_N[some] = random.choice(own, len(some))
        dense_BX = random.standard_normal((size, source.dense_features), dtype=np.float32)
        yield Batch(dense_BX, key_N, offsets, np.zeros(size, dtype=np.float32), Position())


def looked_up(batch: Batch, source: RawIds, model: Any) -> Batch:
    """Return a batch of keys with the rows that an exported model has for them."""
    features = len(source.features)
    of_N, ids_N = feature_of(np.diff(batch.offsets).reshape(-1, features)), np.empty_like(batch.ids_N)
    for f, feature in enumerate(source.features):
        here_N = of_N == f
        ids_N[here_N] = model.ids[source.tables[feature.table].name].look_up(batch.ids_N[here_N])
    return replace(batch, ids_N=ids_N)


def feature_of(lengths_BF: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the feature of each lookup (N) of bags with these lengths."""
    features = lengths_BF.shape[1]
    return np.repeat(np.arange(lengths_BF.size) % features, lengths_BF.reshape(-1))

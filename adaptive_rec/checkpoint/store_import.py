"""Import of rows by raw ids, as `export --as store` writes them, into a run that has not started."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive_rec.batch import TableSpec
from adaptive_rec.checkpoint.files import DISK, os_errors
from adaptive_rec.checkpoint.foreign import mapped_tensors, names_in_sentence
from adaptive_rec.checkpoint.importing import (
    FLOATS,
    Imported,
    ImportedTable,
    dense_prefix,
    describe_tensor,
    is_dense_tensor,
    row_blocks,
    set_dense_tensors,
    type_name,
)
from adaptive_rec.checkpoint.limited_json import parse_limited_json
from adaptive_rec.checkpoint.saved_state import DENSE
from adaptive_rec.checkpoint.store_export import FORMAT, STORE
from adaptive_rec.data.raw.raw_ids import RawIds
from adaptive_rec.data.raw.salts import salts
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import CheckpointError

_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\.safetensors")


def import_store(
    store: EmbeddingStore,
    keys: RawIds,
    model: torch.nn.Module,
    folder: Path,
    seed: int,
    partial: bool = False,
    on_table: Callable[[str], None] = lambda name: None,
) -> Imported:
    """Give the ids of a full export rows of their own, with the exported values; optimizer state is 0. Raises CheckpointError
    where the export does not fit the run, which must not be used then.

    Shared rows are imported where the run has as many and its ids choose among them alike. `partial`: permit tables that only the
    export or only the run has. `on_table` is called with each table before it is read.
    """
    tables, given = store.space.tables, _entries(folder)
    missing = [table.name for table in tables if table.name not in given]
    unknown = [name for name in given if name not in {table.name for table in tables}]
    if (missing or unknown) and not partial:
        what = f"without {names_in_sentence(missing)}" if missing else f"with {names_in_sentence(unknown)}"
        raise CheckpointError(
            f"{folder} must have the tables of the run, got one {what}; with --partial they are left out"
        )
    kept = store.rule.weight_type(store.dtype)
    arrays: dict[int, dict[str, Tensor]] = {}
    for index, table in enumerate(tables):
        if table.name in given:
            arrays[index] = _arrays(folder, given[table.name], table)
            keys.begin_with(index, _keys(folder, table, arrays[index]))
    done, fresh = [], list(missing)
    for index, each in arrays.items():
        table, shared = tables[index], int(keys.keys.shared_T[index])
        on_table(table.name)
        width = store.rule.state_width(table.dim)
        for first, weights_ND in row_blocks(table.name, each["weight"], kept):
            store.contents.import_rows(index, shared + first, weights_ND, np.zeros((len(weights_ND), width)))
        entry, salt = given[table.name], f"{salts(seed, len(tables))[index]:016x}"
        if (entry.get("shared_rows"), entry.get("salt")) == (shared, salt) and len(each["shared_weight"]) == shared:
            for first, weights_ND in row_blocks(table.name, each["shared_weight"], kept):
                store.contents.import_rows(index, first, weights_ND, np.zeros((len(weights_ND), width)))
        else:
            fresh.append(f"shared rows of {table.name} (other data.shared_rows or run.seed)")
        given_type = type_name(each["weight"].dtype)
        done.append(ImportedTable(table.name, len(each["id"]), table.dim, given_type, type_name(kept)))
    others = mapped_tensors(folder / DENSE) if (folder / DENSE).is_file() else {}
    prefix, note = dense_prefix(model, others, partial)
    taken = set() if prefix is None else set_dense_tensors(model, others, prefix)
    return Imported(done, fresh, [*unknown, *(name for name in others if name not in taken)], len(taken), note)


def _entries(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Return what an export says of its tables, by name."""
    path = folder / STORE
    with os_errors("reading", path):
        head = parse_limited_json(DISK.read(path), path)
    tables = head.get("tables") if isinstance(head, dict) else None
    if not isinstance(tables, list) or head.get("format") != FORMAT:
        raise CheckpointError(f"{path} must be of format {FORMAT} and have a list of tables")
    if head.get("ids") != "raw" or head.get("since") is not None:
        what = "has what changed since an earlier one" if head.get("since") is not None else "has ids that are rows"
        raise CheckpointError(f"{folder} must be a full export of raw ids, it {what}")
    found: dict[str, Mapping[str, Any]] = {}
    for entry in tables:
        name, file = (entry.get("name"), entry.get("file")) if isinstance(entry, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(file, str) or not _FILE.fullmatch(file) or name in found:
            raise CheckpointError(f"{path} must name each table once, with a file in the folder, got {str(entry)[:80]}")
        found[name] = entry
    return found


def _arrays(folder: Path, entry: Mapping[str, Any], table: TableSpec) -> dict[str, Tensor]:
    """Map the arrays of a table. Raises CheckpointError where their types or shapes are wrong."""
    path = folder / entry["file"]
    arrays = mapped_tensors(path)
    for ids, rows in (("id", "weight"), ("shared_row", "shared_weight")):
        if ids not in arrays or rows not in arrays:
            raise CheckpointError(f"{path} must hold {ids} and {rows}, got {names_in_sentence(list(arrays))}")
        many, tensor = arrays[ids], arrays[rows]
        fits = many.dtype == torch.int64 and many.ndim == 1 and tensor.shape == (len(many), table.dim)
        if not fits or tensor.dtype not in FLOATS or not is_dense_tensor(tensor):
            rule = f"{ids} (N) of int64 and {rows} (N, {table.dim}) of floats"
            raise CheckpointError(f"{path} must hold {rule}, got {describe_tensor(many)} and {describe_tensor(tensor)}")
    if arrays["shared_row"].tolist() != list(range(len(arrays["shared_row"]))):
        raise CheckpointError(
            f"{path} must have all shared rows in order, got {names_in_sentence([*map(str, arrays['shared_row'])])}"
        )
    return arrays


def _keys(folder: Path, table: TableSpec, arrays: Mapping[str, Tensor]) -> NDArray[np.int64]:
    """Return the ids of a table, which are distinct."""
    key_K = arrays["id"].numpy().copy()
    sorted_K = np.sort(key_K)
    if (twice := sorted_K[1:][sorted_K[1:] == sorted_K[:-1]]).size:
        raise CheckpointError(f"ids of table {table.name!r} in {folder} must be distinct, got {twice[0]} twice")
    return key_K

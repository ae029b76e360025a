"""A serving store in a dict: it loads a full export of `checkpoint export --as store`, then what changed since.

python examples/serving_store.py FULL CHANGES...        prints what each folder brings
"""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

MASK = (1 << 64) - 1


class Store:
    """The tables and the dense part of a model, by name. Rows are found by their ids."""

    def __init__(self) -> None:
        self.at: str | None = None
        """The checkpoint that it stands at (`crc32`)."""
        self.step = 0
        self.rows: dict[str, dict[int, np.ndarray]] = {}
        self.shared_rows: dict[str, dict[int, np.ndarray]] = {}
        self.tables: dict[str, dict] = {}
        self.dense: dict[str, np.ndarray] = {}

    def apply(self, folder: Path) -> None:
        """Load a full export, or what changed since the checkpoint that the store stands at."""
        head = json.loads((folder / "store.json").read_text())
        if head["format"] != 1:
            raise ValueError(f"format of {folder} must be 1, got {head['format']}")
        if head["since"] is not None and head["since"]["crc32"] != self.at:
            raise ValueError(f"{folder} must be applied to {head['since']}, got a store at step {self.step}, {self.at}")
        files = {table["name"]: load_file(folder / table["file"]) for table in head["tables"]}
        dense = load_file(folder / "dense.safetensors") if head["dense"] else self.dense
        if head["since"] is None:
            self.rows, self.shared_rows = {name: {} for name in files}, {name: {} for name in files}
        for name, arrays in files.items():
            for id in arrays["removed"].tolist():
                del self.rows[name][id]
            self.rows[name].update(zip(arrays["id"].tolist(), arrays["weight"], strict=True))
            self.shared_rows[name].update(zip(arrays["shared_row"].tolist(), arrays["shared_weight"], strict=True))
        self.tables = {table["name"]: table for table in head["tables"]}
        self.dense, self.at, self.step = dense, head["crc32"], head["step"]

    def row(self, table: str, id: int) -> np.ndarray:
        """Return the row of an id: its own, or one that it shares with others (raw ids only)."""
        own = self.rows[table].get(id)
        return self.shared_rows[table][shared_row(id, self.tables[table])] if own is None else own


def shared_row(id: int, table: dict) -> int:
    """Return which of the shared rows an id reads that has none of its own: the upper half of a 64-bit hash."""
    if not table["shared_rows"]:
        raise KeyError(f"id must be below {table['ids']}, the rows of {table['name']}, got {id}")
    x = (id & MASK) ^ int(table["salt"], 16)
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    x = x ^ (x >> 31)
    return (x >> 32) % table["shared_rows"]


if __name__ == "__main__":
    store = Store()
    for name in sys.argv[1:]:
        store.apply(Path(name))
        sizes = ", ".join(f"{table} {len(rows)}" for table, rows in store.rows.items())
        print(f"{name}: step {store.step}, ids: {sizes}")

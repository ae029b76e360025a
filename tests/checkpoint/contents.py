"""The contents of a checkpoint, for a comparison bit by bit that ignores how rows are spread over shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from adaptive_rec import checkpoint
from adaptive_rec.checkpoint.files import DISK
from adaptive_rec.checkpoint.rows import SavedRows, is_shard

CLOCKS = {"recorder", "times", "disk_reported"}


def contents(generation: Path) -> dict[str, Any]:
    """Bytes of each table and of each other file; the state without clocks and without what was read and written on a disk."""
    saved = SavedRows(DISK, generation)
    found: dict[str, Any] = {
        table.name: [part.tobytes() for part in saved.read(table, 0, table.rows)] for table in saved.tables
    }
    found |= {path.name: path.read_bytes() for path in generation.glob("*.safetensors") if not is_shard(path.name)}
    state = json.loads((generation / "state.json").read_text())["state"]
    state["store"].pop("disk", None)
    judged_at = state["reclassifier"]["judged_at"]
    state["reclassifier"]["judged_at"] = {name: judged_at[name] for name in judged_at if not name.startswith("disk_")}
    return found | {"state": {name: value for name, value in state.items() if name not in CLOCKS}}


def newest_contents(out: Path) -> dict[str, Any]:
    """Of the newest whole checkpoint of a run."""
    newest = checkpoint.newest(out / "checkpoints")
    assert newest
    return contents(newest)

"""What a checkpoint says of its run."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

from adaptive_rec.state import RunState
from adaptive_rec.system.version import __version__


def run_description(state: RunState) -> dict[str, Any]:
    """Return the settings that must not change when a run is resumed."""
    space, config = state.store.batch_space, state.config
    return {
        "tables": [
            {**asdict(table), "first_row": int(first_row)}
            for table, first_row in zip(space.tables, space.table_first_row, strict=True)
        ],
        "embedding_optimizer": config.optimizer.embedding,
        "dense_optimizer": config.optimizer.dense,
        "precision": config.run.precision,
        "row_precision": config.run.row_precision,
        "seed": config.run.seed,
        "data": config.data.model_dump(mode="json"),
        "eval.mode": config.eval.mode,
        "run.batch_size": config.run.batch_size if config.eval.mode == "next_window" else None,  # dense columns are scaled by one
    }


def manifest_description(state: RunState) -> dict[str, Any]:
    """Return what a manifest says of a run, for people and tools."""
    config = json.dumps(state.config.model_dump(mode="json"), sort_keys=True)
    sha256 = hashlib.sha256(config.encode()).hexdigest()
    return {"version": __version__, "policy": state.policy.name, "config_sha256": sha256}

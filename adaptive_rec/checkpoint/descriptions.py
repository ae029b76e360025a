"""What a checkpoint says of its run."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

from adaptive_rec.checkpoint.settings import run_settings
from adaptive_rec.state.run_state import RunState
from adaptive_rec.system.version import __version__


def run_description(state: RunState) -> dict[str, Any]:
    """Return the tables and the settings that must not change when a run is resumed."""
    space, config = state.store.peers.batch_space, state.config
    return {
        "tables": [
            {**asdict(table), "first_row": int(first_row)}
            for table, first_row in zip(space.tables, space.table_first_row, strict=True)
        ],
        **run_settings(config),
    }


def manifest_description(state: RunState) -> dict[str, Any]:
    """Return what a manifest says of a run, for people and tools."""
    config = json.dumps(state.config.model_dump(mode="json"), sort_keys=True)
    sha256 = hashlib.sha256(config.encode()).hexdigest()
    return {"version": __version__, "policy": state.policy.name, "config_sha256": sha256}

"""What does not change while a run trains, for clients: ``run.json``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adaptive_rec.policy.find import policy_choices
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.runtime.session import Session
from adaptive_rec.system.version import __version__


def describe_run(
    session: Session, name: str, command: str, own_loop: bool = False, values: Mapping[str, Path] | None = None
) -> dict[str, Any]:
    """Describe a run by its name and the command line that started it. `own_loop`: the loop is the user's, and so are
    its data, its batches and its model. `values`: the files of the values that ids of tables stand for."""
    store, knobs = session.store, session.config.knobs
    row_bytes, space = store.hot.row_bytes(), session.store.peers.batch_space
    tables = []
    for number, (table, first_row) in enumerate(zip(space.tables, space.table_first_row.tolist(), strict=True)):
        pool = space.table_range(number)[0]
        sizes = {"rows": table.rows, "dim": table.dim, "row_bytes": row_bytes[pool]}
        of_ids = {"values": str(values[table.name])} if values and table.name in values else {}
        tables.append({"name": table.name, "pool": pool, "first_row": first_row, **sizes, **of_ids})
    return {
        "version": __version__,
        "run_name": name,
        "command": command,
        "started": time.time(),
        "own_loop": own_loop,
        "seed": session.config.run.seed,
        "device": str(session.device),
        "precision": session.config.run.precision,
        "on_disk": store.cold.on_disk and store.peers.owns_all,
        "in_memory": store.cold.memory is not None,
        "raw_ids": session.state.input.keys is not None,
        "steps_per_epoch": steps_per_epoch(session),
        "tables": tables,
        "policies": policy_choices(knobs.policy),
        "defaults": knobs.model_dump(),
        "desired": session.knobs.model_dump(),
        "effective": session.knobs.model_dump(),
    }


def steps_per_epoch(session: Session) -> int | None:
    """Return the steps of one pass over the training data; None in a user's loop, where the data is followed, and under a policy
    that repacks the stream."""
    if not isinstance(session, Runtime) or session.followed is not None or session.state.policy.reorders_stream:
        return None
    return -(-session.source.train_samples // session.config.run.batch_size)

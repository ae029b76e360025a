"""What a runtime goes on from, beside the rows themselves: optimizer state, placement, and what has been seen so far.

As tensors and plain values under names, so that ``torch.save`` keeps it and ``torch.load(weights_only=True)`` gives it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from adaptive_rec.embedding.placement_state import placement_state, set_placement, set_slots
from adaptive_rec.errors import CheckpointError
from adaptive_rec.placement import Migration, Placement
from adaptive_rec.saved import Saved

if TYPE_CHECKING:
    from adaptive_rec.modules.embedding_runtime import EmbeddingRuntime

FORMAT = 1


def state_of(runtime: EmbeddingRuntime) -> dict[str, Any]:
    """The runtime between two steps. Nothing in it changes with later steps."""
    store = runtime.store
    return _tensors(
        {
            "format": FORMAT,
            "rule": runtime.rates.rule.embedding,
            "tables": {table.name: {"rows": table.rows, "dim": table.dim} for table in store.space.tables},
            "optimizer": {str(number): store.export_table(number)[1] for number in range(len(store.space.tables))},
            "step": runtime.step_number,
            "steps_T": runtime.steps_T,
            "policy": runtime.policy.name,
            "budget_bytes": runtime.state.budget_bytes,
            "monitored": store.monitored,
            "begun": runtime.state.rows_placed,
            "store": placement_state(store),
            "observer": runtime.observer.state(),
            "reclassifier": runtime.reclassifier.state(),
            "tally": runtime.tally.state(),
        }
    )


def set_state(runtime: EmbeddingRuntime, given: Mapping[str, Any]) -> None:
    """Go on from what `state_of` said of a runtime with the same tables and update rule. Rows are loaded by themselves.

    Under the same policy with the same budget rows are hot as they were; else they are placed anew. Raises CheckpointError where
    it does not fit; nothing was changed then, unless the state contradicts itself.
    """
    found = Saved(_arrays(given), "the runtime's state")
    _check(runtime, found)
    store, optimizer = runtime.store, found.part("optimizer")
    states = [
        optimizer.array(str(number), store.host.dtype, table.rows, runtime.rule_width(number))
        for number, table in enumerate(store.space.tables)
    ]
    how = found.text("policy"), found.integer("budget_bytes"), found.flag("monitored")
    runtime.release_ahead()
    hot = np.sort(np.concatenate([rows[rows >= 0] for rows in store.device.row_of_slot]))
    store.migrate(Migration(promote=np.empty(0, dtype=np.int64), demote=hot))
    for number, state_RK in enumerate(states):
        store.replace_table(number, None, state_RK)
    runtime.state.set_step(found.integer("step"))
    runtime.steps_T[:] = found.array("steps_T", np.int64, len(runtime.steps_T))
    runtime.tally.set_state(found.part("tally"))
    runtime.state.forget_clock()
    runtime.state.place_rows(found.flag("begun"))
    if runtime.state.rows_placed and how == (runtime.policy.name, runtime.state.budget_bytes, store.monitored):
        _set_placement(runtime, found)
    elif runtime.state.rows_placed:
        slots = [part.array("row_of_slot", np.int64, -1) for part in found.part("store").parts("pools")]
        rows = np.sort(np.concatenate(slots))
        runtime.observer.remember(found.part("observer"), rows[rows >= 0])
        runtime.state.place_rows(False)  # rows are placed when training goes on
    if runtime.state.rows_placed:
        runtime.begin()


def _set_placement(runtime: EmbeddingRuntime, found: Saved) -> None:
    store, version = runtime.store, runtime.store.placement.version + 1
    pools = found.part("store").parts("pools", len(store.space.pools))
    set_slots(store, [len(part.array("row_of_slot", np.int64, -1)) for part in pools])
    set_placement(store, found.part("store"))
    store.placement = Placement(max(version, store.placement.version), store.slot_of_row)
    runtime.observer.set_state(found.part("observer"))
    runtime.reclassifier.set_state(found.part("reclassifier"))


def _check(runtime: EmbeddingRuntime, found: Saved) -> None:
    """Raise CheckpointError where the state is of other tables or another rule."""
    if (format_ := found.integer("format")) != FORMAT:
        raise CheckpointError(f"format of the runtime's state must be {FORMAT}, got {format_}")
    rule, tables = found.text("rule"), found.part("tables").everything()
    if rule != runtime.rates.rule.embedding:
        raise CheckpointError(f"the state's update rule must be {runtime.rates.rule.embedding}, got {rule}")
    own = {table.name: {"rows": table.rows, "dim": table.dim} for table in runtime.store.space.tables}
    for name in own.keys() | tables.keys():
        if own.get(name) != tables.get(name):
            raise CheckpointError(f"the state's table {name} must be {own.get(name)}, got {tables.get(name)}")


def _tensors(value: Any) -> Any:
    """Arrays as tensors of their own memory, at any depth."""
    if isinstance(value, Mapping):
        return {key: _tensors(part) for key, part in value.items()}
    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value


def _arrays(value: Any) -> Any:
    """Tensors as arrays, likewise."""
    if isinstance(value, Mapping):
        return {key: _arrays(part) for key, part in value.items()}
    return value.detach().cpu().numpy().copy() if isinstance(value, Tensor) else value

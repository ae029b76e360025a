"""State dict of a runtime: what resuming needs besides the rows, which are optimizer state, placement and counts.

It holds tensors and plain values by name, so that ``torch.save`` writes it and ``torch.load(weights_only=True)`` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adaptive_rec.checkpoint.run_state import counted_anew
from adaptive_rec.embedding.placement_state import placement_state, read_hot_rows, set_placement, set_slots, set_traffic
from adaptive_rec.errors import CheckpointError
from adaptive_rec.modules.loop.ids import LoopIds
from adaptive_rec.modules.loop.tables_in_tiers import TablesInTiers
from adaptive_rec.placement import Migration
from adaptive_rec.reclassify.observer import Observer
from adaptive_rec.reclassify.window import Reclassifier
from adaptive_rec.saved import Saved

FORMAT = 1


@dataclass(frozen=True)
class LoopParts:
    """The parts of a runtime that its state dict saves and restores."""

    tables: TablesInTiers
    observer: Observer
    reclassifier: Reclassifier
    raw_ids: LoopIds | None
    """The raw ids of all tables; None where ids are rows."""


def collect_loop_state(parts: LoopParts) -> dict[str, Any]:
    """Return the state between two steps, of all ranks. Later steps do not change it. Which rows were hot is that of one process:
    several ones find it anew."""
    state, store, rows = parts.tables.state, parts.tables.store, parts.tables.rows
    tables = rows.space.tables
    alone = rows.group.is_alone
    return _tensors(
        {
            "format": FORMAT,
            "rule": parts.tables.rates.name,
            "tables": {table.name: {"rows": table.rows, "dim": table.dim} for table in tables},
            "optimizer": {
                str(number): rows.whole(number, store.contents.export(number)[1], state.step) for number in range(len(tables))
            },
            "step": state.step,
            "steps_T": parts.tables.steps_T,
            "policy": state.policy.name,
            "budget_bytes": state.budget_bytes,
            "monitored": store.hot.monitored,
            "begun": state.rows_placed and alone,
            "store": placement_state(store) if alone else {},
            "observer": parts.observer.state() if alone else {},
            "reclassifier": parts.reclassifier.state() if alone else {},
            "tally": state.tally.state(rows.group),
            "raw_ids": None if parts.raw_ids is None else parts.raw_ids.state(),
        }
    )


def restore_loop_state(parts: LoopParts, given: Mapping[str, Any]) -> None:
    """Restore a state of the same tables and update rule; rows are loaded separately.

    Under the same policy with the same budget the same rows are hot as before; otherwise rows are placed again. Raises
    CheckpointError where the state does not fit; nothing has changed then, unless the state contradicts itself.
    """
    found = Saved(_arrays(given), "the runtime's state")
    _check(parts, found)
    tables, optimizer = parts.tables, found.part("optimizer")
    state, store, rows = tables.state, tables.store, tables.rows
    rule_T = [store.rules[rows.space.table_range(number)[0]] for number in range(len(rows.space.tables))]
    states = [
        optimizer.array(str(number), store.cold.types.dtype, table.rows, rule.state_width(table.dim))
        for number, (table, rule) in enumerate(zip(rows.space.tables, rule_T, strict=True))
    ]
    if parts.raw_ids is not None:
        parts.raw_ids.set_state(found.part("raw_ids"))
    how = found.text("policy"), found.integer("budget_bytes"), found.flag("monitored")
    hot = np.sort(np.concatenate([rows[rows >= 0] for rows in store.hot.tier.row_of_slot]))
    store.migrate(Migration(promote=np.empty(0, dtype=np.int64), demote=hot))
    for number, state_RK in enumerate(states):
        store.contents.replace_table(number, None, rows.own(number, state_RK, state.step))
    state.set_step(found.integer("step"))
    tables.steps_T[:] = found.array("steps_T", np.int64, len(tables.steps_T))
    state.tally.set_state(found.part("tally"), rows.group)
    state.forget_clock()
    begun = found.flag("begun") and rows.group.is_alone
    keys = None if parts.raw_ids is None else found.part("raw_ids").part("map")
    for text in counted_anew(found.part("observer") if begun else None, keys):
        state.warn(text)
    same = how == (state.policy.name, state.budget_bytes, store.hot.monitored)
    state.place_rows(begun and same)
    if state.rows_placed:
        _set_placement(parts, found)
    elif begun:
        parts.observer.remember(found.part("observer"), read_hot_rows(found.part("store"), store.space.rows))


def _set_placement(parts: LoopParts, found: Saved) -> None:
    store = parts.tables.store
    version = store.index.placement.version + 1
    pools = found.part("store").parts("pools", len(store.space.pools))
    set_slots(store, [len(part.array("row_of_slot", np.int64, -1)) for part in pools])
    set_placement(store, found.part("store"))
    set_traffic(store, found.part("store").part("traffic"))
    store.restore_placement(max(version, store.index.placement.version))
    parts.observer.set_state(found.part("observer"))
    parts.reclassifier.set_state(found.part("reclassifier"))


def _check(parts: LoopParts, found: Saved) -> None:
    """Raise CheckpointError where the state is of other tables or another update rule."""
    if (format_ := found.integer("format")) != FORMAT:
        raise CheckpointError(f"format of the runtime's state must be {FORMAT}, got {format_}")
    rule, tables = found.text("rule"), found.part("tables").everything()
    if rule != (own_rule := parts.tables.rates.name):
        raise CheckpointError(f"the state's update rule must be {own_rule}, got {rule}")
    saved_ids = found.maybe("raw_ids") if found.has("raw_ids") else None  # older versions had none
    if (saved_ids is None) != (parts.raw_ids is None):
        ours, theirs = ("rows" if there is None else "raw" for there in (parts.raw_ids, saved_ids))
        raise CheckpointError(f"the state's ids must be {ours}, got {theirs}")
    own = {table.name: {"rows": table.rows, "dim": table.dim} for table in parts.tables.space.tables}
    for name in own.keys() | tables.keys():
        if own.get(name) != tables.get(name):
            raise CheckpointError(f"the state's table {name} must be {own.get(name)}, got {tables.get(name)}")


def _tensors(value: Any) -> Any:
    """Return a nested state with copies of its arrays as tensors."""
    if isinstance(value, Mapping):
        return {key: _tensors(part) for key, part in value.items()}
    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value


def _arrays(value: Any) -> Any:
    """Return a nested state with copies of its tensors as arrays."""
    if isinstance(value, Mapping):
        return {key: _arrays(part) for key, part in value.items()}
    return value.detach().cpu().numpy().copy() if isinstance(value, Tensor) else value

"""The placement in a checkpoint: the row of every slot, with its class, popularity and movement."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_rec.embedding.records import Traffic
from adaptive_rec.embedding.row_types import NUMPY_DTYPE
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.errors import CheckpointError
from adaptive_rec.kernels.record import record_of_sums
from adaptive_rec.saved import ANY, Saved, parts_by_number


def placement_state(store: EmbeddingStore) -> dict[str, Any]:
    """Return the placement as a checkpoint has it, without rows and optimizer state."""
    device = store.hot.tier
    return {
        "version": store.index.placement.moves,
        "traffic": saved_traffic(store.index.traffic),
        "pools": parts_by_number(
            {
                "row_of_slot": device.row_of_slot[pool],
                "stale": device.stale[pool],
                "estimate": device.estimate[pool],
                "movement": device.movement[pool],
                "monitor": {"record_HR": store.hot.movement_record(pool), "touches_H": store.hot.touches(pool)}
                if store.hot.monitored
                else None,
            }
            for pool in range(len(store.space.pools))
        ),
    }


def set_placement(store: EmbeddingStore, found: Saved) -> None:
    """Put rows back into their slots, after `set_slots`, while every row is cold and tables are imported."""
    assert not store.hot.tier.hot_rows, "a placement is restored before any other"
    version, pools = found.integer("version"), found.parts("pools", len(store.space.pools))
    for pool, part in enumerate(pools):
        _fill_slots(store, pool, part)
        monitor = part.maybe("monitor")
        if (monitor is not None) != store.hot.monitored:
            raise CheckpointError(f"pool {pool} must have a monitor exactly where the policy tracks movement")
        if monitor is not None:
            _set_monitor(store, pool, monitor)
    store.restore_placement(version)


def read_hot_rows(found: Saved, end: int) -> NDArray[np.int64]:
    """Return the rows that were hot in a saved placement, in their order. Raises CheckpointError where one is not below `end`."""
    rows = np.sort(np.concatenate([part.array("row_of_slot", np.int64, -1) for part in found.parts("pools")]))
    if len(rows) and rows[-1] >= end:
        raise CheckpointError(f"hot rows must lie in [0, {end}), got {rows[-1]}")
    return rows[rows >= 0]


def set_slots(store: EmbeddingStore, capacities: list[int]) -> None:
    """Give each pool this many slots, while every row is cold."""
    assert not store.hot.tier.hot_rows, "rows would be lost with their slots"
    if capacities != store.hot.tier.capacities:
        store.hot.replace(capacities)


def saved_traffic(traffic: Traffic) -> dict[str, int]:
    """Return the counts as a checkpoint has them: there `hot_row_updates` includes skipped updates, as it always did."""
    return {**asdict(traffic), "hot_row_updates": traffic.hot_row_updates + traffic.row_updates_skipped}


def set_traffic(store: EmbeddingStore, found: Saved) -> None:
    """Restore the counts. Of several ranks, rank 0 has those of all of them so far."""
    saved = Traffic(**{name: found.integer(name) for name in asdict(store.index.traffic)})
    if store.group.rank == 0:
        store.index.set_traffic(replace(saved, hot_row_updates=max(0, saved.hot_row_updates - saved.row_updates_skipped)))


def _fill_slots(store: EmbeddingStore, pool: int, found: Saved) -> None:
    device, spec = store.hot.tier, store.space.pools[pool]
    slots = len(device.row_of_slot[pool])
    row_of_slot = found.array("row_of_slot", np.int64, slots)
    hot = np.flatnonzero(row_of_slot != -1)
    rows = row_of_slot[hot]
    inside = not len(rows) or (spec.first_row <= rows.min() and rows.max() < spec.end_row)
    if not inside or len(np.unique(rows)) != len(rows):
        raise CheckpointError(f"row_of_slot of pool {pool} must hold distinct rows of the pool, and -1 for free slots")
    device.restore(pool, row_of_slot)
    device.stale[pool][:] = found.array("stale", np.bool_, slots)
    device.estimate[pool][:] = found.array("estimate", np.float32, slots)
    device.movement[pool][:] = found.array("movement", np.float32, slots)
    store.hot.up(pool, store.index.host_rows(pool, rows), hot, store.cold)
    store.index.slot_of_row[rows] = hot


def _set_monitor(store: EmbeddingStore, pool: int, found: Saved) -> None:
    monitor, slots = store.hot.tier.monitors[pool], len(store.hot.tier.row_of_slot[pool])
    if found.shape("record_HR") == (slots, store.space.pools[pool].dim + 2):  # of older versions: sums of full precision
        sums = torch.from_numpy(found.array("record_HR", NUMPY_DTYPE[store.hot.dtype], slots, ANY))
        record_HR = record_of_sums(sums[:, :-2], sums[:, -1])
    else:
        record_HR = torch.from_numpy(found.array("record_HR", np.int8, *monitor.record_HR.shape))
    touches_H = torch.from_numpy(found.array("touches_H", np.int32, len(monitor.touches_H)))
    store.hot.launch(lambda: monitor.record_HR.copy_(record_HR))
    store.hot.launch(lambda: monitor.touches_H.copy_(touches_H))

"""The part of a run's memory that follows from its rows alone, to the byte: tables, hot rows, trackers.

The functions that allocate these things give the sizes. Buffers that fill up while the run trains are counted as full.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from adaptive_rec.config.knobs import Knobs
from adaptive_rec.config.tree import Config, hot_part
from adaptive_rec.data.source import Source
from adaptive_rec.embedding.device import SLOT_RECORD_BYTES, all_rows_bytes, row_bytes, split_budget
from adaptive_rec.embedding.host import SLOT_BYTES
from adaptive_rec.embedding.optimizer import RowRule
from adaptive_rec.memory.plan import HotBytes, MemoryPart, Place, RowParts, TableBytes
from adaptive_rec.placement import RowSpace
from adaptive_rec.policy import Policy, SkippingPolicy
from adaptive_rec.policy.find import load_policy
from adaptive_rec.reclassify.observer import SKETCH_LIMIT_BYTES, tracked_slots
from adaptive_rec.tracking.count_min import DEPTH, width_for
from adaptive_rec.tracking.delta import MEASURES
from adaptive_rec.tracking.horizon import MemoryTrials
from adaptive_rec.tracking.popularity import MIN_BUFFER_ROWS

TABLES = "data.max_table_rows, model.embedding_dim or run.row_precision"
BUDGET = "knobs.hot_budget_bytes"

COPIES = "copies for a checkpoint"

LOG = "newest rows of the log"

IN_MEMORY = "cold rows in memory"

TWIN_ROWS, TWIN_DENSE, TWIN_COPIES = (
    f"twins of trials: {each}" for each in ("hot rows", "dense parts", "rows for a checkpoint")
)  # fmt: skip

TRIALS = "knobs.guard_max_logloss_increase=0, without which nothing is skipped"

MOST_TWINS = 2
"""Twins of the run that a trial has at a time: one skips by the policy, one at random (`runtime.paired_trial`)."""

JUDGED_BYTES = 4 * MEASURES + 8 * MEASURES + 8 + 4
"""Bytes of a slot while its staleness is judged: the monitor's measures, the same in float64, touches, the rule's answer."""


def hot_row_bytes(config: Config, space: RowSpace, monitored: bool) -> list[int]:
    """Return the device bytes of a hot row of each pool: weights, optimizer state, and records of movement where `monitored`."""
    return row_bytes(space, row_rule(config), row_type(config).itemsize, monitored)


def policy_row_bytes(config: Config, space: RowSpace, policy: str = "") -> list[int]:
    """Return the device bytes of a hot row of each pool under a policy, or under the configured one."""
    return hot_row_bytes(config, space, load_policy(policy or config.knobs.policy).records_movement(config.knobs))


def everything_bytes(config: Config, space: RowSpace, policy: str = "") -> int:
    """Return the hot budget that holds all rows under a policy, or under the configured one."""
    return all_rows_bytes(space, policy_row_bytes(config, space, policy))


def twins_of(config: Config, policy: Policy) -> int:
    """Return how many twins a run in one process may have at a time under a policy."""
    tried = isinstance(policy, SkippingPolicy) and policy.guards_quality and config.knobs.guard_max_logloss_increase > 0
    return MOST_TWINS if tried else 0


def row_parts(
    config: Config, source: Source, policy: Policy, fast: Place, lookups: int = 0, twins: int = 0
) -> RowParts:  # fmt: skip
    """Compute the parts. `fast` is the place of the hot rows, `lookups` are those of a batch, `twins` those of a trial."""
    space, rule, itemsize = space_of(source, policy), row_rule(config), row_type(config).itemsize
    sizes = hot_row_bytes(config, space, policy.records_movement(config.knobs))
    slots = split_budget(space, sizes, policy.budget_bytes(config.knobs, all_rows_bytes(space, sizes)))
    in_memory = slots_in_memory(config, space) if fast == "device" and config.run.host_memory else []
    tables = list(_tables(space, rule, itemsize, _place_bytes(config, bool(in_memory))))
    hot = list(_hot_rows(space, rule, itemsize, sizes, slots))
    records = sum(slots) * SLOT_RECORD_BYTES
    movement = sum(pool.movement_bytes for pool in hot)
    tracked = tracked_slots(policy, config.knobs, space, sizes, sum(slots))
    trackers = list(_trackers(space, policy, config.knobs, tracked, sum(in_memory), lookups))
    saved = records + movement + sum(part.bytes for part in trackers)
    judged = sum(slots) * JUDGED_BYTES if policy.tracks_movement else 0
    parts = [
        *_cold_rows(config, space, rule, itemsize, tables),
        *_rows_in_memory(config, space, in_memory),
        MemoryPart("hot rows", fast, sum(pool.bytes for pool in hot), BUDGET, of_rows=True),
        *_twin_rows(twins * sum(pool.weights_bytes + pool.state_bytes for pool in hot), fast),
        MemoryPart("records of slots", "host", records, BUDGET, of_rows=True),
        *trackers,
        MemoryPart(COPIES, "host", saved, BUDGET, of_rows=True),
        MemoryPart("a window's end", "host", judged, BUDGET, moment="window", of_rows=True),
    ]
    return RowParts(tables, hot, parts)


def _twin_rows(size: int, fast: Place) -> Iterator[MemoryPart]:
    """Yield the copies of hot rows that a trial's twins have, and those that a checkpoint within it takes."""
    if size:
        yield MemoryPart(TWIN_ROWS, fast, size, TRIALS, of_rows=True)
        yield MemoryPart(TWIN_COPIES, "host", size, TRIALS, of_rows=True)


def _place_bytes(config: Config, in_memory: bool) -> int:
    """Return the host memory of the place of a row. `in_memory`: some of the cold rows on a disk are also in memory."""
    if not config.run.host_memory:
        return SLOT_BYTES
    from adaptive_rec.embedding.cold import memory_slots
    from adaptive_rec.embedding.disk.row_log import PLACE_BYTES

    return PLACE_BYTES + (memory_slots.PLACE_BYTES if in_memory else 0)


def _cold_rows(
    config: Config, space: RowSpace, rule: RowRule, itemsize: int, tables: list[TableBytes]
) -> Iterator[MemoryPart]:
    rows_bytes = sum(table.weights_bytes + table.state_bytes for table in tables)
    placement = sum(table.placement_bytes for table in tables)
    if not config.run.host_memory:
        yield MemoryPart("tables", "host", rows_bytes + placement, TABLES, of_rows=True)
        return
    from adaptive_rec.embedding.disk.row_log import MOST_SPACE, log_memory_bytes, spare_bytes

    buffers = spare = 0
    for pool in space.pools:
        sizes = pool.rows, *_row_sizes(rule, pool.dim, itemsize)
        buffers += log_memory_bytes(*sizes)
        spare += spare_bytes(*sizes)
    yield MemoryPart("places of rows", "host", placement, "data.max_table_rows", of_rows=True)
    yield MemoryPart(LOG, "host", buffers, "", of_rows=True)
    yield MemoryPart("rows on the disk", "disk", round(MOST_SPACE * rows_bytes) + spare, TABLES, of_rows=True)


def kept_parts(config: Config, source: Source) -> Iterator[MemoryPart]:
    """Yield the memory for rows of raw ids that leave and are kept on the disk, besides that of the ids."""
    if not config.data.keep_evicted:
        return
    from adaptive_rec.embedding.disk.row_log import ADDRESS_BYTES, log_memory_bytes

    rule, itemsize, memory = row_rule(config), row_type(config).itemsize, 0
    tables = Counter(table.dim for table in source.tables)
    for dim, count in tables.items():
        places = count * config.data.keep_evicted
        memory += ADDRESS_BYTES * places + log_memory_bytes(places, *_row_sizes(rule, dim, itemsize))
    yield MemoryPart("rows on their way to the disk that are kept", "host", memory, "data.keep_evicted")


def slots_in_memory(config: Config, space: RowSpace) -> list[int]:
    """Return the slots of each pool in host memory, of a device run whose other cold rows lie on a disk."""
    return split_budget(space, hot_row_bytes(config, space, monitored=False), hot_part(config.run.host_memory))


def _rows_in_memory(config: Config, space: RowSpace, slots_P: list[int]) -> Iterator[MemoryPart]:
    if not slots_P:
        return
    from adaptive_rec.embedding.cold.memory_slots import SLOT_BYTES as SLOT_IN_MEMORY_BYTES

    sizes = hot_row_bytes(config, space, monitored=False)
    held = sum(slots * (size + SLOT_IN_MEMORY_BYTES) for slots, size in zip(slots_P, sizes, strict=False))
    if held:
        yield MemoryPart(IN_MEMORY, "host", held, "run.host_memory", of_rows=True)


def space_of(source: Source, policy: Policy) -> RowSpace:
    return RowSpace.of(source.tables, source.features, policy.request_per_table)


def row_type(config: Config) -> torch.dtype:
    """Return the type in which rows are computed."""
    return torch.float64 if config.run.precision == "float64" else torch.float32


def row_rule(config: Config) -> RowRule:
    return RowRule.of(config.optimizer, config.run.row_precision)


def array_bytes(thing: Any) -> int:
    """Return the bytes of the arrays that an object holds, without those mapped from files."""
    arrays = [value for value in vars(thing).values() if isinstance(value, np.ndarray)]
    return sum(array.nbytes for array in arrays if not isinstance(array, np.memmap))


def _row_sizes(rule: RowRule, dim: int, itemsize: int) -> tuple[int, int]:
    """Return the bytes of a row's weights and of its optimizer state."""
    state = rule.state_width(dim) * itemsize
    return rule.bytes_per_row(dim, itemsize) - state, state


def _tables(space: RowSpace, rule: RowRule, itemsize: int, place_bytes: int) -> Iterator[TableBytes]:
    for table in space.tables:
        sizes = (table.rows * size for size in (*_row_sizes(rule, table.dim, itemsize), place_bytes))
        yield TableBytes(table.name, table.rows, table.dim, *sizes)


def _hot_rows(space: RowSpace, rule: RowRule, itemsize: int, sizes: list[int], slots: list[int]) -> Iterator[HotBytes]:
    for pool, size, count in zip(space.pools, sizes, slots, strict=True):
        weights, state = _row_sizes(rule, pool.dim, itemsize)
        movement = count * (size - weights - state)
        yield HotBytes(pool.dim, pool.rows, count, count * weights, count * state, movement)


def _trackers(
    space: RowSpace, policy: Policy, knobs: Knobs, hot_rows: int, in_memory: int, lookups: int
) -> Iterator[MemoryPart]:
    placed = hot_rows + in_memory
    sketch = 4 * DEPTH * width_for(placed, space.rows, SKETCH_LIMIT_BYTES)
    yield MemoryPart("sketch", "host", sketch, BUDGET, of_rows=True)
    if policy.counts_lookups(knobs):
        rows = max(4 * placed, MIN_BUFFER_ROWS) + lookups
        yield MemoryPart("candidates", "host", rows * np.dtype(np.int64).itemsize, BUDGET, of_rows=True)
    if policy.adapts_memory:
        yield MemoryPart("trials of memories", "host", array_bytes(MemoryTrials(hot_rows)), "knobs.policy", of_rows=True)

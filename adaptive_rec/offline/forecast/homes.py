"""Where the rows of a run with a disk will be, and whether the disk keeps up with its steps."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from adaptive_rec.config.tree import Config
from adaptive_rec.data.source import Source
from adaptive_rec.memory.plan import MemoryPlan
from adaptive_rec.memory.rows import hot_row_bytes, slots_in_memory, space_of
from adaptive_rec.offline.forecast.hardware import Hardware
from adaptive_rec.offline.forecast.lane import StepCounts
from adaptive_rec.offline.forecast.predict import Workload, disk_seconds, multiplications, predict_step_seconds
from adaptive_rec.offline.forecast.prediction import HotLookups, Prediction
from adaptive_rec.placement import RowSpace
from adaptive_rec.policy.find import load_policy


@dataclass(frozen=True)
class Homes:
    """Rows on the device, in memory and on the disk, once learnt, and what a step does with those on the disk. A step without a
    time: no hardware profile was given, nothing is known of the lookups, or the hot rows are on a device."""

    device_rows: int
    """0 on a CPU, where hot rows are in memory."""
    device_bytes: int
    memory_rows: int
    memory_bytes: int
    disk_rows: int
    """Those that were never written are on no disk, and take no room."""
    disk_bytes: int
    """With optimizer state, each row once."""
    cold_rows_per_step: float | None
    """Distinct rows of a batch in no memory: those that a step reads from the disk at the most, and writes back. None where no
    lookups were counted."""
    disk_seconds: float | None = None
    """Time of the disk for these."""
    step_seconds: float | None = None
    """Time of a step that never waits for the disk."""

    @property
    def keeps_up(self) -> bool | None:
        """Whether the disk needs no longer than a step. None where that is not known."""
        if self.disk_seconds is None or self.step_seconds is None:
            return None
        return self.disk_seconds <= self.step_seconds

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "keeps_up": self.keeps_up}


def homes_of(config: Config, source: Source, plan: MemoryPlan, lookups: HotLookups | None, hardware: Hardware | None) -> Homes:
    """Predict the homes of a run's rows at its hot budget."""
    rows, on_device = sum(table.rows for table in plan.tables), "device" in plan.available_bytes
    all_bytes = sum(table.weights_bytes + table.state_bytes for table in plan.tables)
    hot, hot_bytes = sum(pool.slots for pool in plan.hot), sum(pool.bytes for pool in plan.hot)
    left_bytes = all_bytes - sum(pool.weights_bytes + pool.state_bytes for pool in plan.hot)
    beside, beside_bytes = _in_memory(config, source, plan) if on_device else (0, 0)
    above = (hot, hot_bytes, beside, beside_bytes) if on_device else (0, 0, hot, hot_bytes)
    where = *above, rows - hot - beside, left_bytes - beside_bytes
    if lookups is None:
        return Homes(*where, None)
    found = lookups.at(hot_bytes + beside_bytes)
    cold = found.cold_rows * config.run.batch_size / lookups.batch_size
    if hardware is None or on_device:
        return Homes(*where, cold)
    load = _load(config, source, plan, lookups, found, all_bytes / rows)
    alone = hardware.model_copy(update={"disk": hardware.disk.model_copy(update={"read_us": 0.0})})
    return Homes(*where, cold, disk_seconds(load, hardware), predict_step_seconds(load, alone))


def _in_memory(config: Config, source: Source, plan: MemoryPlan) -> tuple[int, int]:
    """Return the rows of a device run that are in memory, not hot, and their bytes."""
    space = space_of(source, load_policy(config.knobs.policy))
    slots, sizes = slots_in_memory(config, space), hot_row_bytes(config, space, monitored=False)
    rows = [min(count, pool.rows - pool.slots) for count, pool in zip(slots, plan.hot, strict=True)]
    return sum(rows), sum(count * size for count, size in zip(rows, sizes, strict=True))


def _load(
    config: Config, source: Source, plan: MemoryPlan, lookups: HotLookups, found: Prediction, row_bytes: float
) -> Workload:
    """Return what a step does, as predicted; moves of rows between memory and disk are left out."""
    space, policy = RowSpace.of(source.tables, source.features), load_policy(config.knobs.policy)
    scale = config.run.batch_size / lookups.batch_size
    distinct, cold = lookups.batch_rows * scale, found.cold_rows * scale
    tally = StepCounts(
        steps=1,
        samples=config.run.batch_size,
        lookups=plan.lookups,
        read_lookups=plan.lookups,
        hot_lookups=round(found.learned_ratio * plan.lookups),
        rows=round(distinct),
        hot_rows=round(distinct - cold),
        cold_row_bytes=round(cold * row_bytes),
        counted_rows=round(distinct * config.knobs.sample_ratio) if policy.counts_lookups(config.knobs) else 0,
    )
    return Workload.of(config, source, space, policy, tally, multiplications(config, source, space))

"""The hot lookups that a budget will catch, predicted from a profile of the data; where the rows of a run with a disk will be,
and whether the disk keeps up with its steps.

A profile's curve has two shares for each budget: one if all counts were known in advance, which no run reaches, and one for each
window caught by the rows with the most lookups before it. The second one is the prediction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_rec.config.tree import Config
from adaptive_rec.data.source import Source
from adaptive_rec.errors import UsageError
from adaptive_rec.memory.plan import MemoryPlan
from adaptive_rec.memory.rows import hot_row_bytes, slots_in_memory, space_of
from adaptive_rec.offline.forecast.hardware import Hardware
from adaptive_rec.offline.forecast.lane import StepCounts
from adaptive_rec.offline.forecast.predict import Workload, disk_seconds, multiplications, predict_step_seconds
from adaptive_rec.placement import RowSpace
from adaptive_rec.policy.find import load_policy


@dataclass(frozen=True)
class Prediction:
    """The predicted hot lookups of a budget."""

    learned_ratio: float
    """Share of the lookups caught by rows chosen from earlier counts."""
    known_ratio: float
    """Share caught if all counts are known in advance: the most of any placement that does not change."""
    cold_rows: float
    """Distinct rows of a batch that rows chosen from earlier counts do not have."""


class HotLookups:
    """The curve of a profile, scaled to the size of the run's rows."""

    def __init__(self, profile: Mapping[str, Any], row_bytes: Sequence[int]) -> None:
        theirs = profile["data"]["row_bytes"]
        self.samples: int = profile["data"]["samples"]
        self.rows: int = profile["all"]["rows"]
        self.scale = sum(row_bytes) / sum(theirs)
        """Size of a row of the run over that of the profile."""
        self.batch_size: int = profile["data"]["batch_size"]
        self.batch_rows: float = profile["data"]["batch_rows"]
        """Distinct rows of a batch of so many samples."""
        self._suggested: int = profile["suggested"]["bytes"]
        points = profile["budgets"]
        self._bytes = np.array([0, *(point["bytes"] * self.scale for point in points)])
        self._learned = np.array([0, *(point["learned_ratio"] for point in points)])
        self._known = np.array([0, *(point["hot_lookup_ratio"] for point in points)])
        self._cold = np.array([self.batch_rows, *(point["cold_rows"] for point in points)])

    @staticmethod
    def read(path: Path, row_bytes: Sequence[int]) -> HotLookups:
        """Read a ``profile.json`` or the output of `profile --json`. Raises UsageError where the file is neither."""
        try:
            return HotLookups(json.loads(path.read_text(encoding="utf-8")), row_bytes)
        except OSError as error:
            raise UsageError(f"--profile FILE must be readable, {path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, IndexError, ZeroDivisionError) as error:
            made = "profile.json of `adaptive-rec profile --out DIR`, of this version"
            raise UsageError(
                f"--profile FILE must be a {made}, {path} is none ({type(error).__name__}: {error})"
            ) from None

    def at(self, budget_bytes: int) -> Prediction:
        """Return the prediction for a budget, interpolated between the points of the curve."""
        curves = (self._learned, self._known, self._cold)
        return Prediction(*(float(np.interp(budget_bytes, self._bytes, values)) for values in curves))

    @property
    def suggested_bytes(self) -> int:
        """The budget that `profile` suggests."""
        return round(self._suggested * self.scale)


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

"""Prediction of a step's time on a machine, from the counts of a replay and the costs of work there.

On the host, a step is the sum of its verbs; work in the background (reading ahead, counting lookups) takes its share of the
cores. Where cold rows lie on a disk, a step takes at least as long as the disk. On a device, computing, copies up, copies down
and gathering overlap: a step takes as long as the longest of them, unless the policy does them one after the other.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from adaptive_rec.config.run import CORES_FOR_CLASSIFYING_AHEAD
from adaptive_rec.config.tree import Config
from adaptive_rec.data.source import Source
from adaptive_rec.dense.models.build import build_model
from adaptive_rec.offline.forecast.hardware import DeviceCosts, Hardware
from adaptive_rec.offline.forecast.lane import StepCounts
from adaptive_rec.placement import RowSpace
from adaptive_rec.policy import Policy

COUNTED_SAMPLES = 8
FORWARD_RATIO = 1 / 3
"""Part of a sample's dense work that scoring takes: the forward pass, without the backward pass, which is twice as long."""


@dataclass(frozen=True)
class Workload:
    """The counts of a replay and the settings that a step's time depends on."""

    tally: StepCounts
    dim: int
    """Mean dim of the rows that a sample looks up."""
    tables: int
    multiplications: float
    probe_ratio: float
    """Share of the steps that measure movement."""
    prefetches: bool
    requests_per_table: bool
    adapts_memory: bool
    arranges: bool
    threads: int = 0
    """Threads of the dense part; 0 is one per core."""
    on_disk: bool = False
    """Whether cold rows lie on a disk."""

    @staticmethod
    def of(
        config: Config, source: Source, space: RowSpace, policy: Policy, tally: StepCounts, multiplications: float
    ) -> Workload:
        dims = [source.tables[feature.table].dim for feature in source.features]
        return Workload(
            tally=tally,
            dim=round(sum(dims) / len(dims)),
            tables=len(space.tables),
            multiplications=multiplications,
            probe_ratio=config.knobs.probe_ratio if policy.records_movement(config.knobs) and not policy.exact else 0.0,
            prefetches=policy.prefetches and config.knobs.prefetch_depth > 0,
            requests_per_table=policy.request_per_table,
            adapts_memory=policy.adapts_memory,
            arranges=policy.arranges_stream,
            threads=config.run.threads,
            on_disk=config.run.host_memory > 0,
        )


def multiplications(config: Config, source: Source, space: RowSpace) -> float:
    """Return the multiplications of a sample's forward pass through the configured dense part."""
    columns = max(1, source.dense_features)
    model = build_model(config, space, columns, source.sequence)
    pooled = [torch.zeros(COUNTED_SAMPLES, len(pool.features), pool.dim) for pool in space.pools]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(COUNTED_SAMPLES, columns), pooled)
    return float(counter.get_total_flops() / (2 * COUNTED_SAMPLES))


@dataclass(frozen=True)
class StepSeconds:
    """Seconds of a step by its parts."""

    other: float
    read: float
    """In the background where batches are read ahead."""
    arrange: float
    """Reading by a policy between steps, while training waits."""
    classify: float
    gather: float
    dense: float
    update: float
    requests: float
    track: float
    """In the background."""
    decide: float
    migrate: float
    evaluate: float
    up: float
    down: float
    disk: float
    """In the background where batches are read ahead."""
    disk_cpu: float
    """Processor time of that, in the background."""


def predict_step_seconds(load: Workload, hardware: Hardware) -> float:
    """Return the seconds of a mean step."""
    parts = cost(load, hardware)
    between = parts.other + parts.arrange + parts.requests + parts.decide + parts.migrate + parts.evaluate
    if hardware.link.up_gbs:
        overlapping = (parts.dense + parts.update, parts.read + parts.classify + parts.gather, parts.up, parts.down)
        return between + (max(overlapping) if load.prefetches else sum(overlapping))
    own, background = between + parts.gather + parts.dense + parts.update, parts.track + parts.disk_cpu
    if not load.prefetches:
        own += parts.read + parts.classify
    elif hardware.cores >= CORES_FOR_CLASSIFYING_AHEAD:
        background += parts.read + parts.classify
    else:
        own, background = own + parts.classify, background + parts.read
    spare = 0 < load.threads < hardware.cores
    step = own if spare else own + background / hardware.cores
    return max(step, parts.disk) if load.prefetches else step + parts.disk


def cost(load: Workload, hardware: Hardware) -> StepSeconds:
    """Return the seconds of each part of a mean step."""
    tally, rows, step, link = load.tally, hardware.of_dim(load.dim), hardware.step, hardware.link
    steps, measured = max(1, tally.steps), hardware.dense.multiplications
    hot, cold = tally.hot_lookups, tally.lookups - tally.hot_lookups
    arrange_ns = step.arrange_ns if load.arranges else 0.0
    sample_us = hardware.dense.sample_us * (load.multiplications / measured if measured else 1.0)
    nanoseconds = {
        "read": tally.read_lookups * (step.read_ns + arrange_ns),
        "arrange": tally.decided_lookups * (step.read_ns + arrange_ns),
        "classify": tally.lookups * step.classify_ns,
        "gather": hot * rows.gather_hot_ns + cold * rows.gather_cold_ns,
        "update": (hot + cold) * rows.sum_ns
        + tally.hot_rows * (rows.update_hot_ns + load.probe_ratio * rows.probe_ns)
        + (tally.rows - tally.hot_rows) * rows.update_cold_ns,
        "track": tally.counted_rows * (step.track_ns + (step.trial_ns if load.adapts_memory else 0.0)),
        "decide": tally.ranked_rows * step.decide_ns
        + tally.listed_rows * step.list_ns
        + tally.reclassifications * step.decide_us * 1e3
        + tally.ticks * step.tick_ms * 1e6,
        "migrate": tally.migrated_rows * rows.migrate_ns,
        "evaluate": tally.evaluated_samples * sample_us * 1e3 * FORWARD_RATIO,
    }  # fmt: skip
    travels = (tally.cold_row_bytes + tally.promoted_bytes, tally.cold_row_bytes + tally.demoted_bytes)
    up, down = (
        size / steps / (speed * 1e9) + copies * link.copy_us * 1e-6 if speed else 0.0
        for size, speed, copies in zip(travels, (link.up_gbs, link.down_gbs), (2, 1), strict=True)
    )
    return StepSeconds(
        other=step.other_ms * 1e-3,
        dense=hardware.dense.call_ms * 1e-3 + tally.samples / steps * sample_us * 1e-6,
        requests=2 * (load.tables - 1) * step.request_us * 1e-6 if load.requests_per_table else 0.0,
        up=up,
        down=down,
        disk=disk_seconds(load, hardware) or 0.0,
        disk_cpu=cold_rows(tally) * hardware.disk.read_cpu_us * 1e-6 if load.on_disk else 0.0,
        **{name: value * 1e-9 / steps for name, value in nanoseconds.items()},
    )


def cold_rows(tally: StepCounts) -> float:
    """Return the distinct cold rows of a mean step."""
    return (tally.rows - tally.hot_rows) / max(1, tally.steps)


def disk_seconds(load: Workload, hardware: Hardware) -> float | None:
    """Return for how long the disk reads the cold rows of a mean step and writes them back, without compaction; None where no
    rows lie on one, or it was not measured."""
    disk = hardware.disk
    if not load.on_disk or not disk.read_us or not disk.write_gbs:
        return None
    written_bytes = load.tally.cold_row_bytes / max(1, load.tally.steps)
    return cold_rows(load.tally) * disk.read_us * 1e-6 + written_bytes / (disk.write_gbs * 1e9)


# On a device, from stated figures -------------------------------------------------------------------------------------


EAGER_LAUNCHES, TRITON_LAUNCHES, UPLOADS, WAITS = 8, 3, 2.5, 4.5
"""Of the training thread in a step whose batch is whole and whose rates stay the same, counted on a stubbed device."""
DENSE_KERNELS = 100
"""Recorded kernels of a step of DLRM with its optimizer."""
CLASSIFY_INTS, SORT_PASSES, SORT_TRAFFIC = 4, 4, 2
"""Integers up for each lookup where the host classifies; passes of a radix sort over 32-bit keys with their places, each of which
reads and writes both."""
HOST_CROSSINGS = 6
"""Times that a cold byte crosses host memory on its way out and home: read, written, read by the copy; and back."""
FLOATS, INTS = 4, 4
FORWARD_AND_BACKWARD = 3
"""A backward pass takes twice the products of the forward pass."""


@dataclass(frozen=True)
class Stages:
    """Seconds of a mean step by stage."""

    training_thread: float
    classify: float
    staging: float
    up: float
    device: float
    down: float

    def step(self, prefetches: bool) -> float:
        """Seconds of a step, whose stages work at the same time where the policy has batches prepared ahead."""
        seconds = asdict(self).values()
        return max(seconds) if prefetches else sum(seconds)


def stages(tally: StepCounts, dim: int, multiplications: float, costs: DeviceCosts) -> Stages:
    """`multiplications`: of a sample's forward pass through the dense part."""
    steps = max(1, tally.steps)
    samples, lookups, rows = (count / steps for count in (tally.samples, tally.lookups, tally.rows))
    cold_bytes = tally.cold_row_bytes / steps
    copies = costs.copy_us * 1e-6
    integers = CLASSIFY_INTS * INTS * lookups + 5 * INTS * rows
    sort_bytes = SORT_PASSES * SORT_TRAFFIC * 2 * INTS * lookups if costs.classifies else 0.0
    # Forward: a row for each lookup. Backward: a gradient for each. Update: rows and state read and written.
    row_bytes = FLOATS * dim * (2 * lookups + 4 * rows)
    products = 2 * FORWARD_AND_BACKWARD * multiplications * samples
    return Stages(
        training_thread=1e-6
        * (
            EAGER_LAUNCHES * costs.launch_us
            + TRITON_LAUNCHES * costs.triton_launch_us
            + UPLOADS * costs.copy_us
            + WAITS * costs.event_us
            + costs.python_us
        ),
        classify=0.0 if costs.classifies else lookups * costs.classify_ns * 1e-9 / costs.classify_threads,
        staging=HOST_CROSSINGS * cold_bytes / (costs.dram_gbs * 1e9),
        up=2 * copies + (cold_bytes + (INTS * lookups if costs.classifies else integers)) / (costs.up_gbs * 1e9),
        device=DENSE_KERNELS * costs.kernel_us * 1e-6
        + products / (costs.tflops * 1e12)
        + (row_bytes + sort_bytes) / (costs.hbm_gbs * 1e9 * costs.hbm_efficiency),
        down=copies + cold_bytes / (costs.down_gbs * 1e9),
    )

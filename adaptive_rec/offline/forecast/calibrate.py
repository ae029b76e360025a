"""Measures the costs of a step's parts on this machine, with the code of a run, on a configuration's own batches."""

from __future__ import annotations

import os
import time
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive_rec.batch import Batch, Position
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.tree import Config
from adaptive_rec.config.watch import WatchConfig
from adaptive_rec.data.open import open_source
from adaptive_rec.data.source import Source
from adaptive_rec.dense.eager import DensePart
from adaptive_rec.errors import ConfigError, DataError
from adaptive_rec.kernels.jit import usable_threads
from adaptive_rec.live.telemetry import Snapshot
from adaptive_rec.offline.disk_speed import measure_disk
from adaptive_rec.offline.forecast.calibrate_rows import Clock, RowCalibration, once, quickest
from adaptive_rec.offline.forecast.hardware import DenseCosts, DiskCosts, Hardware, LinkCosts, RowCosts, StepCosts
from adaptive_rec.offline.forecast.lane import Lane
from adaptive_rec.offline.forecast.passes import Progress
from adaptive_rec.offline.forecast.predict import Workload, multiplications, predict_step_seconds
from adaptive_rec.offline.machine_facts import nearest_existing
from adaptive_rec.placement import RowSpace
from adaptive_rec.policy.batches import repack
from adaptive_rec.policy.find import load_policy
from adaptive_rec.runtime.assemble import assemble
from adaptive_rec.system.processor import processor
from adaptive_rec.system.version import __version__

DIMS = (16, 64, 128)
"""Dims of rows that are measured in addition to the configuration's own."""
BATCHES = 64
"""Number of batches: about a window, so that as many rows occur as in a run."""
ROW_BATCHES = 16
TABLES_LIMIT_BYTES = 1 << 30
"""Largest size of synthetic tables: far more than any cache, and little enough for any machine."""
RANKINGS = 3
COPY_BYTES = 64 << 20
RUN_STEPS = 48
"""Steps of the short run that measures the time beyond a step's parts; the first third is not timed."""
RUNS = "runs"
"""Folder of the run directories, in which rows lie where run.disk names none."""


def calibrated(config: Config, name: str, progress: Progress) -> Hardware:
    """Measure all costs. `name` is that of the configuration. Raises DataError where its data holds too few batches."""
    config = of_fair_size(config)
    source = open_source(config)
    torch.set_num_threads(config.run.thread_budget(stages_ahead=False).dense)
    space = RowSpace.of(source.tables, source.features)
    dims = sorted({*DIMS, *(pool.dim for pool in space.pools)})
    parts = len(dims) + 5
    progress("reading batches", 0, parts)
    step, works = measure_reading(config, source, space)
    progress("the dense part", 1, parts)
    dense = measure_dense(config, source, space, name)
    progress("tracking and decisions", 2, parts)
    step = measure_tracking(config, space, works, step)
    step = step.model_copy(update={"arrange_ns": measure_arranging(works)})
    rows: list[RowCosts] = []
    for number, dim in enumerate(dims):
        progress(f"rows of dim {dim}", 3 + number, parts)
        rows.append(RowCalibration(config, source, dim, [work.batch for work in works[:ROW_BATCHES]]).measure())
    progress("the disk", parts - 2, parts)
    disk = disk_costs(config)
    found = Hardware(
        name=machine(),
        made=f"{time.strftime('%Y-%m-%d')} by adaptive-rec {__version__}",
        cores=len(os.sched_getaffinity(0)),
        memory_gbs=memory_gbs(),
        rows=tuple(rows),
        dense=dense,
        step=step,
        link=measure_link() if config.run.device != "cpu" and torch.cuda.is_available() else LinkCosts(),
        disk=disk,
    )
    progress("a short run", parts - 1, parts)
    return with_other_times(found, config, source, space)


def of_fair_size(config: Config) -> Config:
    """Return the configuration with synthetic tables no larger than necessary; files are used as they are."""
    data = config.data
    while data.source == "synthetic" and _bytes(config, data.max_table_rows) > TABLES_LIMIT_BYTES:
        data = data.model_copy(update={"max_table_rows": data.max_table_rows // 2})
    return config.model_copy(update={"data": data})


def _bytes(config: Config, max_rows: int) -> int:
    return sum(min(rows, max_rows) for rows in config.data.table_rows) * max(DIMS) * 4


# Parts of a step ----------------------------------------------------------------------------------------------------


def measure_reading(config: Config, source: Source, space: RowSpace) -> tuple[StepCosts, list[ClassifiedBatch]]:
    """Measure reading batches and finding their distinct rows."""
    stream = source.train_batches(Position(seed=config.run.seed), config.run.batch_size)
    batches = list(islice(stream, 2))  # the first one includes compiling and opening files
    seconds = []
    while len(batches) < 2 + BATCHES:
        started = Clock.now()
        batch = next(stream, None)
        if batch is None:
            break
        seconds.append((Clock.now() - started) / max(1, batch.lookups))
        batches.append(batch)
    if not seconds:
        raise DataError(
            f"the data must hold at least 3 batches of run.batch_size to be measured with, got {len(batches)}"
        )
    threads = usable_threads(torch.get_num_threads())
    works = [ClassifiedBatch(batch, space, threads) for batch in batches]
    placed = Lane.of(config, space, "hybrid", 0).store.index.placement

    def classify(number: int) -> None:
        ClassifiedBatch(batches[number % len(batches)], space, threads).classify(placed)

    lookups = sum(batch.lookups for batch in batches) / len(batches)
    classify_ns = 1e9 * quickest(classify, len(batches)) / lookups
    # A source reads blocks of several batches, so the time of one is the mean.
    return StepCosts(read_ns=1e9 * sum(seconds) / len(seconds), classify_ns=classify_ns), works


def measure_dense(config: Config, source: Source, space: RowSpace, name: str) -> DenseCosts:
    """Measure forward, backward and update of whole batches and of quarters."""
    runtime = assemble(_short(config), source=source, policy=load_policy("hybrid"))
    try:
        size, few = config.run.batch_size, max(1, config.run.batch_size // 4)
        many_seconds, few_seconds = (
            quickest(partial(_dense_step, runtime.dense, samples), 40) for samples in (size, few)
        )
    finally:
        runtime.store.close()
    each = max(0.0, many_seconds - few_seconds) / max(1, size - few)
    return DenseCosts(
        config=f"{name} (batch {size}, {config.run.precision}, {torch.get_num_threads()} threads)",
        multiplications=multiplications(config, source, space),
        call_ms=1e3 * max(0.0, many_seconds - size * each),
        sample_us=1e6 * each,
    )


def _dense_step(dense: DensePart, samples: int, _: int) -> None:
    dense.begin_step()
    micro = dense.inputs(samples)
    for part in (micro.dense_SX, *micro.pooled, micro.labels_S):
        part.zero_()
    micro.scale_S.fill_(1 / samples)
    dense.run(micro)
    dense.gradients()
    dense.step(1.0)
    if dense.device.type == "cuda":
        torch.cuda.synchronize(dense.device)


def measure_tracking(config: Config, space: RowSpace, works: list[ClassifiedBatch], step: StepCosts) -> StepCosts:
    """Measure counting lookups, and deciding by the counts which rows become hot."""
    config = config.model_copy(update={"knobs": config.knobs.changed({"sample_ratio": 1.0, "hysteresis": 0.0})})
    lane, trying = (Lane.of(config, space, name, config.knobs.hot_budget_bytes) for name in ("hotline", "adaptive"))
    decide_seconds = quickest(lambda _: lane.reclassifier.place_again(0, lane.knobs), 5)
    for work in works:
        work.classify(lane.store.index.placement)
    rows = max(1.0, sum(len(work.distinct_U) for work in works) / len(works))

    def count(lane: Lane, number: int) -> None:
        lane.observer.count_lookups(0, works[number], lane.knobs)

    track, both = (quickest(partial(count, each), len(works)) for each in (lane, trying))
    tick_seconds = quickest(lambda _: trying.observer.end_tick(), 5)
    # The first ranking is left out: without hot rows it ranks candidates only, which is quicker.
    ranking = min([_ranking(lane, works, decide_seconds) for _ in range(1 + RANKINGS)][1:])
    found = {
        "track_ns": 1e9 * track / rows,
        "trial_ns": 1e9 * max(0.0, both - track) / rows,
        "tick_ms": 1e3 * tick_seconds,
        "decide_us": 1e6 * decide_seconds,
        "decide_ns": 1e9 * ranking,
        "list_ns": 1e9 * measure_listing(config, space, works),
    }
    return step.model_copy(update=found)


def _ranking(lane: Lane, works: list[ClassifiedBatch], decide_seconds: float) -> float:
    """Return seconds per row at the end of a window in which these batches were counted."""
    for work in works:
        work.classify(lane.store.index.placement)
        lane.observer.count_lookups(0, work, lane.knobs)
    ranked = 0

    def rank() -> None:
        nonlocal ranked
        ranked = lane.store.hot.tier.hot_rows + len(lane.observer.tracker.candidates())
        lane.reclassifier.place_again(0, lane.knobs)

    return max(0.0, once(rank) - decide_seconds) / max(1, ranked)


def measure_listing(config: Config, space: RowSpace, works: list[ClassifiedBatch]) -> float:
    """Return mean seconds per listed row, when the rows of one batch after the other become hot."""
    lane = Lane.of(config, space, "cdlrm", config.knobs.hot_budget_bytes)
    seconds = [once(partial(lane.place, work.distinct_U, True)) for work in works]
    return sum(seconds[1:]) / max(1, sum(len(work.distinct_U) for work in works[1:]))


def measure_arranging(works: list[ClassifiedBatch]) -> float:
    """Return nanoseconds per lookup of packing every other sample of some batches into new batches."""
    batches = [work.batch for work in works]

    def wanted(batch: Batch) -> NDArray[np.bool_]:
        return np.arange(batch.size) % 2 == 0

    seconds = quickest(lambda _: list(repack(batches, batches[0].size, wanted)), 3)
    return 1e9 * seconds / max(1, sum(batch.lookups for batch in batches))


def with_other_times(found: Hardware, config: Config, source: Source, space: RowSpace) -> Hardware:
    """Add what short runs measure: the time of a step beyond its parts, and that of a request for one table's rows."""
    plain = beyond(found, config, source, space, "hybrid")
    if plain is None:
        return found  # there is too little data for a run
    step = {"other_ms": 1e3 * max(0.0, plain)}
    by_table = beyond(found, config, source, space, "xdl")
    if by_table is not None:
        step["request_us"] = 1e6 * max(0.0, by_table - plain) / max(1, 2 * (len(space.tables) - 1))
    return found.model_copy(update={"step": found.step.model_copy(update=step)})


def beyond(found: Hardware, config: Config, source: Source, space: RowSpace, policy: str) -> float | None:
    """Return the seconds of a step under a policy beyond the predicted ones; None where the data is too short."""
    config = _short(config, policy)
    lane, clock = Lane.of(config, space, policy, 0), []
    for batch in islice(source.train_batches(Position(seed=config.run.seed), config.run.batch_size), RUN_STEPS):
        lane.step(ClassifiedBatch(batch, space))
    for report in assemble(config, source=source).run():
        if isinstance(report, Snapshot):
            clock.append(Clock.now())
    timed = np.diff(clock)[RUN_STEPS // 3 :]
    if not len(timed):
        return None
    load = Workload.of(config, source, space, load_policy(policy), lane.total, found.dense.multiplications)
    return float(np.quantile(timed, 0.1)) - predict_step_seconds(load, found)


def _short(config: Config, policy: str = "hybrid") -> Config:
    """Return the configuration of a run of a few steps, with all rows in memory, that reports each of them."""
    knobs = config.knobs.changed({"policy": policy, "report_every": 1, "eval_every_steps": 0})
    run = config.run.model_copy(update={"steps": RUN_STEPS, "host_memory": 0})
    return config.model_copy(update={"knobs": knobs, "run": run, "watch": WatchConfig()})


# The machine ---------------------------------------------------------------------------------------------------------


def machine() -> str:
    """Return the name of the processor, and of the device where there is one."""
    return f"{processor()} + {torch.cuda.get_device_name()}" if torch.cuda.is_available() else processor()


def memory_gbs() -> float:
    """Return 10^9 bytes per second copied within memory on one thread."""
    source = np.ones(COPY_BYTES, dtype=np.uint8)
    target = np.zeros_like(source)
    return COPY_BYTES / 1e9 / quickest(lambda _: np.copyto(target, source), 7)


def measure_link() -> LinkCosts:
    """Measure large and small copies from pinned memory to the device and back."""
    pinned = torch.empty(COPY_BYTES, dtype=torch.uint8).pin_memory()
    device = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")

    def copy(target: torch.Tensor, source: torch.Tensor, _: int) -> None:
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()

    copy_seconds = quickest(partial(copy, device[:256], pinned[:256]), 51)
    up, down = quickest(partial(copy, device, pinned), 11), quickest(partial(copy, pinned, device), 11)
    return LinkCosts(up_gbs=COPY_BYTES / 1e9 / up, down_gbs=COPY_BYTES / 1e9 / down, copy_us=1e6 * copy_seconds)


def disk_costs(config: Config) -> DiskCosts:
    """Measure reads and writes on the disk where a run's rows would lie; nothing where it has no room. Raises ConfigError where
    it cannot be written."""
    folder = nearest_existing(Path(config.run.disk or RUNS).absolute())
    try:
        speed = measure_disk(folder)
    except OSError as error:
        raise ConfigError(f"run.disk must name a folder that can be written, {folder}: {error.strerror or error}") from None
    if not speed.rows_read:
        return DiskCosts()
    return DiskCosts(
        folder=str(folder),
        read_us=1e6 / speed.rows_per_second,
        read_cpu_us=1e6 * speed.read_cpu_seconds / speed.rows_read,
        write_gbs=speed.write_bytes_per_second / 1e9,
    )

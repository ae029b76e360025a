"""Computes the memory plan of a run before anything large is allocated.

Parts that depend on the data are estimated at their maximum from the first batch.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

from adaptive_rec.batch import BESIDE, Batch, Position
from adaptive_rec.classify import ClassifiedBatch
from adaptive_rec.config.run import processes_here
from adaptive_rec.config.tree import Config
from adaptive_rec.data.packed import CHUNK_BYTES
from adaptive_rec.data.prepare.place import is_prepared
from adaptive_rec.data.source import Source, Wrapped
from adaptive_rec.embedding.snapshot import SHARD_BYTES
from adaptive_rec.memory.dense import MakeOptimizer, living_bytes, optimizer_bytes, parameter_bytes
from adaptive_rec.memory.plan import MemoryPart, MemoryPlan, Place
from adaptive_rec.memory.rows import (
    BUDGET,
    TRIALS,
    TWIN_DENSE,
    array_bytes,
    kept_parts,
    row_parts,
    row_rule,
    row_type,
    space_of,
    twins_of,
)
from adaptive_rec.policy import Policy, SkippingPolicy

BATCH = "run.batch_size"
BATCHES = "run.batch_size or knobs.prefetch_depth"
DENSE = "the widths under model, or optimizer.dense"
DATA = "data.ids=hash, which reads a file as it goes"
SCORES = "eval.max_samples"

SCORED_BYTES = 97
"""Bytes of a held-out sample: its label and logit, and 89 bytes while all are ranked (by tracemalloc, NumPy 2.4)."""

RANKED_BYTES = 190
"""The same where `eval.metrics` rank within groups: 20 bytes with group and weight, and at most 170 more, where each sample is a
group of its own."""

SHARDS, SHARDS_WHILE_TRAINING = 2, 5
"""Shards of a checkpoint in memory at a time: the one being written and the next. Where training continues in the meantime, also
those of rows about to change: one being filled, three waiting, one being sorted."""

WHILE_TRAINING = ("rows kept while a checkpoint is written", "the dense part's copy for a checkpoint")
CLASSIFY = "run.classify=host"

TRAVELLING_BYTES, LISTS_BYTES, CLASSIFYING_BYTES = 10, 50, 160
"""Bytes of a lookup where the device classifies: its id in pinned memory and the lists of a batch on the device, both with a
quarter more, and the arrays of `kernels.batch_lists.find_lists` while it runs (20 of 8 bytes)."""

SPARE_BYTES = 1024
"""Most bytes between the arrays of a slot, which begin at multiples of `packing.ALIGNMENT`."""

READ_COPIES = 4
"""What is held of a block of a CSV or Parquet file at once: text, parsed values, their keys, and samples."""
SAVING = "checkpoint.every_seconds=0, which saves at the end only"


def plan_memory(
    config: Config,
    source: Source,
    policy: Policy,
    model: nn.Module,
    make_optimizer: MakeOptimizer,
    device: torch.device,
    available_bytes: dict[Place, int],
    first_batch: bool = False,
) -> MemoryPlan:
    """Return the plan of a run on the device, where `available_bytes` has one, else on the CPU with hot rows in host memory.

    `model` is only measured. With `first_batch`, one batch is read and a step of the dense part is followed, to measure what
    depends on the batch; without it, only the least that a step takes is counted.
    """
    fast: Place = "device" if "device" in available_bytes else "host"
    batches = source.train_batches(Position(seed=config.run.seed), config.run.batch_size) if first_batch else iter(())
    batch = next(batches, None)
    lookups = batch.lookups if batch else 0
    twins = twins_of(config, policy) if processes_here() == 1 else 0
    rows = row_parts(config, source, policy, fast, lookups, twins)
    parameters, state = parameter_bytes(config, model), optimizer_bytes(config, model, make_optimizer, row_type(config))
    parts = [
        *rows.parts,
        MemoryPart("dense optimizer", fast, state, DENSE),
        MemoryPart("dense parameters", fast, parameters, DENSE),
        MemoryPart("dense gradients", fast, parameters, DENSE),
        *_twin_parts(config, source, policy, fast, twins, 2 * parameters + state),
        *_data_parts(config, source, batch),
        *kept_parts(config, source),
    ]
    if batch is None:
        parts.append(
            MemoryPart("a step's inputs and their gradients", fast, _least_step_bytes(config, source, policy), BATCH)
        )
    else:
        parts += _work_parts(config, source, policy, model, fast)
        copied = (1 + twins) * (parameters + state)
        parts.append(
            MemoryPart(WHILE_TRAINING[1], "host", copied if _saves_while_training(config) else 0, SAVING)
        )
        parts.append(_process_part(parts, model))
    if config.run.host_memory and fast == "host" and batch is not None:
        parts.append(MemoryPart("cold rows on their way", "host", _staging_bytes(config, source, policy, batch), BATCHES))
    if fast == "device" and batch is not None:
        parts += _device_parts(config, source, policy, batch)
    if fast == "device":
        from adaptive_rec.embedding.staged.device_hot import HEADROOM_BYTES

        used = sum(part.bytes for part in parts if part.place == fast and part.keys in (BATCHES, BATCH))
        parts.append(MemoryPart("kept free for graphs and libraries", fast, max(0, HEADROOM_BYTES - used), BUDGET))
    return MemoryPlan(str(device), config.knobs.policy, rows.tables, rows.hot, parts, available_bytes, lookups)


def _twin_parts(config: Config, source: Source, policy: Policy, fast: Place, twins: int, dense: int) -> Iterator[MemoryPart]:
    """Yield what a trial's twins hold besides rows: `dense` bytes each of parameters, gradients and optimizer state, and the
    inputs of a step with their gradients. They run after the run's own step and one after the other."""
    if twins:
        yield MemoryPart(TWIN_DENSE, fast, twins * (dense + _least_step_bytes(config, source, policy)), TRIALS)


def own_bytes() -> int:
    """Return the memory that this process holds now."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:  # only Linux reports it; elsewhere the peak must do
        return peak_bytes()
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_bytes() -> int:
    """Return the most memory that this process has held, the program that started it left out."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _process_part(parts: list[MemoryPart], model: nn.Module) -> MemoryPart:
    """Return the memory of interpreter, libraries and kernels: what the process holds, less the model and parts listed apart."""
    apart = sum(part.bytes for part in parts if part.held) + sum(one.nbytes for one in model.parameters())
    return MemoryPart("the process itself", "host", max(0, own_bytes() - apart), "", held=True)


def _work_parts(config: Config, source: Source, policy: Policy, model: nn.Module, fast: Place) -> Iterator[MemoryPart]:
    """Yield the parts that come and go in training, evaluation and saving; the process keeps freed memory for the next time."""
    space, rule, itemsize = space_of(source, policy), row_rule(config), row_type(config).itemsize
    step, evaluation = living_bytes(config, space, source.dense_features, model)
    yield MemoryPart("a step of the dense part", fast, step, BATCH, moment="step")
    yield MemoryPart("an evaluation's batch", fast, evaluation, "eval.batch_size", moment="evaluation")
    scored = (RANKED_BYTES if config.eval.metrics else SCORED_BYTES) * _held_out(config, source)
    yield MemoryPart("scores of the held-out samples", "host", scored, SCORES, moment="evaluation")
    largest = max(rule.bytes_per_row(pool.dim, itemsize) + np.dtype(np.int64).itemsize for pool in space.pools)
    shard = min(SHARD_BYTES, space.rows * largest)
    yield MemoryPart("a checkpoint's shards", "host", SHARDS * shard, "")
    kept = min(SHARDS_WHILE_TRAINING * shard, space.rows * largest) if _saves_while_training(config) else 0  # each row once
    yield MemoryPart(WHILE_TRAINING[0], "host", kept, SAVING)


def _saves_while_training(config: Config) -> bool:
    return any(config.checkpoint.intervals(config.knobs))


def _least_step_bytes(config: Config, source: Source, policy: Policy) -> int:
    """Return the bytes of a step's inputs and their gradients, without what the layers in between keep."""
    pooled = sum(len(pool.features) * pool.dim for pool in space_of(source, policy).pools)
    return config.run.batch_size * (source.dense_features + 2 + 2 * pooled) * row_type(config).itemsize


def _held_out(config: Config, source: Source) -> int:
    """Estimate how many samples an evaluation scores."""
    if config.eval.mode == "next_window":
        return min(source.test_samples, config.eval.max_samples or source.test_samples)
    low, high = config.data.train_range
    share = (config.data.test_range[1] - config.data.test_range[0]) / max(high - low, 1e-9)
    rows = source.train_samples / (1 + config.data.implicit.negatives)
    samples = config.data.synthetic.test_samples if config.data.source == "synthetic" else share * rows
    if config.eval.validates:
        samples = max(samples, rows * config.eval.validation_ratio / (1 - config.eval.validation_ratio))
    return min(round(samples), config.eval.max_samples or round(samples))


def _data_parts(config: Config, source: Source, batch: Batch | None) -> Iterator[MemoryPart]:
    origin = source
    while isinstance(origin, Wrapped):
        origin = origin.origin
    if config.data.source != "synthetic" and (held := array_bytes(origin)):
        yield MemoryPart("data", "host", held, DATA, held=True)
    if config.data.implicit.negatives:
        from adaptive_rec.data.implicit.negatives import negatives_of

        drawn = negatives_of(source)
        yield MemoryPart("items, and those of each user", "host", 0 if drawn is None else drawn.bytes, "", held=True)
    if config.data.ids == "raw":
        yield from _raw_parts(source, origin, batch)
    if batch is None:
        return
    if config.data.shuffle and not config.data.schema_file and (is_prepared(config.data.source) or _is_own_file(origin)):
        yield _shuffled_part(source, batch)
    ahead = (config.knobs.prefetch_depth + 1) * (
        array_bytes(batch) + 5 * batch.lookups * np.dtype(np.int64).itemsize  # the most that classifying adds
    )
    yield MemoryPart("batches ahead", "host", ahead, BATCHES)


def _is_own_file(origin: Source) -> bool:
    """Whether a source reads files of the user's own as they are; without a schema in the configuration they will be prepared."""
    from adaptive_rec.data.tabular.stream import TabularSource

    return isinstance(origin, TabularSource)


def _raw_parts(source: Source, origin: Source, batch: Batch | None) -> Iterator[MemoryPart]:
    """Yield the parts of raw ids, and of a user's own files that are read as they are."""
    from adaptive_rec.data.raw.raw_ids import raw_ids_of
    from adaptive_rec.data.tabular.arrow_files import BLOCK_ROWS
    from adaptive_rec.data.tabular.follow import FollowedSource
    from adaptive_rec.data.tabular.stream import TabularSource

    if (raw_ids := raw_ids_of(source)) is not None:
        yield MemoryPart("raw ids and their rows", "host", raw_ids.most_bytes, "data.max_table_rows")
    if batch is not None and isinstance(origin, TabularSource | FollowedSource):
        most = BLOCK_ROWS if isinstance(origin, FollowedSource) else min(BLOCK_ROWS, source.train_samples)
        samples = array_bytes(batch) // max(1, batch.size)
        blocks = READ_COPIES * samples * most + READ_COPIES * CHUNK_BYTES
        yield MemoryPart("data being read", "host", blocks, "")


def _shuffled_part(source: Source, batch: Batch) -> MemoryPart:
    """Return the part of a prepared folder whose rows are shuffled."""
    from adaptive_rec.data.prepared import BLOCK_ROWS, GROUP_BLOCKS

    rows = min(GROUP_BLOCKS * BLOCK_ROWS, source.train_samples)
    beside = sum(getattr(batch, name).nbytes for name in BESIDE if getattr(batch, name) is not None)
    copies = 1 if batch.lookups == batch.size * len(source.features) else 3  # bags are read, joined and mixed
    ids = copies * batch.ids_N.nbytes // 2  # 32 bits each in the folder
    samples = batch.dense_BX.nbytes + batch.labels_B.nbytes + beside + ids
    return MemoryPart("data being shuffled", "host", rows * samples // max(1, batch.size), "data.shuffle=false")


def _device_parts(config: Config, source: Source, policy: Policy, batch: Batch) -> Iterator[MemoryPart]:
    """Yield what staging takes on both sides, and what the device needs to classify batches, where it does."""
    from adaptive_rec.embedding.staged.write_back import RETURNING_LIMIT

    staging, features = _staging_bytes(config, source, policy, batch), len(source.features)
    skips, lists = isinstance(policy, SkippingPolicy), {"host": 0, "device": 0}
    config.run.cold_rows_of(processes_here())  # what training refuses is refused here, too
    if config.run.classifies_on_device(config.run.batch_size * features, skips, processes_here()):
        slots = config.knobs.prefetch_depth + RETURNING_LIMIT + 1
        lists = {"host": slots * TRAVELLING_BYTES * batch.lookups, "device": slots * LISTS_BYTES * batch.lookups}
        yield MemoryPart("slots of all rows", "device", 4 * space_of(source, policy).rows, CLASSIFY, of_rows=True)
        yield MemoryPart("a batch being classified", "device", CLASSIFYING_BYTES * batch.lookups, BATCH)
    yield MemoryPart("staging", "device", staging + lists["device"], BATCHES)
    # torch takes pinned memory in powers of two, and slots differ in size: up to twice what they hold.
    yield MemoryPart("staging", "host", 2 * (staging + lists["host"]), BATCHES)
    changing = _changing_bytes(config, source, policy)
    yield MemoryPart("rows that change tier", "device", changing, "")
    yield MemoryPart("rows that change tier", "host", 2 * changing, "")


def _changing_bytes(config: Config, source: Source, policy: Policy) -> int:
    """Return the bytes of the slots through which rows change their tier, each as large as the widest pool's chunks, with the
    number of each row's slot."""
    from adaptive_rec.embedding.staged.moves import SLOTS, chunk_rows

    rule, itemsize = row_rule(config), row_type(config).itemsize
    of_pools = list[int]()
    for spec in space_of(source, policy).pools:
        row_bytes = rule.bytes_per_row(spec.dim, itemsize)
        of_pools.append(chunk_rows(spec.rows, row_bytes) * (row_bytes + 4))
    return SLOTS * slot_bytes(max(of_pools, default=0) + SPARE_BYTES)


def slot_bytes(requested: int) -> int:
    """Return the bytes of a slot of staging memory, which has a quarter more than requested."""
    return requested + requested // 4


def _with_own_rows(config: Config, source: Source) -> Source:
    """Return the source whose tables have the rows that batches name; a rank's own tables have fewer."""
    if config.data.ids == "raw":
        from adaptive_rec.data.raw.raw_ids import RawIds

        if isinstance(source, RawIds):
            return source
    return getattr(source, "_source", source)


def _staging_bytes(config: Config, source: Source, policy: Policy, batch: Batch) -> int:
    """Return the bytes of the staging slots: of batches ahead, of the training one, of those whose rows return; all rows cold.
    All ranks together request about as many rows of one of them as its own part of a batch reads."""
    from adaptive_rec.embedding.staged.write_back import RETURNING_LIMIT

    space = space_of(_with_own_rows(config, source), policy)
    rule, itemsize = row_rule(config), row_type(config).itemsize
    work = ClassifiedBatch(batch, space)
    rows_bytes = 0
    for pool, spec in enumerate(space.pools if config.run.cold_rows != "in_place" else ()):
        span = work.pool_range(pool)
        rows_bytes += (span.stop - span.start) * rule.bytes_per_row(spec.dim, itemsize)
    direct = config.run.cold_rows in ("auto", "direct")
    numbers = 2 * rule.rounds + 2 * direct  # of 8 bytes, for rows of 16 bits and for direct reads
    integers = len(batch.offsets) + 2 * batch.lookups + (5 + numbers) * len(work.distinct_U)
    one = 4 * integers + (batch.dense_BX.size + batch.size) * itemsize + rows_bytes
    return (config.knobs.prefetch_depth + RETURNING_LIMIT + 1) * slot_bytes(one)

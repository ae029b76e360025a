"""Assembly of a runtime from a configuration."""

from __future__ import annotations

import copy
import gc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from adaptive_rec.config.run import processes_here, rank_here
from adaptive_rec.config.tree import Config, hot_part
from adaptive_rec.data.open import open_source
from adaptive_rec.data.source import Source
from adaptive_rec.dense.eager import DensePart
from adaptive_rec.dense.linear import linear_layers, loses_by_compiling
from adaptive_rec.dense.models.build import build_model
from adaptive_rec.embedding.build import build
from adaptive_rec.embedding.device import all_rows_bytes, row_bytes
from adaptive_rec.embedding.optimizer import RowRule, rules_of_pools
from adaptive_rec.embedding.store import EmbeddingStore
from adaptive_rec.embedding.store_settings import AmongRanks, OnDevice, OnDisk
from adaptive_rec.errors import ConfigError, MemoryPlanError, first_line
from adaptive_rec.memory.dense import least_parameters
from adaptive_rec.memory.disk import check_room, checkpoint_bytes, free_room
from adaptive_rec.memory.parts import plan_memory
from adaptive_rec.memory.plan import MemoryPlan, Place
from adaptive_rec.memory.rows import row_type
from adaptive_rec.placement import RowSpace
from adaptive_rec.policy import Policy, SkippingPolicy
from adaptive_rec.policy.find import load_policy
from adaptive_rec.runtime.capabilities import check_features, features_of_run
from adaptive_rec.runtime.dense_optimizer import build_dense_optimizer
from adaptive_rec.runtime.events import knob_text
from adaptive_rec.runtime.loop import Runtime
from adaptive_rec.runtime.parts import PartOfBatches, RowsOfRank
from adaptive_rec.runtime.run_options import RunOptions
from adaptive_rec.runtime.start_checks import check_admission, check_rows, check_settings
from adaptive_rec.system.cuda_driver import NO_CUDA
from adaptive_rec.system.group import ALONE, Group
from adaptive_rec.system.host_memory import available_bytes, keep_freed_memory
from adaptive_rec.system.limits import check_threads

if TYPE_CHECKING:
    from adaptive_rec.embedding.disk.kept_rows import KeptRows
    from adaptive_rec.embedding.staged.streams import Streams

DenseParts = tuple[torch.nn.Module, torch.optim.Optimizer, str, torch.dtype, torch.device, RowSpace, int]
"""What every dense part is made of."""

NO_ROOM = "each rank's device must hold its rows; lower knobs.hot_budget_bytes"


def assemble(
    config: Config,
    source: Source | None = None,
    streams: Streams | None = None,
    policy: Policy | None = None,
    options: RunOptions | None = None,
    group: Group | None = None,
) -> Runtime:
    """Build a run's parts and join them. Source, device and policy may be given instead of made from the configuration.
    `group`: the processes that train together, where this is one of several.

    Raises ConfigError where the configuration does not fit the device, MemoryPlanError where memory is too small, CheckpointError
    where the disk is.
    """
    check_threads(config.run.thread_budget(streams is not None).dense)
    torch.set_num_threads(config.run.thread_budget(streams is not None).dense)
    keep_freed_memory()
    policy = policy or load_policy(config.knobs.policy)
    options, group = options or RunOptions(), group or ALONE
    if source is None:
        source = open_source(config, trains=True, left_out=options.left_out, group=group)
    on_device = streams is not None or choose_device(config).type == "cuda"
    several, home_T = not group.is_alone, tuple[int, ...]()
    check_settings(config, policy, on_device, several, options.trains)
    if several:
        from adaptive_rec.runtime.rank_checks import check_data

        check_gpus(config, processes_here())
        first = check_data(group, source, config)
        if config.whole_tables and options.saved is not None and options.saved.ranks == group.ranks:
            home_T = options.saved.home_T
        elif config.whole_tables and first is not None:
            from adaptive_rec.embedding.peers.whole_tables import choose_homes

            rounded, space = config.run.transport == "bf16", RowSpace.of(source.tables, source.features)
            home_T = choose_homes(space, first, group.ranks, 2 if rounded else row_type(config).itemsize)
        source = PartOfBatches(source, group)
    if streams is None and (device := choose_device(config)).type == "cuda":
        if several:
            torch.cuda.set_device(rank_here())
        from adaptive_rec.dense.tf32 import use_tf32
        from adaptive_rec.embedding.staged.cuda_streams import CudaStreams

        streams = CudaStreams(device, config.run.cuda_graphs)
        use_tf32(config.run.precision == "tf32")
    while True:
        try:
            return _join(config, source, streams, policy, options, group, home_T)
        except torch.OutOfMemoryError as error:
            if several:
                raise MemoryPlanError(f"{NO_ROOM} (seen by rank {group.rank}): {first_line(error)}") from error
            # The parts built so far are freed with the error; with half the budget all of them may fit.
            config, notice = _with_half_the_budget(config, policy, source, first_line(error))
            options = replace(options, notices=[*options.notices, notice])
        gc.collect()  # parts of a store refer to it
        if streams is not None:
            streams.trim()


def plan_run(
    config: Config, source: Source | None = None, memory: dict[Place, int] | None = None, acts: bool = True
) -> MemoryPlan:
    """Return what a run will hold in memory. It opens the data and allocates nothing large. `acts`: see `check_rows`.

    `memory` is that of the machine it is to run on, a device's among it where it has one; None: what is free on this one.
    Raises ConfigError where training there would.
    """
    policy = load_policy(config.knobs.policy)
    on_device = choose_device(config).type == "cuda" if memory is None else "device" in memory
    check_admission(config)
    check_settings(config, policy, on_device)
    source = open_source(config) if source is None else source
    space = RowSpace.of(source.tables, source.features, policy.request_per_table)
    check_rows(config, policy, space, on_device, acts=acts)
    model = _build_model(config, space, source)
    if memory is not None:
        device = torch.device("cuda" if "device" in memory else "cpu")
        plan = plan_memory(config, source, policy, model, build_dense_optimizer, device, memory, first_batch=True)
        return plan.on_another_machine()
    device = choose_device(config)
    free: dict[Place, int] = {"host": available_bytes()}
    if config.run.host_memory:
        free["disk"] = free_room(Path(config.run.disk) if config.run.disk else None)
    if device.type == "cuda":
        free["device"] = torch.cuda.mem_get_info(device)[0]
    return plan_memory(config, source, policy, model, build_dense_optimizer, device, free, first_batch=True)


def _join(
    config: Config, source: Source, streams: Streams | None, policy: Policy, options: RunOptions, group: Group,
    home_T: tuple[int, ...],
) -> Runtime:  # fmt: skip
    per_table = policy.request_per_table or (options.saved is not None and options.saved.pools == len(source.tables))
    space = RowSpace.of(source.tables, source.features, per_table)
    ranks = group.ranks
    own = source if ranks == 1 else RowsOfRank(source, ranks, group.rank, home_T)
    own_space = RowSpace.of(own.tables, own.features, per_table)
    check_rows(config, policy, own_space, streams is not None, options.checkpoints is not None, options.replayed is None)
    model = _build_model(config, space, source)
    device = torch.device("cpu") if streams is None else streams.device
    free: dict[Place, int] = {"host": _share_of_host(group)}
    if config.run.host_memory:
        from adaptive_rec.runtime.rows_on_disk import place_of_rows

        free["disk"] = free_room(place_of_rows(config, options)) // ranks
    if streams is not None:
        free["device"] = streams.free_bytes()
    planned = _with_own_pools(policy) if per_table else policy
    plan = plan_memory(config, own, planned, model, build_dense_optimizer, device, free)
    plan.check()
    if options.checkpoints is not None and (notice := check_room(options.checkpoints, ranks * checkpoint_bytes(plan))):
        options = replace(options, notices=[*options.notices, notice])
    rows = _folder_of_rows(config, options, group) if config.run.host_memory else None
    bags = config.run.batch_size * len(space.features)
    store = build_store(
        config, space, policy, streams, group=group, rows=rows,
        classifies=streams is not None and config.run.classifies_on_device(bags, isinstance(policy, SkippingPolicy), ranks),
        cold_rows="staged" if streams is None else config.run.cold_rows_of(ranks), home_T=home_T,
    )  # fmt: skip
    model = model.to(store.torch_device, store.dtype)
    optimizer = build_dense_optimizer(config, model)
    parts = (model, optimizer, config.run.precision, store.dtype, store.torch_device, space, source.dense_features)
    if streams is None:
        dense = _dense_part(group, parts)
        dense.run_linear_layers_in(linear_layers(config.run.linear, config.run.compile, config.run.batch_size))
        if config.run.compile:
            dense.compile(config.run.batch_size)
            if notice := loses_by_compiling(config.run.linear, config.run.precision):
                options = replace(options, notices=[*options.notices, notice])
    else:
        dense = _replayed_part(store, parts, streams, config.run.batch_size)
    kept_rows = _kept_rows(config, store, options) if config.data.keep_evicted and options.trains else None
    return Runtime(config, source, policy, store, dense, options, kept_rows)


def _with_own_pools(policy: Policy) -> Policy:
    """Return a policy for the plan of a run whose tables have a pool each, as this policy or a former one asked for."""
    planned = copy.copy(policy)
    vars(planned)["request_per_table"] = True
    return planned


def _folder_of_rows(config: Config, options: RunOptions, group: Group) -> Path:
    from adaptive_rec.runtime.rows_on_disk import rows_folder

    return rows_folder(config, options, group)


def _kept_rows(config: Config, store: EmbeddingStore, options: RunOptions) -> KeptRows:
    from adaptive_rec.runtime.rows_on_disk import make_kept_rows

    return make_kept_rows(config, store, options)


def _dense_part(group: Group, parts: DenseParts) -> DensePart:
    """Make the dense part of a run on a CPU."""
    if group.is_alone:
        return DensePart(*parts)
    from adaptive_rec.dense.shared import SharedDense

    return SharedDense(group, *parts)


def _replayed_part(store: EmbeddingStore, parts: DenseParts, streams: Streams, lines: int) -> DensePart:
    """Make the dense part of a run on a device, for batches of so many lines in all ranks."""
    if store.peers.link is not None:
        from adaptive_rec.dense.shared import SharedReplayed

        return SharedReplayed(store.group, store.peers.link, *parts, streams, -(-lines // store.group.ranks))
    from adaptive_rec.dense.replayed import ReplayedDense

    return ReplayedDense(*parts, streams, lines)


def _share_of_host(group: Group) -> int:
    """Return the bytes of host memory that this process may take. The ranks of a machine look before one of them takes any."""
    available = available_bytes()
    if group.is_alone:
        return available
    group.gather(np.array([available]))
    return available // processes_here()


def _build_model(config: Config, space: RowSpace, source: Source) -> torch.nn.Module:
    """Build the dense part, on the CPU. Raises MemoryPlanError where memory is short."""
    least, available = 4 * least_parameters(config.model, source.dense_features), available_bytes()
    if least > available:
        raise MemoryPlanError(
            f"the dense part must fit in host memory, its parameters take {least:,} bytes or more, {available:,} are available; "
            "lower the widths under model",
            faq="host-memory",
        )
    return build_model(config, space, source.dense_features, source.sequence)


def _with_half_the_budget(config: Config, policy: Policy, source: Source, reason: str) -> tuple[Config, str]:
    """Return the configuration with half the hot budget, for a device with too little memory, and the warning to show.

    Raises MemoryPlanError where the policy would not keep fewer rows on the device with half the budget.
    """
    wanted = config.knobs.hot_budget_bytes
    knobs = config.knobs.changed({"hot_budget_bytes": wanted // 2})
    everything = sum(table.rows * table.dim for table in source.tables) << 6
    if policy.budget_bytes(knobs, everything) >= policy.budget_bytes(config.knobs, everything):
        raise MemoryPlanError(f"the device's memory must hold what policy {knobs.policy} wants there: {reason}")
    text = f"hot_budget_bytes {knob_text('_bytes', wanted)} does not fit on the device"
    notice = f"{text}, it is {knob_text('_bytes', wanted // 2)} instead: {reason}"
    return config.model_copy(update={"knobs": knobs}), notice


def check_group(config: Config, policy: Policy, here: int = 0) -> None:
    """Raise ConfigError where several processes cannot train together under these settings, `here` of them on this machine."""
    check_features(features_of_run(config, policy, choose_device(config).type == "cuda", several=True))
    check_gpus(config, here)


def check_gpus(config: Config, here: int) -> None:
    """Raise ConfigError where a machine cannot give a GPU to each of its `here` processes."""
    if choose_device(config).type != "cuda":
        return
    if here > torch.cuda.device_count():
        raise ConfigError(
            f"run.device=cuda needs a GPU for each process of a machine, got {here} processes and "
            f"{torch.cuda.device_count()} GPUs; start fewer processes or set run.device=cpu"
        )
    if not torch.distributed.is_nccl_available():
        raise ConfigError("run.device must be cpu where several processes train together and torch has no NCCL, got cuda")


def choose_device(config: Config) -> torch.device:
    wanted = config.run.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError(NO_CUDA, faq="no-gpu")
    return torch.device("cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu")


def build_store(
    config: Config, space: RowSpace, policy: Policy, streams: Streams | None, drawn: bool = True,
    rule: RowRule | Sequence[RowRule] | None = None, group: Group = ALONE, rows: Path | None = None,
    classifies: bool = False, cold_rows: str = "staged", dice: int = 0, home_T: tuple[int, ...] = (),
) -> EmbeddingStore:  # fmt: skip
    """Build the two tiers, the device tier as large as the policy's budget. Rows are drawn, or zeros for a caller to set.
    `rule`: update rule of rows, or of those of each pool, by default that of the configuration. `rows`: folder of cold rows,
    where they lie on a disk. `classifies`: the device classifies batches. `cold_rows`: how they get to a device.
    `dice`: as in `build`. `home_T`: tables that one rank owns whole."""
    dtype = torch.float64 if config.run.precision == "float64" else torch.float32
    rule = rule or RowRule.of(config.optimizer, config.run.row_precision)
    sizes = row_bytes(space, rule, dtype.itemsize, policy.records_movement(config.knobs))
    budget = policy.budget_bytes(config.knobs, all_rows_bytes(space, sizes))
    ranks = None if group.is_alone else AmongRanks(group, config.run.transport == "bf16", home_T)
    device, memory_bytes = None, 0
    if streams is not None:
        rule, memory_bytes = rules_of_pools(rule, 1)[0], hot_part(config.run.host_memory)
        device = OnDevice(streams, config.run.thread_budget(stages_ahead=True).copy, classifies, cold_rows)
    elif rows is not None and ranks is None:  # what a rank's own rows take was checked before
        from adaptive_rec.runtime.rows_on_disk import check_hot_rows

        check_hot_rows(config.run.host_memory, policy, budget)
    return build(
        space, rule, config.run.seed, dtype, budget, policy.records_movement(config.knobs), drawn,
        disk=None if rows is None else OnDisk(rows, memory_bytes), device=device, ranks=ranks,
        dice=dice,
    )  # fmt: skip

"""``plan``: the memory that a run would need, whether it fits, and a hot budget that pays."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_rec.cli.forecast import add_forecast_options, processes_of, shown_forecast, shown_homes
from adaptive_rec.cli.output import columns, pairs, print_json, show, text, waiting
from adaptive_rec.cli.own_data import with_prepared_data
from adaptive_rec.cli.parser import (
    CONFIG_HELP,
    DATA_HELP,
    add_command,
    add_schema_options,
    add_settings,
    configuration,
    text_settings,
    whole_number,
)
from adaptive_rec.errors import ConfigError, UsageError
from adaptive_rec.run.new_directory import RUNS
from adaptive_rec.units import comparable_size, count, counted, exact_size, fine, parse_size, size, whole

if TYPE_CHECKING:
    from adaptive_rec.config.tree import Config
    from adaptive_rec.data.source import Source
    from adaptive_rec.memory.plan import MemoryPlan, Place
    from adaptive_rec.offline.forecast.ranks import Processes
    from adaptive_rec.offline.forecast.survey import Survey

EXAMPLES = """\
examples:
  adaptive-rec plan criteo_kaggle                        for this machine
  adaptive-rec plan criteo_terabyte --gpu-memory 16GiB --host-memory 64GiB
  adaptive-rec plan my.toml --data train.txt --profile profile/profile.json
  adaptive-rec plan criteo_kaggle --processes 64 --nodes 8 --network 25Gbit/s
"""
SHOWN_TABLES = 40
"""Tables that are printed, the largest ones; ``--json`` has them all."""
MOMENTS = {"": "always", "step": "a step runs", "window": "a window ends", "evaluation": "an evaluation runs"}
FOLLOWED_NOTE = "a batch of the rows that are there now stands for those to come"
ONE_LOOK_SECONDS = 1e-3
"""How long a plan waits for data that comes."""
DRY_RUN_NOTE = "figures that do not follow from the rows are estimates; adaptive-rec plan measures them and suggests a hot budget"


def add_commands(subparsers: Any) -> None:
    purpose = "compute the memory that a run needs, whether it fits, and a hot budget that pays"
    parser = add_command(subparsers, "plan", plan, purpose, epilog=EXAMPLES)
    add = parser.add_argument
    add("config", nargs="?", metavar="CONFIG", help=CONFIG_HELP)
    add("--gpu-memory", metavar="SIZE", help="memory of the GPU (16GiB); 0: no GPU (default: this machine's)")
    add("--host-memory", metavar="SIZE", help="host memory (64GiB; default: the free memory of this machine)")
    add("--policy", metavar="NAME", help="as for train")
    add("--data", metavar="PATH", help=DATA_HELP)
    add_schema_options(parser)
    add_settings(parser)
    add("--profile", metavar="FILE", type=Path, help="profile.json of `profile --out`, instead of counting lookups")
    add("--samples", metavar="N", help="count the lookups of the first N samples; 0: none (default: all)")
    add_forecast_options(parser)
    add("--hardware", metavar="FILE", type=Path, help="file of calibrate, to predict a step of --processes or of run.host_memory")
    add("--no-rehearsal", action="store_true", help="estimate the memory of a step instead of running a few steps")
    add("--json", action="store_true", help="print all figures as JSON")


def plan(args: argparse.Namespace) -> int:
    """Print the plan. Returns 1 where the run does not fit."""
    samples = None if args.samples is None else whole_number("--samples", args.samples, 0)
    gpu, host = memory_bytes("--gpu-memory", args.gpu_memory), memory_bytes("--host-memory", args.host_memory)
    processes = processes_of(args)
    check_alone(args)
    waiting("planning")
    _, config = with_prepared_data(args, resolve_plan, RUNS, sys.stderr if args.json else sys.stdout)
    if processes is not None:
        return plan_ranks(args, config, processes, host)
    if args.hardware is not None and not config.run.host_memory:
        raise UsageError(f"--hardware needs --processes N or run.host_memory, which are not given, got {args.hardware}")
    memory = planned_machine(config, gpu, host)
    from adaptive_rec.cli.progress import progress_shown
    from adaptive_rec.offline.forecast.hardware import read_hardware
    from adaptive_rec.offline.forecast.survey import survey

    hardware = read_hardware(args.hardware) if args.hardware else None
    with progress_shown() as progress:
        found = survey(config, memory, args.profile, samples, not args.no_rehearsal, hardware, progress)
    if args.json:
        print_json(found.as_dict())
    else:
        print_survey(found, config)
    return 1 if found.plan.problems else 0


def check_alone(args: argparse.Namespace) -> None:
    """Raise UsageError where an option is given that fits no plan of several processes, or only such a one."""
    for option in ("gpu_memory", "profile", "samples"):
        if args.processes is not None and (value := getattr(args, option)) not in (None, "0"):
            raise UsageError(f"--processes plans CPUs and suggests no hot budget, so --{option.replace('_', '-')} must not be "
                             f"given with it, got {value}")  # fmt: skip


def plan_ranks(args: argparse.Namespace, config: Config, processes: Processes, host: int | None) -> int:
    """Print the memory of one of the most ranks, and what each number of them would do. Returns 1 where a rank does not fit."""
    from adaptive_rec.cli.progress import progress_shown
    from adaptive_rec.data.open import open_source
    from adaptive_rec.offline.forecast.hardware import read_hardware
    from adaptive_rec.offline.forecast.ranks import predicted, rank_plan
    from adaptive_rec.system.host_memory import available_bytes

    hardware, source = read_hardware(args.hardware) if args.hardware else None, open_source(config)
    with progress_shown() as progress:
        made = predicted(config, source, processes, hardware, progress)
        available = available_bytes() if host is None else host
        found = rank_plan(config, source, processes.layouts()[-1], available, not args.no_rehearsal)
    if args.json:
        print_json({**found.as_dict(), "processes": made})
    else:
        show(*blocks(found, config), *shown_forecast(made), text(""), pairs(fit_verdict(found)))
    return 1 if found.problems else 0


def resolve_plan(args: argparse.Namespace) -> Config:
    named = text_settings({"knobs.policy": args.policy, "data.source": args.data})
    return configuration(args.config, args.data, [*args.set, *named])


def plan_rank(config: Config, source: Source, ranks: int, ranks_here: int, acts: bool) -> MemoryPlan:
    """Return the estimated plan of a rank. `acts`: as for `print_screen`. Raises ConfigError where several processes cannot train
    together."""
    from adaptive_rec.offline.forecast.ranks import rank_plan
    from adaptive_rec.offline.forecast.traffic import Nodes
    from adaptive_rec.placement import RowSpace
    from adaptive_rec.policy.find import load_policy
    from adaptive_rec.runtime.assemble import check_group, choose_device
    from adaptive_rec.runtime.parts import RowsOfRank
    from adaptive_rec.runtime.start_checks import check_rows
    from adaptive_rec.system.host_memory import available_bytes

    policy = load_policy(config.knobs.policy)
    check_group(config, policy)
    own = RowsOfRank(source, ranks)
    space = RowSpace.of(own.tables, own.features, policy.request_per_table)
    check_rows(config, policy, space, choose_device(config).type == "cuda", acts=acts)
    return rank_plan(config, source, Nodes(ranks, ranks_here), available_bytes(), rehearsed=False)


def memory_bytes(option: str, typed: str | None) -> int | None:
    """Return a size in bytes. Raises UsageError for any other text."""
    try:
        return None if typed is None else parse_size(typed)
    except ValueError:
        raise UsageError(f"{option} must be a number of bytes such as 16GiB, got {typed}") from None


def planned_machine(config: Config, gpu: int | None, host: int | None) -> dict[Place, int] | None:
    """Return the memory to plan for, or None for this machine's. Raises ConfigError where the configuration contradicts it."""
    if gpu and config.run.device == "cpu":
        raise ConfigError("run.device must be auto or cuda where --gpu-memory gives a GPU, got cpu")
    if gpu == 0 and config.run.device == "cuda":
        raise ConfigError("run.device must be auto or cpu where --gpu-memory is 0, got cuda")
    if gpu is None and host is None:
        return None
    from adaptive_rec.runtime.assemble import choose_device
    from adaptive_rec.system.host_memory import available_bytes

    if gpu is None and choose_device(config).type == "cuda":
        import torch

        gpu = torch.cuda.mem_get_info()[1]
    places: dict[Place, int] = {"host": available_bytes() if host is None else host}
    return places | {"device": gpu} if gpu else places


# What is printed -----------------------------------------------------------------------------------------------------


def print_survey(found: Survey, config: Config) -> None:
    blank = text("")
    heads = ("hot budget>", "slots>", "hot lookups>", "with all counts known>", "fits", "")
    several = [columns(heads, plan_budgets(found)), blank] if found.budgets else []
    show(*blocks(found.plan, config), *several, pairs([*fit_verdict(found.plan), *plan_conclusion(found)]))


def plan_budgets(found: Survey) -> Iterator[list[str]]:
    for one in found.budgets:
        predicted = one.predicted
        shares = [fine(predicted.learned_ratio), fine(predicted.known_ratio)] if predicted else ["-", "-"]
        slots = " / ".join(count(pool.slots) for pool in one.hot)
        yield [size(one.bytes), slots, *shares, "yes" if one.fits else "no", ", ".join(one.why)]


def plan_conclusion(found: Survey) -> Iterator[tuple[str, str]]:
    yield "predicted", f"from {found.basis}" if found.basis else ""
    if found.homes is not None:
        yield from shown_homes(found.homes)
    for remedy in found.remedies:
        settings = " ".join(f"--set {key}={setting_text(key, value)}" for key, value in remedy.settings)
        needed = [f"{comparable_size(needed)} of {place} memory" for place, needed in remedy.needed_bytes.items()]
        yield "fits with", f"{settings} ({', '.join(needed)})"
    if found.plan.problems and not found.remedies:
        tried = "smaller budgets, rows of 16 bits, less optimizer state, smaller tables"
        yield "fits with", f"nothing that was tried: {tried}"
    from adaptive_rec.offline.advice import advice

    yield from advice(found.suggested_bytes, found.all_rows_bytes, found.everything_fits)


def setting_text(key: str, value: Any) -> str:
    return exact_size(value) if key.endswith("_bytes") else str(value)


def blocks(plan: MemoryPlan, config: Config) -> list[Any]:
    """Return tables, hot rows and parts, with blank lines between and after them."""
    blank = text("")
    heads = ("table", "rows>", "dim>", "weights>", "optimizer>", "placement>", "all>")
    slots = ("hot rows of", "slots>", "weights>", "optimizer>", "movement>", "all>")
    return [
        pairs(plan_head(plan, config)), blank, columns(heads, plan_tables(plan)), blank, columns(slots, hot_rows(plan)), blank,
        columns(("part", "place", "while", "bytes>", "made smaller by"), parts(plan)), blank,
    ]  # fmt: skip


def plan_head(plan: MemoryPlan, config: Config) -> list[tuple[str, str]]:
    rows = count(sum(table.rows for table in plan.tables))
    in_64_bits = config.run.precision == "float64" and config.run.row_precision == "float32"
    precision = "float64" if in_64_bits else config.run.row_precision
    return [
        ("run", f"{plan.policy} on {plan.device}, batches of {whole(config.run.batch_size)}"),
        ("tables", f"{counted(len(plan.tables), 'table')}, {rows} rows in {precision}, {config.optimizer.embedding}"),
    ]


def plan_tables(plan: MemoryPlan) -> Iterator[list[str]]:
    """Yield a line for each table, then one for all of them."""
    largest = sorted(plan.tables, key=lambda table: -table.weights_bytes)[:SHOWN_TABLES]
    for table in plan.tables:
        if table in largest:
            sizes = (table.weights_bytes, table.state_bytes, table.placement_bytes)
            yield [table.name, count(table.rows), str(table.dim), *map(size, (*sizes, sum(sizes)))]
    sums = [sum(getattr(t, f"{name}_bytes") for t in plan.tables) for name in ("weights", "state", "placement")]
    rows = count(sum(table.rows for table in plan.tables))
    yield [f"all {len(plan.tables)}", rows, "", *map(size, (*sums, sum(sums)))]


def hot_rows(plan: MemoryPlan) -> Iterator[list[str]]:
    for pool in plan.hot:
        sizes = (pool.weights_bytes, pool.state_bytes, pool.movement_bytes, pool.bytes)
        yield [f"{count(pool.rows)} rows of dim {pool.dim}", count(pool.slots), *map(size, sizes)]


def parts(plan: MemoryPlan) -> Iterator[list[str]]:
    """Yield the parts that take memory, the largest first."""
    for part in sorted(plan.parts, key=lambda part: -part.bytes):
        if part.bytes:
            name = part.name + (" (in memory now)" if part.held else "")
            yield [name, part.place, MOMENTS[part.moment], size(part.bytes), part.keys]


def movement(plan: MemoryPlan) -> str:
    """Return how many more bytes a hot row takes as its movement is recorded; empty where it is not."""
    from adaptive_rec.offline.advice import movement_note

    row, record = (
        sum(getattr(pool, name) / pool.slots for pool in plan.hot if pool.slots) for name in ("bytes", "movement_bytes")
    )
    return movement_note(plan.policy, row, row - record)


def fit_verdict(plan: MemoryPlan) -> Iterator[tuple[str, str]]:
    for place in plan.available_bytes:
        needed = plan.needed(place)
        yield place, f"{comparable_size(needed)} needed, {comparable_size(needed + plan.free(place))} available"
    for note in (*plan.notes, movement(plan)):
        yield "note", note
    for problem in plan.problems:
        yield "problem", problem
    yield "fits", "no" if plan.problems else "yes"

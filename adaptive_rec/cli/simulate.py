"""``simulate``: the rows that policies would keep hot at each budget, without training."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_rec.cli.forecast import add_forecast_options, answer, is_other_data, processes_of, shown_forecast
from adaptive_rec.cli.output import columns, pairs, text, waiting
from adaptive_rec.cli.own_data import with_prepared_data
from adaptive_rec.cli.parser import (
    CONFIG_HELP,
    DATA_HELP,
    add_command,
    add_schema_options,
    add_settings,
    configuration,
    create_folder,
    number_settings,
    text_settings,
)
from adaptive_rec.errors import UsageError
from adaptive_rec.run.new_directory import RUNS
from adaptive_rec.units import count, counted, fine, size, whole

if TYPE_CHECKING:
    from adaptive_rec.config.tree import Config

EXAMPLES = """\
examples:
  adaptive-rec simulate train.txt --budgets 1MiB,16MiB,10%      a Criteo file, or a folder made by data prepare
  adaptive-rec simulate clicks.csv --label clicked              your own CSV, TSV or Parquet file
  adaptive-rec simulate synthetic --policies hotline,adaptive   a preset or TOML file
  adaptive-rec simulate keys.xz --out simulated                 a raw trace: big-endian 64-bit keys (.bin, .xz) or .npy
  adaptive-rec calibrate --out here.toml && adaptive-rec simulate train.txt --hardware here.toml
"""

TRACE_BATCH_KEYS = 2048
"""Keys of a step where no configuration is given: a batch of clicks has thousands of lookups."""


def add_commands(subparsers: Any) -> None:
    purpose = "find what policies would keep hot at each budget, without training"
    parser = add_command(subparsers, "simulate", simulate, purpose, epilog=EXAMPLES)
    add = parser.add_argument
    add("data", metavar="DATA", help=f"{DATA_HELP}; or a preset, TOML file or trace (.xz, .bin, .npy)")
    add_schema_options(parser)
    add("config", nargs="?", metavar="CONFIG", help=CONFIG_HELP)
    add("--policies", metavar="A,B,C", help="policies to replay (default: all built-in ones)")
    add("--budgets", metavar="A,B,C", help="hot budgets: bytes (16MiB) or shares of all rows (10%%)")
    add("--hardware", metavar="FILE", type=Path, help="file made by calibrate, or h200 (stated figures): predicts a step")
    add_forecast_options(parser)
    add("--steps", metavar="N", help="mini-batches to replay; 0: all")
    add("--seed", metavar="N", help="seed of everything random")
    add_settings(parser)
    add("--json", action="store_true", help="print all figures as JSON")
    add("--out", metavar="DIR", type=Path, help="write simulate.json and simulate.html there")


def simulate(args: argparse.Namespace) -> int:
    """Replay the stream, print and write the results."""
    waiting(f"opening {args.data}")
    from adaptive_rec.policy.find import BUILT_IN, load_policy

    trace, processes = trace_of(args), processes_of(args)
    ready, config = with_prepared_data(args, resolve_simulation, RUNS, sys.stderr if args.json else sys.stdout)
    policies = parse_names("--policies", args.policies)
    budgets = parse_names("--budgets", args.budgets)
    from adaptive_rec.cli.progress import progress_shown
    from adaptive_rec.offline.forecast.hardware import read_hardware
    from adaptive_rec.offline.forecast.simulation import replay_policies as replay
    from adaptive_rec.runtime.assemble import check_group
    from adaptive_rec.runtime.capabilities import check_features, go_together, of_knobs
    from adaptive_rec.runtime.start_checks import check_admission

    check_admission(config)
    is_raw = trace is None and config.data.ids == "raw"
    policies = policies or tuple(
        name for name in BUILT_IN if not is_raw or go_together(of_knobs(config.knobs, load_policy(name), is_raw))
    )
    for policy in map(load_policy, policies):
        if trace is None:
            check_features(of_knobs(config.knobs, policy, is_raw))
    hardware = read_hardware(args.hardware, stated=processes is None) if args.hardware else None
    if processes is not None:
        check_group(config, load_policy(config.knobs.policy))
    if args.out is not None:
        create_folder(args.out)  # an error here comes before the time that replaying takes
    with progress_shown() as progress:
        replayed = replay(config, trace, policies, budgets, hardware, processes, progress)
    answer(args, "simulate", replayed, simulate_summary, simulate_page_of, is_other_data(ready, args))
    return 0


def trace_of(args: argparse.Namespace) -> Path | None:
    """Return DATA where it is a raw trace."""
    from adaptive_rec.offline.forecast.sources import SUFFIXES

    return Path(args.data) if args.data.endswith(SUFFIXES) else None


def resolve_simulation(args: argparse.Namespace) -> Config:
    """Return the configuration of a run on the same data. DATA itself may be a configuration."""
    from adaptive_rec.config.tree import presets

    trace = trace_of(args)
    settings = [f"run.batch_size={TRACE_BATCH_KEYS}"] if trace and not args.config else []
    settings += [*args.set, *number_settings({"run.steps": args.steps, "run.seed": args.seed})]
    if args.data.endswith(".toml") or (args.data in presets() and not os.path.exists(args.data)):
        if args.config:
            raise UsageError(f"give a configuration once, got {args.data} and {args.config}")
        return configuration(args.data, None, settings)
    settings += text_settings({"data.source": None if trace else args.data})
    return configuration(args.config, args.data, settings)


def parse_names(option: str, typed: str | None) -> tuple[str, ...]:
    """Return the parts of a comma-separated list, each once. Raises UsageError for an empty one."""
    if typed is None:
        return ()
    parts = tuple(dict.fromkeys(part.strip() for part in typed.split(",") if part.strip()))
    if not parts:
        raise UsageError(f"{option} takes a comma-separated list, got {typed!r}")
    return parts


def simulate_page_of(replayed: Mapping[str, Any]) -> str:
    from adaptive_rec.offline.forecast.pages import simulate_page

    return simulate_page(replayed)


# What is printed -----------------------------------------------------------------------------------------------------


def simulate_summary(made: Mapping[str, Any]) -> list[Any]:
    """Return facts about the replayed stream, then a table for each budget."""
    parts: list[Any] = [pairs(simulate_head(made))]
    timed, on_disk = made["hardware"] is not None, made["host_memory_bytes"] > 0
    heads = ("policy", "hot>", "at first>", "popular>", "moved>", "up>", "down>")
    for place, budget in enumerate(made["budgets"]):
        share = budget / made["data"]["all_rows_bytes"]
        names = [name for name in ("suggested", "configured") if budget == made[f"{name}_bytes"]]
        title = f"budget {size(budget)} ({', '.join([*names, f'{fine(min(share, 1.0))} of all rows'])})"
        title += f", ceiling {fine(made['ceiling'][place])}"
        shown = heads + (("cold rows>",) if on_disk else ()) + (("step>",) if timed else ())
        stages = staged_rows(made, budget)
        parts += [text(""), text(title), columns(shown, result_rows(made, budget, timed, on_disk))]
        parts += [columns(STAGE_HEADS, stages)] if stages else []
        parts += [text(line) for line in above_the_ceiling(made, budget)]
    forecast = [text(""), *shown_forecast(made["processes"])] if made["processes"] else []
    return [*parts, *forecast, text(""), pairs(simulate_conclusion(made))]


STAGE_HEADS = ("policy", "training thread>", "classify>", "staging>", "up>", "device>", "down>", "step, ms>", "bound by")


def staged_rows(made: Mapping[str, Any], budget: int) -> list[list[str]]:
    """Return each policy's milliseconds by stage, where the profile has stated figures of a device."""
    found = []
    for one in made["results"]:
        if one["budget_bytes"] == budget and (stages := one["predicted_stage_seconds"]):
            step, longest = one["predicted_step_seconds"], max(stages, key=stages.get)
            each = [f"{1e3 * seconds:.2f}" for seconds in (*stages.values(), step)]
            found.append([one["policy"], *each, "all, in turn" if step > stages[longest] else longest.replace("_", " ")])
    return found


def above_the_ceiling(made: Mapping[str, Any], budget: int) -> Iterator[str]:
    """Yield for each policy that catches more than the ceiling why it may."""
    for one in made["results"]:
        if one["budget_bytes"] == budget and one["above_ceiling"] and one["follows_budget"]:
            yield f"{one['policy']} is above the ceiling: {one['above_ceiling']}"


def simulate_conclusion(made: Mapping[str, Any]) -> list[tuple[str, str]]:
    from adaptive_rec.offline.advice import advice, movement_note

    data = made["data"]
    recording = dict.fromkeys(one["policy"] for one in made["results"] if one["monitored"])
    note = movement_note(", ".join(recording), sum(data["monitored_row_bytes"]), sum(data["row_bytes"]))
    return [
        *advice(made["suggested_bytes"] or None, data["all_rows_bytes"], made["everything_fits"]),
        ("note", note if recording else ""),
    ]


def simulate_head(made: Mapping[str, Any]) -> list[tuple[str, str]]:
    data, hardware = made["data"], made["hardware"]
    tables = counted(data["tables"], "table")
    return [
        ("data", str(data["source"])),
        ("replayed", f"{whole(data['samples'])} samples, {whole(data['lookups'])} lookups, "
                     f"{counted(data['steps'], 'step')} of {whole(data['batch_size'])}"),
        ("rows", f"{whole(data['rows'])} in {tables}, {size(data['all_rows_bytes'])} with optimizer state"),
        ("window", f"{counted(made['window_steps'], 'step')}; the ceiling knows each window's lookups in advance"),
        ("columns", "hot lookups, those of the first window, popular samples, rows moved, bytes a step to the device and back"
                    f"{', cold rows that a step reads from the disk at the most' * (made['host_memory_bytes'] > 0)}"),
        ("step", f"predicted for {hardware['name']}" if hardware else ""),
        ("note", hardware["note"] if hardware else ""),
        ("took", f"{made['seconds']:.1f} s"),
    ]  # fmt: skip


def result_rows(made: Mapping[str, Any], budget: int, timed: bool, on_disk: bool) -> Iterator[list[str]]:
    steps = max(1, made["data"]["steps"])
    for one in made["results"]:
        if one["budget_bytes"] == budget:
            shares = [one["hot_lookup_ratio"], one["first_window_hot_lookup_ratio"], one["popular_sample_ratio"]]
            link = [size(one[key] / steps) for key in ("host_to_device_bytes", "device_to_host_bytes")]
            cold = [count(round(one["cold_rows_per_step"]))] if on_disk else []
            step = [f"{1e3 * one['predicted_step_seconds']:.2f} ms"] if timed else []
            yield [one["policy"], *map(fine, shares), count(one["migrated_rows"]), *link, *cold, *step]

"""``plan``: what a run would hold in memory on a machine, whether it fits, which hot budget is worth having there."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_rec.cli.dry_run import blocks, verdict
from adaptive_rec.cli.output import columns, pairs, print_json, show, text
from adaptive_rec.cli.parser import Parser
from adaptive_rec.cli.profile import number, progress_shown
from adaptive_rec.errors import ConfigError, UsageError
from adaptive_rec.units import comparable_size, count, exact_size, fine, parse_size, size

if TYPE_CHECKING:
    from adaptive_rec.config.tree import Config
    from adaptive_rec.memory.plan import Place
    from adaptive_rec.offline.planning.survey import Survey

EXAMPLES = """\
examples:
  adaptive-rec plan criteo_kaggle                        for this machine
  adaptive-rec plan criteo_terabyte --gpu-memory 16GiB --host-memory 64GiB
  adaptive-rec plan my.toml --data train.txt --profile profile/profile.json
"""
SAMPLES = "200000"


def add_commands(subparsers: Any) -> dict[str, Parser]:
    told = "what a run would hold in memory, whether it fits, which hot budget is worth having"
    parser: Parser = subparsers.add_parser("plan", help=told, epilog=EXAMPLES)
    parser.set_defaults(command=plan)
    add = parser.add_argument
    add("config", nargs="?", metavar="CONFIG", help="preset or TOML file (default: what train would take)")
    add("--gpu-memory", metavar="SIZE", help="of the GPU to plan for (16GiB); 0: without one (default: this machine's)")
    add("--host-memory", metavar="SIZE", help="of the machine to plan for (64GiB; default: what is free on this one)")
    add("--policy", metavar="NAME", help="as for train")
    add("--data", metavar="PATH", help="as for train")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="any other key of the configuration")
    add("--profile", metavar="FILE", type=Path, help="profile.json that `profile --out` wrote: nothing is counted then")
    counted = f"count lookups of the first N samples; 0: none (default: {SAMPLES})"
    add("--samples", metavar="N", default=SAMPLES, help=counted)
    add("--no-rehearsal", action="store_true", help="estimate what steps take instead of making a few")
    add("--json", action="store_true", help="print all figures as JSON")
    return {"plan": parser}


def plan(args: argparse.Namespace) -> int:
    """Print it. Returns 1 where the run does not fit."""
    samples = number("--samples", args.samples, 0)
    gpu, host = (memory_bytes(name, getattr(args, name)) for name in ("gpu_memory", "host_memory"))
    config = resolve(args)
    memory = machine(config, gpu, host)
    from adaptive_rec.offline.planning.survey import survey

    with progress_shown() as progress:
        found = survey(config, memory, args.profile, samples, not args.no_rehearsal, progress)
    if args.json:
        print_json(found.as_dict())
    else:
        print_survey(found, config)
    return 1 if found.plan.problems else 0


def resolve(args: argparse.Namespace) -> Config:
    """The configuration that `train` would have."""
    from adaptive_rec.cli.train import preset_for
    from adaptive_rec.config.tree import load_config

    named = {"knobs.policy": args.policy, "data.source": args.data}
    settings = [f"{key}={json.dumps(text, ensure_ascii=False)}" for key, text in named.items() if text is not None]
    return load_config(args.config or preset_for(args.data), os.environ, [*args.set, *settings])


def memory_bytes(name: str, typed: str | None) -> int | None:
    """A size as people write it. Raises UsageError for what is none."""
    if typed is None:
        return None
    try:
        return parse_size(typed)
    except ValueError:
        option = f"--{name.replace('_', '-')}"
        raise UsageError(f"{option} must be a number of bytes such as 16GiB, got {typed}") from None


def machine(config: Config, gpu: int | None, host: int | None) -> dict[Place, int] | None:
    """The memory to plan for; None: this machine's. Raises ConfigError where the configuration rules it out."""
    if gpu and config.run.device == "cpu":
        raise ConfigError("run.device must be auto or cuda where --gpu-memory gives a GPU, got cpu")
    if gpu == 0 and config.run.device == "cuda":
        raise ConfigError("run.device must be auto or cpu where --gpu-memory is 0, got cuda")
    if gpu and config.run.row_precision != "float32":
        raise ConfigError(f"run.row_precision must be float32 on a device, got {config.run.row_precision}")
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
    several = [columns(heads, budgets(found)), blank] if found.budgets else []
    show(*blocks(found.plan, config), *several, pairs([*verdict(found.plan), *advice(found)]))


def budgets(found: Survey) -> Iterator[list[str]]:
    for one in found.budgets:
        told = one.predicted
        shares = [fine(told.learned_ratio), fine(told.known_ratio)] if told else ["-", "-"]
        slots = " / ".join(count(pool.slots) for pool in one.hot)
        yield [size(one.bytes), slots, *shares, "yes" if one.fits else "no", ", ".join(one.why)]


def advice(found: Survey) -> Iterator[tuple[str, str]]:
    yield "predicted", f"from {found.basis}" if found.basis else ""
    for remedy in found.remedies:
        settings = " ".join(f"--set {key}={shown(key, value)}" for key, value in remedy.settings)
        needed = ", ".join(
            f"{comparable_size(needed)} of {place} memory" for place, needed in remedy.needed_bytes.items()
        )
        yield "fits with", f"{settings} ({needed})"
    if found.plan.problems and not found.remedies:
        yield (
            "fits with",
            "nothing that was tried: smaller budgets, rows of 16 bits, less optimizer state, smaller tables",
        )
    if found.suggested_bytes is not None:
        yield "suggested", f"--set knobs.hot_budget_bytes={exact_size(found.suggested_bytes)}"


def shown(key: str, value: Any) -> str:
    return exact_size(value) if key.endswith("_bytes") else str(value)

"""The configuration that the command line of ``train`` asks for, checked before the seconds that torch takes to load."""

from __future__ import annotations

import argparse
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from adaptive_rec.cli import processes
from adaptive_rec.cli.launcher import Wanted
from adaptive_rec.cli.output import say, waiting
from adaptive_rec.cli.parser import (
    configuration,
    describes_files,
    metric_names,
    number_settings,
    order_settings,
    text_settings,
)
from adaptive_rec.errors import ConfigError, UsageError, did_you_mean
from adaptive_rec.run.external_paths import check_named_file, check_rows_are_inside
from adaptive_rec.run.new_directory import RUNS, check_run_is_new, check_written, named_directory

if TYPE_CHECKING:
    from adaptive_rec.config.tree import Config


def prepare_own_data(args: argparse.Namespace) -> tuple[argparse.Namespace, Config]:
    """Return the command line and its configuration, after CSV, TSV or Parquet files of --data were prepared beside the run."""
    config = check_begins(args)
    if not names_columns(args):
        return args, config
    if args.out is not None and not args.resume:
        check_run_is_new(args.out)
    if args.data is not None and not processes.are_silent():
        waiting(f"reading {args.data}")
    stream = io.StringIO() if processes.are_silent() else sys.stderr if args.json or args.print_config else sys.stdout
    from adaptive_rec.cli.own_data import with_prepared_data

    return with_prepared_data(args, check_begins, args.out.parent if args.out else RUNS, stream)


def names_columns(args: argparse.Namespace) -> bool:
    """Whether a command line says what columns of --data are."""
    return describes_files(args) or any(each is not None for each in (args.time, args.weight, args.group))


def check_begins(args: argparse.Namespace) -> Config:
    """Return the checked configuration of a run before its data is read. Pairs of settings that a device of this machine would
    not take either are refused here, and not only by the run itself: preparing may take hours, and a dry run refuses the same.
    Raises UsageError or ConfigError."""
    from adaptive_rec.policy.find import load_policy
    from adaptive_rec.runtime.capabilities import check_features as check_pairs
    from adaptive_rec.runtime.capabilities import features_of_run
    from adaptive_rec.system.cuda_driver import may_have_cuda

    config = load_checked(args)
    if not (args.resume or args.replay or args.print_config):  # knobs may have changed since a run began that goes on
        several = processes.layout(Wanted.of(args).processes)[0] > 1
        on_cpu = config.run.device == "cpu" or not may_have_cuda()
        check_pairs(features_of_run(config, load_policy(config.knobs.policy), False, several, trains=on_cpu))
    return config


def load_checked(args: argparse.Namespace) -> Config:
    """Return the checked configuration, before the seconds that torch takes to load. Raises UsageError or ConfigError."""
    from adaptive_rec.policy.find import load_policy

    if args.resume and args.out is None:
        raise UsageError("--resume needs --out DIR, the run directory to continue", faq="nothing-to-resume")
    if args.resume and args.out.exists() and not args.out.is_dir():
        raise UsageError(f"--out must be a run directory to continue, {args.out} is a file")
    if args.replay and args.resume:
        rule = "--replay repeats a run from its start and --resume continues one, a replay too; give one of them"
        raise UsageError(rule)
    named = args.config or args.data or processes.is_restarted()
    if args.resume and not named and not (args.out / "config.toml").is_file():
        raise UsageError(
            f"--resume must continue a run, {no_run(args.out)}; to begin one there, name its CONFIG or --data",
            faq="nothing-to-resume",
        )
    check_what_is_printed(args)
    config = resolve_run(args)
    if not args.resume and not args.replay:
        config.data.check_ranges_are_used()
    if (args.resume or args.replay) and not args.config:
        run, new = (args.out, None) if args.resume else (args.replay, args.out or named_directory(config.knobs.policy))
        check_rows_are_inside(run, new, config, overrides(args), os.environ)
    check_named_file(args.config, config, overrides(args), os.environ)
    load_policy(config.knobs.policy)
    for name in config.run.track:
        from adaptive_rec.tracker import load_tracker

        load_tracker(name)
    return config


def check_what_is_printed(args: argparse.Namespace) -> None:
    """Raise UsageError where two options contradict each other in what the command does instead of training."""
    pairs = (("dry_run", "print_config"), ("json", "print_config"), ("verify", "print_config"), ("verify", "dry_run"))
    for one, other in pairs:
        if getattr(args, one) and getattr(args, other):
            names = (f"--{name.replace('_', '-')}" for name in (one, other))
            raise UsageError(f"{' and '.join(names)} must not be given together; give one of them")


def resolve_run(args: argparse.Namespace) -> Config:
    """Return the configuration; flags are shorthands for keys and override all other layers."""
    kept = args.out if args.resume else args.replay
    if args.replay and not (args.replay / "config.toml").is_file():
        raise UsageError(f"--replay RUN must be a run directory, {args.replay} has no config.toml")
    known = kept is not None and (kept / "config.toml").is_file()
    named = args.config or (str(kept / "config.toml") if known else None)
    settings, chosen = overrides(args), named or getattr(args, "preset", None)
    if all(each is None for each in (args.patience, args.label, args.schema)):
        return configuration(chosen, args.data, settings)
    from adaptive_rec.cli.stopping import stopping_settings

    return configuration(chosen, args.data, [*stopping_settings(args, named, settings), *settings])


def overrides(args: argparse.Namespace) -> list[str]:
    """Return the settings of the command line, flags included, as KEY=VALUE."""
    texts = {"knobs.policy": args.policy, "data.source": args.data, "run.device": args.device, "run.track": args.track}
    texts["eval.metrics"] = metric_names(args.metrics)
    numbers = {"run.steps": args.steps, "run.seed": args.seed, "data.implicit.negatives": args.negatives}
    raw, followed = (["data.ids=raw"], ["data.follow=true"]) if args.follow else ([], [])
    order = order_settings(args)  # before the data is looked at, too: next windows need it
    return [*raw, *order, *args.set, *followed, *text_settings(texts), *number_settings(numbers)]


def overridden(args: argparse.Namespace) -> set[str]:
    """Return the names of the knobs that the command line or the environment gives."""
    from adaptive_rec.config.tree import overridden_knobs

    return overridden_knobs(os.environ, overrides(args))


def check_start(args: argparse.Namespace, config: Config, out: Path) -> None:
    """Check directory and data of a run, of several processes before they are started."""
    if args.resume:
        warn_of_no_checkpoint(out)
    else:
        check_run_is_new(out)
    check_inputs(config)
    if args.verify:
        from adaptive_rec.cli.data import verify_source

        verify_source(config.data.source, sys.stderr if args.json else sys.stdout)


def check_past(args: argparse.Namespace, config: Config) -> None:
    """Check where a run would write, and what one that is resumed or replayed reads of its past, as the run itself does when it
    begins; checkpoints by their sizes only. Makes no file. Raises UsageError, DataError or CheckpointError."""
    from adaptive_rec.checkpoint.listing import newest_by_sizes
    from adaptive_rec.run import journal
    from adaptive_rec.run.parent import parent_of
    from adaptive_rec.run.resume import check_resumes

    if args.out is not None and not args.resume:
        check_run_is_new(args.out)
    if args.replay:
        journal.commands(args.replay)
    if args.resume and args.out.is_dir():
        check_written(args.out)
        parent_of(args.out)
        found, replayed = newest_by_sizes(args.out / "checkpoints"), journal.replayed_run(args.out)
        if found:
            check_resumes(config, args.out, args.out / "checkpoints" / found)
        if replayed is not None:
            journal.left_to_replay(replayed, args.out, found) if found else journal.commands(replayed)


def replays(args: argparse.Namespace) -> bool:
    """Return whether a run repeats another one, in which rules of the watchdog do nothing."""
    from adaptive_rec.run import journal

    if args.resume and args.out.is_dir():
        check_written(args.out)
    return args.replay is not None or (args.resume and journal.replayed_run(args.out) is not None)


def warn_of_no_checkpoint(out: Path) -> None:
    """Say in time that --resume begins a new run, where its directory is mistyped or has no checkpoint yet."""
    from adaptive_rec.run.inputs import has_checkpoint

    if not has_checkpoint(out):
        what = f"{out} has no checkpoint to resume" if out.exists() else no_run(out)
        say(f"warning: --resume: {what}: the run starts from the beginning", sys.stderr)


def no_run(out: Path) -> str:
    """Return that there is no run in a directory, and how one beside it is called."""
    from adaptive_rec.run.inputs import has_checkpoint

    if out.exists():
        return f"{out} has no config.toml"
    return f"{out} does not exist{did_you_mean(out.name, [run.name for run in out.parent.glob('*') if has_checkpoint(run)])}"


def check_inputs(config: Config) -> None:
    """Check data and device as far as it needs no torch, which takes seconds to load. Raises UsageError or DataError."""
    from adaptive_rec.data.open import check_file
    from adaptive_rec.data.prepare.place import is_prepared
    from adaptive_rec.system.cuda_driver import NO_CUDA, may_have_cuda

    source = config.data.source
    if config.data.schema_file:
        from adaptive_rec.data.prepare.formats import check_source
        from adaptive_rec.data.tabular.files import files_of
        from adaptive_rec.data.tabular.schema import load_schema

        load_schema(Path(config.data.schema_file), "data.schema_file")
        for path in files_of(Path(source)):
            check_source(path)
    elif source != "synthetic" and not is_prepared(source):
        check_file(Path(source))
    if config.run.device == "cuda" and not may_have_cuda():
        raise ConfigError(NO_CUDA, faq="no-gpu")

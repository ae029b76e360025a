"""``train``: the configuration from the command line, training in this process, the sidecar around it."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_rec.cli import processes
from adaptive_rec.cli.data import verify_source
from adaptive_rec.cli.detach import detach
from adaptive_rec.cli.launcher import Wanted, launch
from adaptive_rec.cli.output import say, waiting
from adaptive_rec.cli.own_data import add_schema_options, warn_of_labels, with_prepared_data
from adaptive_rec.cli.parser import (
    DATA_HELP,
    add_command,
    add_settings,
    configuration,
    given_serve_options,
    number_settings,
    on_terminal,
    serve_options,
    text_settings,
)
from adaptive_rec.cli.signals import StopSignals
from adaptive_rec.cli.start_options import add_start_options
from adaptive_rec.errors import AdaptiveRecError, CheckpointError, ConfigError, UsageError, did_you_mean
from adaptive_rec.run.new_directory import check_is_new, new_directory
from adaptive_rec.run.serving import keep_options, kept_options
from adaptive_rec.system.compiled_code import keep_to_ourselves

if TYPE_CHECKING:
    from adaptive_rec.cli.console import Screen
    from adaptive_rec.config.tree import Config
    from adaptive_rec.live.listen import ServeOptions
    from adaptive_rec.live.sidecar import Sidecar
    from adaptive_rec.run.training_run import TrainingRun
    from adaptive_rec.system.torch_group import TorchGroup

EXAMPLES = """\
examples:
  adaptive-rec train                                     synthetic data, under a minute
  adaptive-rec train --data clicks.csv --label clicked   your own CSV, TSV or Parquet file, or a folder of them
  adaptive-rec train --data train.txt --policy hotline   a Criteo TSV file (plain, .gz or .zst)
  adaptive-rec train tiny --set knobs.action=drop        a preset, one key changed
  adaptive-rec train --print-config > my.toml            every key and its value, to edit
  adaptive-rec eval runs/NAME                            score a finished run again
"""


def add_commands(subparsers: Any) -> None:
    parser = add_command(subparsers, "train", train, "train a model and write a run directory", epilog=EXAMPLES)
    add = parser.add_argument
    add("config", nargs="?", metavar="CONFIG", help="preset (tiny, synthetic, criteo_kaggle, ...) or TOML file")
    policies = "adaptive, hotline, hybrid, fae, cdlrm, slipstream, ... (docs/policies.md) or module:Class"
    add("--policy", metavar="NAME", help=policies)
    add("--data", metavar="PATH", help=DATA_HELP)
    add_schema_options(parser)
    add("--steps", metavar="N", help="mini-batches to train on; 0: all")
    add("--seed", metavar="N", help="seed of everything random")
    add("--device", metavar="NAME", help="auto, cpu or cuda")
    add("--track", action="append", metavar="NAME", help="a tracker: tensorboard or module:Class (repeatable)")
    add_settings(parser, "any other key; --print-config lists them all")
    add("--out", metavar="DIR", type=Path, help="run directory (default: runs/TIME-POLICY)")
    resumed = (
        "continue from the newest checkpoint in --out with its config.toml and port; without a checkpoint, start there, "
        "under CONFIG or --data where there is no config.toml"
    )
    add("--resume", action="store_true", help=resumed)
    replayed = "repeat a run: its configuration, and its knob changes at the same steps"
    add("--replay", metavar="RUN", type=Path, help=replayed)
    verified = "check the prepared folder in --data first, every checksum included, as data verify does"
    add("--verify", action="store_true", help=verified)
    followed = "CSV, TSV, Parquet with raw ids: train on as lines are appended, or files come into the folder"
    add("--follow", action="store_true", help=followed)
    add("--dry-run", action="store_true", help="print the memory that the run would need, and exit")
    add("--print-config", action="store_true", help="print the resolved configuration as TOML, and exit")
    add("--json", action="store_true", help="print only the summary (or the plan), as JSON; progress goes to stderr")
    add_start_options(parser)


def train(args: argparse.Namespace) -> int:
    """Train and print the summary, or only print the configuration or the memory plan."""
    from adaptive_rec.config.reference import render
    from adaptive_rec.config.tree import overridden_knobs

    processes.check_launch()
    wanted = Wanted.of(args)
    if processes.is_restarted():
        args.resume = True
    args, config = prepare(args)
    if config.run.compile:
        keep_to_ourselves(os.environ)
    given = {**(kept_options(args.out) if args.resume else {}), **given_serve_options(args)}
    options = None if args.no_serve else serve_options({**given, "waits_for_port": args.resume and "port" in given})
    if args.print_config:
        sys.stdout.write(render(config))
        return 0
    if args.dry_run:
        from adaptive_rec.cli.plan import dry_run

        return 0 if processes.are_silent() else dry_run(config, args.json, *processes.layout(wanted.processes))
    if options is None:
        config.watch.check_can_pause()
    else:
        options.read_token()  # an error here comes before the seconds that torch takes to load
    out = args.out or new_directory(config.knobs.policy)
    if not processes.are_under_way():
        check_start(args, config, out)
    if args.detach:
        return detach(args.argv, out, args.resume, options is not None, args.json)
    if wanted.processes > 1 and not processes.are_under_way():
        return launch(args.argv, wanted, config, out)
    if processes.are_under_way():
        named = overridden_knobs(os.environ, overrides(args))
        return processes.train(args, config, named, partial(train_here, config, args, out, options, given))
    return train_here(config, args, out, options, given, None)


def check_start(args: argparse.Namespace, config: Config, out: Path) -> None:
    """Check directory and data of a run, of several processes before they are started."""
    if args.resume:
        warn_of_no_checkpoint(out)
    else:
        check_is_new(out)
    check_inputs(config)
    if args.verify:
        verify_source(config.data.source, sys.stderr if args.json else sys.stdout)


def train_here(
    config: Config, args: argparse.Namespace, out: Path, options: ServeOptions | None, given: dict[str, Any],
    group: TorchGroup | None,
) -> int:  # fmt: skip
    """Train in this process, the only one of the run or rank 0 of several."""
    from adaptive_rec.cli.console import Screen
    from adaptive_rec.cli.progress import compiling_shown
    from adaptive_rec.live.telemetry import to_json

    screen = Screen(to_stderr=args.json)
    with StopSignals(screen, launched=processes.are_launched()) as signals, ExitStack() as stack:
        with screen:
            with compiling_shown(screen):
                training = begin(config, out, args, screen, group)
                keep_options(out, given)
                signals.watch(training.present)
                sidecar = stack.enter_context(served(options, training, screen))
                training.runtime.state.pause_as_saved(reachable=training.group.tell(sidecar is not None))
                screen.first_step(training.present)
                for event in training.events():
                    screen.show(event)
                summary = finish(training, screen, signals)
            for event in training.last_words:
                screen.show(event)
        if args.json:
            print(to_json(summary), flush=True)
        else:
            screen.summary(summary, out)
        if training.failure is not None:
            lost = "the last checkpoint was not written: " * isinstance(training.failure, CheckpointError)
            say(f"error: {lost}{training.failure}", sys.stderr)
        if sidecar is not None and not signals.exit_code:
            with signals.waiting():
                wait_after_the_end(sidecar, screen, args.linger)
    training.group.close()
    if training.failure is not None:
        return training.failure.exit_code
    if not signals.exit_code:
        return 0
    # As one of several processes it ends with 0, so that torchrun does not start it again.
    code = signals.exit_code if group is None else 0
    signals.leave_at_once(code)
    return code


def prepare(args: argparse.Namespace) -> tuple[argparse.Namespace, Config]:
    """Return the command line and its configuration, after CSV, TSV or Parquet files of --data were prepared beside the run."""
    config = check(args)
    if args.label is None and args.schema is None:
        return args, config
    if args.out is not None and not args.resume:
        check_is_new(args.out)
    if not processes.are_silent():
        waiting(f"reading {args.data}")
    stream = io.StringIO() if processes.are_silent() else sys.stderr if args.json or args.print_config else sys.stdout
    args, config = with_prepared_data(args, check, (args.out or new_directory(config.knobs.policy)).parent, stream)
    warn_of_labels(config, stream)
    return args, config


def check(args: argparse.Namespace) -> Config:
    """Return the checked configuration, before the seconds that torch takes to load. Raises UsageError or ConfigError."""
    from adaptive_rec.policy.find import load_policy
    from adaptive_rec.tracker import load_tracker

    if args.resume and args.out is None:
        raise UsageError("--resume needs --out DIR, the run directory to continue")
    if args.resume and args.out.exists() and not args.out.is_dir():
        raise UsageError(f"--out must be a run directory to continue, {args.out} is a file")
    if args.replay and args.resume:
        rule = "--replay repeats a run from its start and --resume continues one, a replay too; give one of them"
        raise UsageError(rule)
    named = args.config or args.data or processes.is_restarted()
    if args.resume and not named and not (args.out / "config.toml").is_file():
        raise UsageError(f"--resume must continue a run, {no_run(args.out)}; to begin one there, name its CONFIG or --data")
    if args.linger and args.no_serve:
        raise UsageError("--linger keeps the dashboard after the run and --no-serve starts none; give one of them")
    config = resolve(args)
    load_policy(config.knobs.policy)
    for name in config.run.track:
        load_tracker(name)
    return config


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
    from adaptive_rec.data.prepare.formats import check_source
    from adaptive_rec.data.prepare.meta import META
    from adaptive_rec.data.tabular.files import files_of
    from adaptive_rec.data.tabular.schema import load_schema
    from adaptive_rec.system.cuda_driver import NO_CUDA, may_have_cuda

    source = config.data.source
    if config.data.schema_file:
        load_schema(Path(config.data.schema_file), "data.schema_file")
        for path in files_of(Path(source)):
            check_source(path)
    elif source != "synthetic" and not os.path.isfile(Path(source) / META):
        check_file(Path(source))
    if config.run.device == "cuda" and not may_have_cuda():
        raise ConfigError(NO_CUDA)


def begin(
    config: Config, out: Path, args: argparse.Namespace, screen: Screen, group: TorchGroup | None = None
) -> TrainingRun:
    """Build the run: load torch, read or draw the data, allocate the tables."""
    from adaptive_rec.config.tree import overridden_knobs

    screen.status("loading torch")
    from adaptive_rec.offline.report.run_report import write_report
    from adaptive_rec.run.training_run import TrainingRun

    source = config.data.source
    reading = "" if source == "synthetic" else f"reading {Path(source).name}, "
    screen.status(f"{reading}building tables")
    overridden = overridden_knobs(os.environ, overrides(args))
    training = TrainingRun(config, out, args.resume, args.replay, args.argv, overridden, write_report, group)
    if group is not None:
        group.report_to(lambda text: training.note("failed", text))
    screen.begin(training.runtime)
    return training


def finish(training: TrainingRun, screen: Screen, signals: StopSignals) -> dict[str, Any]:
    """Write the final checkpoint and the summary. After a signal, no samples are scored."""
    if training.runtime.state.stop_requested:  # a client may have requested it
        screen.stopping()
    what = "the next window" if training.config.eval.mode == "next_window" else "the held-out samples"
    scoring = "" if signals.exit_code or training.runtime.followed else f", scoring {what}"
    screen.status(f"writing the checkpoint{scoring}")
    return training.finish()


def resolve(args: argparse.Namespace) -> Config:
    """Return the configuration; flags are shorthands for keys and override all other layers."""
    kept = args.out if args.resume else args.replay
    if args.replay and not (args.replay / "config.toml").is_file():
        raise UsageError(f"--replay RUN must be a run directory, {args.replay} has no config.toml")
    known = kept is not None and (kept / "config.toml").is_file()
    return configuration(args.config or (str(kept / "config.toml") if known else None), args.data, overrides(args))


def overrides(args: argparse.Namespace) -> list[str]:
    """Return the settings of the command line, flags included, as KEY=VALUE."""
    texts = {"knobs.policy": args.policy, "data.source": args.data, "run.device": args.device, "run.track": args.track}
    numbers = {"run.steps": args.steps, "run.seed": args.seed}
    raw, followed = (["data.ids=raw"], ["data.follow=true"]) if args.follow else ([], [])
    return [*raw, *args.set, *followed, *text_settings(texts), *number_settings(numbers)]


@contextmanager
def served(options: ServeOptions | None, training: TrainingRun, screen: Screen) -> Iterator[Sidecar | None]:
    """Run the sidecar around training and print its address. Where it cannot start, print why and train without it."""
    with ExitStack() as stack:
        sidecar = None
        if options is not None:
            try:
                from adaptive_rec.live.sidecar import Sidecar

                sidecar = stack.enter_context(Sidecar(options, training.out, training.present, screen.note))
            except UsageError:
                raise  # an option of the user cannot be met
            except (ImportError, OSError, AdaptiveRecError) as error:
                screen.note(f"no dashboard: {error}; training continues without it")
        if sidecar is not None:
            screen.dashboard(sidecar.url, sidecar.dashboard_url)
        yield sidecar


def wait_after_the_end(sidecar: Sidecar, screen: Screen, linger: bool) -> None:
    """Keep the service until a scraper has read the run's end, with `linger` until a stop is requested. A signal ends that."""
    try:
        if linger:
            how = "Ctrl-C or adaptive-rec stop" if on_terminal() else "adaptive-rec stop"
            screen.note(f"the dashboard stays open until {how}")
            sidecar.linger()
        sidecar.wait_for_the_last_scrape()
    except KeyboardInterrupt:
        if linger:
            screen.note("the dashboard is closed")

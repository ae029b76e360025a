"""``train``: a configuration from the command line, training in this process, the sidecar around it."""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_rec.cli.detach import detach
from adaptive_rec.cli.parser import Parser, add_serve_options, on_terminal, serve_options
from adaptive_rec.cli.signals import StopSignals
from adaptive_rec.errors import AdaptiveRecError, UsageError
from adaptive_rec.run.new_directory import check_is_new, new_directory

if TYPE_CHECKING:
    from adaptive_rec.cli.console import Screen
    from adaptive_rec.config.tree import Config
    from adaptive_rec.live.listen import ServeOptions
    from adaptive_rec.live.sidecar import Sidecar
    from adaptive_rec.run.training_run import TrainingRun

EXAMPLES = """\
examples:
  adaptive-rec train                                     synthetic data, under a minute
  adaptive-rec train --data train.txt --policy hotline   a Criteo TSV file (plain, .gz or .zst)
  adaptive-rec train tiny --set knobs.action=drop        a preset, one key changed
  adaptive-rec train --print-config > my.toml            every key and its value, to edit
  adaptive-rec eval runs/NAME                            score a finished run again
"""


def add_commands(subparsers: Any) -> dict[str, Parser]:
    parser: Parser = subparsers.add_parser("train", help="train a model, leave a run directory", epilog=EXAMPLES)
    parser.set_defaults(command=train)
    add = parser.add_argument
    add("config", nargs="?", metavar="CONFIG", help="preset (tiny, synthetic, criteo_kaggle, ...) or TOML file")
    add(
        "--policy",
        metavar="NAME",
        help="adaptive, hotline, hybrid, fae, cdlrm, slipstream, ... (docs/policies.md) or module:Class",
    )
    add("--data", metavar="PATH", help="a Criteo TSV file (plain, .gz, .zst), a prepared folder, or synthetic")
    add("--steps", metavar="N", help="mini-batches to train on; 0 is all there are")
    add("--seed", metavar="N", help="seed of everything random")
    add("--device", metavar="NAME", help="auto, cpu or cuda")
    add("--track", action="append", metavar="NAME", help="a tracker: tensorboard or module:Class; may be repeated")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="any other key; --print-config lists them all")
    add("--out", metavar="DIR", type=Path, help="run directory (default: runs/TIME-POLICY)")
    add(
        "--resume",
        action="store_true",
        help="go on from the newest checkpoint in --out, under its config.toml; begin where it has none",
    )
    add(
        "--replay",
        metavar="RUN",
        type=Path,
        help="make a run again: its configuration, its knob changes at their steps",
    )
    add("--detach", action="store_true", help="train in the background; returns once training is up")
    add("--dry-run", action="store_true", help="print what the run would hold in memory and exit")
    add("--print-config", action="store_true", help="print the resolved configuration as TOML and exit")
    add("--json", action="store_true", help="print only the summary (or the plan), as JSON; progress goes to stderr")
    add("--no-serve", action="store_true", help="no dashboard, API or shell commands for this run")
    add("--linger", action="store_true", help="keep the dashboard and the API after the last step, until stopped")
    add_serve_options(parser)
    return {"train": parser}


def train(args: argparse.Namespace) -> int:
    """Train and print the summary; or print the configuration or the memory plan of such a run."""
    from adaptive_rec.config.tree import to_toml
    from adaptive_rec.live.telemetry import to_json

    config = check(args)
    options = None if args.no_serve else serve_options(args)
    if args.print_config:
        sys.stdout.write(to_toml(config))
        return 0
    if args.dry_run:
        from adaptive_rec.cli.dry_run import dry_run

        return dry_run(config, args.json)
    if options is not None:
        options.read_token()  # a bad one is an error before the seconds that torch takes
    out = args.out or new_directory(config.knobs.policy)
    if not args.resume:
        check_is_new(out)
    if args.detach:
        return detach(args.argv, out, args.resume, options is not None, args.json)

    from adaptive_rec.cli.console import Screen, compiling_shown

    screen = Screen(to_stderr=args.json)
    with StopSignals(screen) as signals, ExitStack() as stack:
        with screen:
            with compiling_shown(screen):
                training = begin(config, out, args, screen)
                signals.watch(training.runtime)
                sidecar = stack.enter_context(served(options, training, screen))
                training.runtime.state.pause_as_saved(reachable=sidecar is not None)
                screen.first_step(training.runtime)
                for event in training.events():
                    screen.show(event)
                summary = finish(training, screen, signals)
            for event in training.last_words:
                screen.show(event)
        if args.json:
            print(to_json(summary), flush=True)
        else:
            screen.summary(summary, out)
        if args.linger and sidecar is not None and not signals.exit_code:
            linger(sidecar, screen, signals)
    if signals.exit_code:
        gc.freeze()  # the process ends: looking for garbage among torch's objects would take it a second or more
    return signals.exit_code


def check(args: argparse.Namespace) -> Config:
    """The configuration of a train command line, checked before the seconds that torch takes to load. Raises UsageError or
    ConfigError."""
    from adaptive_rec.policy.find import load_policy
    from adaptive_rec.tracker import load_tracker

    if args.resume and args.out is None:
        raise UsageError("--resume needs --out DIR, the run directory to go on with")
    if args.replay and args.resume:
        raise UsageError("--replay makes a run again from its start and --resume goes on with one; give one of them")
    if args.linger and args.no_serve:
        raise UsageError("--linger keeps the dashboard after the run and --no-serve has none; give one of them")
    config = resolve(args)
    load_policy(config.knobs.policy)
    for name in config.run.track:
        load_tracker(name)
    return config


def begin(config: Config, out: Path, args: argparse.Namespace, screen: Screen) -> TrainingRun:
    """Build the run: load torch, read or draw the data, allocate the tables."""
    from adaptive_rec.config.tree import overridden_knobs

    screen.status("loading torch")
    from adaptive_rec.offline.report.run_report import write_report
    from adaptive_rec.run.training_run import TrainingRun

    source = config.data.source
    reading = "" if source == "synthetic" else f"reading {Path(source).name}, "
    screen.status(f"{reading}building tables")
    overridden = overridden_knobs(os.environ, overrides(args))
    training = TrainingRun(config, out, args.resume, args.replay, args.argv, overridden, write_report)
    screen.begin(training.runtime)
    if args.resume and not training.started_at_step:
        screen.note(f"{out} has no checkpoint to go on from: the run begins at its start")
    return training


def finish(training: TrainingRun, screen: Screen, signals: StopSignals) -> dict[str, Any]:
    """Write the final checkpoint and the summary. After a signal there is no time left to score the held-out samples."""
    if training.runtime.state.stop_requested:  # maybe by a client
        screen.stopping()
    scoring = "" if signals.exit_code else ", scoring the held-out samples"
    screen.status(f"writing the checkpoint{scoring}")
    return training.finish()


def resolve(args: argparse.Namespace) -> Config:
    """The configuration of a train command line: flags are shorthands for keys and win over all else."""
    from adaptive_rec.config.tree import load_config

    kept = args.out if args.resume else args.replay
    if args.replay and not (args.replay / "config.toml").is_file():
        raise UsageError(f"--replay RUN must be a run directory, {args.replay} has no config.toml")
    known = kept is not None and (kept / "config.toml").is_file()
    source = args.config or (str(kept / "config.toml") if known else preset_for(args.data))
    return load_config(source, os.environ, overrides(args))


def overrides(args: argparse.Namespace) -> list[str]:
    """Settings given on the command line, KEY=VALUE each, flags among them."""
    settings = list(args.set)
    names = {"knobs.policy": args.policy, "data.source": args.data, "run.device": args.device}
    numbers = {"run.steps": args.steps, "run.seed": args.seed}
    settings += [f"{key}={json.dumps(text, ensure_ascii=False)}" for key, text in names.items() if text is not None]
    settings += [f"{key}={text}" for key, text in numbers.items() if text is not None]
    settings += [f"run.track={json.dumps(args.track, ensure_ascii=False)}"] if args.track else []
    return settings


def preset_for(data: str | None) -> str:
    """The preset that suits some data; that of the full data set would take a small file in a few dozen steps."""
    if data is None or data == "synthetic":
        return "synthetic"
    files = Path(data).glob("*.npy") if os.path.isdir(data) else [Path(data)]
    small = os.path.exists(data) and sum(file.stat().st_size for file in files) <= 256 << 20
    return "criteo_sample" if small else "criteo_kaggle"


@contextmanager
def served(options: ServeOptions | None, training: TrainingRun, screen: Screen) -> Iterator[Sidecar | None]:
    """Run the sidecar around training and show its address. Where it cannot start, say so and train without it."""
    with ExitStack() as stack:
        sidecar = None
        if options is not None:
            try:
                from adaptive_rec.live.sidecar import Sidecar

                sidecar = stack.enter_context(Sidecar(options, training.out, training.runtime, screen.note))
            except UsageError:
                raise  # an option of the user's cannot be met
            except (ImportError, OSError, AdaptiveRecError) as error:
                screen.note(f"no dashboard: {error}; training goes on without")
        if sidecar is not None:
            screen.dashboard(sidecar.url, sidecar.dashboard_url)
        yield sidecar


def linger(sidecar: Sidecar, screen: Screen, signals: StopSignals) -> None:
    """Keep the service until it is told to stop, or a signal comes."""
    how = "Ctrl-C or adaptive-rec stop" if on_terminal() else "adaptive-rec stop"
    screen.note(f"the dashboard stays until {how}")
    signals.linger()
    try:
        sidecar.linger()
    except KeyboardInterrupt:
        screen.note("the dashboard is closed")

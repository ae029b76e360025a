"""``train``: its words on the command line, training in this process, the sidecar around it."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_rec.cli import processes
from adaptive_rec.cli.launcher import Wanted, launch
from adaptive_rec.cli.output import say
from adaptive_rec.cli.parser import (
    DATA_HELP,
    add_command,
    add_metrics_option,
    add_schema_options,
    add_settings,
    given_serve_options,
    on_terminal,
    serve_options,
)
from adaptive_rec.cli.signals import StopSignals
from adaptive_rec.cli.start_options import add_start_options, check_start_options
from adaptive_rec.cli.train_settings import check_start, overridden, prepare_own_data
from adaptive_rec.errors import SUSPENDED, AdaptiveRecError, CheckpointError, UsageError, with_address
from adaptive_rec.run.new_directory import named_directory, new_directory
from adaptive_rec.run.serving import agreed_options, keep_options
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
    drawn = "with --item: negatives that are drawn for each row, anew in each epoch; their item is another one"
    add("--negatives", metavar="N", help=drawn)
    add_metrics_option(parser, "setting eval.metrics")
    add("--steps", metavar="N", help="mini-batches to train on; 0: all")
    add("--seed", metavar="N", help="seed of everything random")
    patience = (
        "stop after N evaluations without a better one on a slice of the training rows, on which the best model then "
        "trains (default 0: never)"
    )
    add("--patience", metavar="N", help=patience)
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
    add("--dry-run", action="store_true", help="print what the run would do: columns, split, passes, time, memory; and exit")
    add("--print-config", action="store_true", help="print the resolved configuration as TOML, and exit")
    add("--json", action="store_true", help="print only the summary (or the plan), as JSON; progress goes to stderr")
    add_start_options(parser)


def train(args: argparse.Namespace) -> int:
    """Train and print the summary, or only print the configuration or the memory plan."""
    processes.check_launch(args)
    check_start_options(args)
    wanted = Wanted.of(args)
    if processes.is_restarted():
        args.resume = True
    if args.dry_run:
        from adaptive_rec.cli.dry_run import dry_run

        Serving.of(args).check()
        return dry_run(args, wanted)
    args, config = prepare_own_data(args)
    if config.run.compile:
        keep_to_ourselves(os.environ)
    serving = Serving.of(args)
    if args.print_config:
        return print_config(config)
    serving.check()
    with nullcontext(args.out) if args.out else new_directory(named_directory(config.knobs.policy)) as out:
        if (code := train_elsewhere(args, config, wanted, out, serving)) is not None:
            return code
        with processes.in_group(args, config) as group:
            if group is not None and group.rank:
                return processes.train_as_follower(config, args, overridden(args), group)
            with training_here(args, config, out, serving, group) as here:
                for event in here.training.events():
                    here.screen.show(event)
        return here.exit_code


@dataclass(frozen=True)
class Serving:
    """How the run is served."""

    options: ServeOptions | None
    """None where it is not."""
    given: dict[str, Any]
    """Those that the user gave, now or when the run that is resumed was started."""

    @classmethod
    def of(cls, args: argparse.Namespace) -> Serving:
        given = given_serve_options(args)
        if args.no_serve:
            return cls(None, given)
        if args.resume:
            given = agreed_options(args.out, given)
        return cls(serve_options({**given, "waits_for_port": args.resume and "port" in given}), given)

    def check(self) -> None:
        """Raise UsageError where the token cannot be read, before the seconds that torch takes to load."""
        if self.options is not None:
            self.options.read_token()


def print_config(config: Config) -> int:
    from adaptive_rec.config.reference import render

    sys.stdout.write(render(config))
    return 0


def train_elsewhere(args: argparse.Namespace, config: Config, wanted: Wanted, out: Path, serving: Serving) -> int | None:
    """Train in the background, or in several processes, and return the exit code. None where this process is to train."""
    if not processes.are_under_way():
        check_start(args, config, out)
    words = args.argv if args.out else [*args.argv, f"--out={out}"]
    if args.detach:
        from adaptive_rec.cli.detach import detach

        return detach(words, out, config, args.resume, serving.options is not None, args.json)
    if wanted.processes > 1 and not processes.are_under_way():
        return launch(words, wanted, config, out)
    return None


@dataclass
class Here:
    """A run that trains in this process."""

    training: TrainingRun
    screen: Screen
    exit_code: int = 0


@contextmanager
def training_here(
    args: argparse.Namespace, config: Config, out: Path, serving: Serving, group: TorchGroup | None, screen: Screen | None = None
) -> Iterator[Here]:
    """Begin a run in this process, the only one of the run or rank 0 of several; the body trains. Then score it, print the
    summary and close what the run has open. `screen`: that of a program that goes on after the run."""
    from adaptive_rec.cli.console import Screen
    from adaptive_rec.cli.progress import compiling_shown

    goes_on, screen = screen is not None, screen or Screen(to_stderr=args.json)
    with StopSignals(screen, launched=processes.are_launched(), goes_on=goes_on) as signals, ExitStack() as stack:
        with screen:
            with compiling_shown(screen):
                training = begin(config, out, args, screen, group)
                keep_options(out, serving.given)
                signals.watch(training.present)
                sidecar = stack.enter_context(served(serving.options, training, screen))
                training.runtime.state.pause_as_saved(reachable=training.group.tell(sidecar is not None))
                if not training.is_over:
                    screen.first_step(training.present)
                yield (here := Here(training, screen))
                summary = finish(training, screen, signals)
            for event in training.log.last_words:
                screen.show(event)
        print_summary(summary, training, screen, args.json)
        if sidecar is not None and not signals.exit_code:
            with signals.waiting():
                wait_after_the_end(sidecar, screen, args.linger)
    training.group.close()
    if training.failure is not None:
        here.exit_code = training.failure.exit_code
    elif signals.exit_code:
        # As one of several processes it ends with 0, so that torchrun does not start it again.
        here.exit_code = signals.exit_code if group is None else 0
        signals.leave_at_once(here.exit_code)
    elif training.suspended_by:
        say(f"suspended by {training.suspended_by}: train --resume --out {shlex.quote(str(out))} goes on", sys.stderr)
        here.exit_code = SUSPENDED if group is None else 0  # likewise; the launcher reads the journal


def print_summary(summary: dict[str, Any], training: TrainingRun, screen: Screen, as_json: bool) -> None:
    from adaptive_rec.live.telemetry import to_json

    if as_json:
        print(to_json(summary), flush=True)
    else:
        screen.summary(summary, training.out)
    if training.failure is not None:
        lost = "the last checkpoint was not written: " * isinstance(training.failure, CheckpointError)
        say(f"error: {lost}{with_address(training.failure)}", sys.stderr)


def begin(
    config: Config, out: Path, args: argparse.Namespace, screen: Screen, group: TorchGroup | None = None
) -> TrainingRun:
    """Build the run: load torch, read or draw the data, allocate the tables."""
    screen.status("loading torch")
    from adaptive_rec.run.training_run import TrainingRun

    source = config.data.source
    reading = "" if source == "synthetic" else f"reading {Path(source).name}, "
    screen.status(f"{reading}building tables")
    named = overridden(args)
    training = TrainingRun(config, out, args.resume, args.replay, args.argv, named, write_report_page, group)
    if group is not None:
        group.report_to(lambda text: training.log.note("failed", text))
    screen.begin(training.runtime)
    return training


def write_report_page(directory: Path) -> object:
    """Write the report page of a run directory."""
    from adaptive_rec.offline.report.run_report import write_report

    return write_report(directory)


def finish(training: TrainingRun, screen: Screen, signals: StopSignals) -> dict[str, Any]:
    """Write the final checkpoint and the summary, unless the run was over already. After a signal, no samples are scored."""
    stopped = training.runtime.state.stop_requested and not training.runtime.state.stopped_early
    if stopped:  # a client may have requested it
        screen.stopping()
    what = "the next window" if training.config.eval.mode == "next_window" else "the held-out samples"
    scoring = "" if signals.exit_code or training.runtime.followed else f", scoring {what}"
    if not training.is_over:
        screen.status(f"writing the checkpoint{scoring}")
    return training.finish()


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

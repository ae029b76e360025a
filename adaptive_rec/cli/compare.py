"""``compare``: several policies under the same conditions, and the differences beyond noise."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_rec.cli.output import say, waiting
from adaptive_rec.cli.own_data import with_prepared_data
from adaptive_rec.cli.parser import (
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
from adaptive_rec.run.new_directory import RUNS as RUN_FOLDER
from adaptive_rec.run.new_directory import new_directory
from adaptive_rec.system.own_files import check_own
from adaptive_rec.units import counted, printable

if TYPE_CHECKING:
    from adaptive_rec.config.tree import Config
    from adaptive_rec.offline.compare.plan import Plan, Variant
    from adaptive_rec.offline.compare.results import Results

EXAMPLES = """\
examples:
  adaptive-rec compare tiny --policies hybrid,hotline,slipstream
  adaptive-rec compare --data train.txt --policies hybrid,adaptive,my.module:Class --seeds 5 --budget 64MiB
  adaptive-rec compare criteo_sample --policies hybrid,fae --set data.source=train.txt --out runs/fae

  adaptive-rec compare tiny --policies hybrid,slipstream --variant "fewer: run.steps=400" \\
    --variant "drop-more: knobs.policy=slipstream, knobs.action=drop, knobs.target_skip_ratio=0.6"

The same command with the same --out continues a stopped comparison, and may add policies, variants or seeds.
"""
DEFAULT_POLICIES = "hybrid,hotline,adaptive"
RUNS = "runs"
"""The folder of the runs within the directory of a comparison."""
PAGE, TABLE, FIGURES, SETTINGS = "compare.html", "table.md", "compare.json", "settings.toml"


def add_commands(subparsers: Any) -> None:
    purpose = "compare policies: time, quality, and differences beyond noise"
    parser = add_command(subparsers, "compare", compare, purpose, epilog=EXAMPLES)
    add = parser.add_argument
    add("config", nargs="?", metavar="CONFIG", help="preset or TOML file, as for train")
    policies = f"names or module:Class, as for train --policy (default: {DEFAULT_POLICIES})"
    add("--policies", metavar="A,B,...", default=DEFAULT_POLICIES, help=policies)
    variant = "the baseline's policy, or another one, under settings of its own (repeatable)"
    add("--variant", metavar="'NAME: KEY=VALUE, ...'", action="append", default=[], help=variant)
    add("--seeds", metavar="N", type=int, default=3, help="runs of each policy, with seeds from run.seed on (default: 3)")
    add("--baseline", metavar="NAME", default="hybrid", help="policy to compare the others with (default: hybrid)")
    add("--data", metavar="PATH", help=DATA_HELP)
    add_schema_options(parser)
    add("--budget", metavar="SIZE", help="hot budget of every policy, such as 64MiB")
    add("--steps", metavar="N", help="mini-batches of each run; 0: all")
    add("--device", metavar="NAME", help="auto, cpu or cuda")
    add_settings(parser, "any other key, for all runs")
    add("--out", metavar="DIR", type=Path, help="directory, new or of the same comparison (default: runs/compare-TIME)")
    add("--keep-checkpoints", action="store_true", help="keep the checkpoints of the runs, each as large as all tables")
    add("--json", action="store_true", help="print only the results, as JSON; progress goes to stderr")


def compare(args: argparse.Namespace) -> int:
    """Do the missing runs, write and print the results. Returns 1 where a run failed."""
    waiting("preparing the runs")
    from adaptive_rec.offline.compare.plan import conditions, plan_of, read_variants
    from adaptive_rec.policy.find import load_policy

    beside = args.out.parent if args.out else RUN_FOLDER
    ready, config = with_prepared_data(args, resolve_comparison, beside, sys.stderr if args.json else sys.stdout)
    policies = args.policies.split(",")
    variants = read_variants(args.variant, args.baseline, policies)
    plan = plan_of(config, policies, args.seeds, args.baseline, variants)
    for turn in plan.turns():  # an error comes before the first run
        load_policy(turn.variant.policy if turn.variant else turn.policy)
    for variant in variants:
        resolve_comparison(ready, variant.settings)
    held = conditions(plan.config)
    name = RUN_FOLDER / f"compare-{time.strftime('%Y%m%d-%H%M%S')}"
    with nullcontext(args.out) if args.out else new_directory(name) as out:
        return compare_in(out, args, plan, variants, held)


def compare_in(
    out: Path, args: argparse.Namespace, plan: Plan, variants: tuple[Variant, ...], held: dict[str, Any]
) -> int:
    """Do the missing runs of a comparison in its directory, write and print the results. Returns as `compare` does."""
    from adaptive_rec.config.tree import to_toml
    from adaptive_rec.offline.compare.plan import settle_conditions
    from adaptive_rec.offline.compare.processes import alone_in
    from adaptive_rec.offline.pages.page import write_page

    folder = make_comparison_folder(out)
    with alone_in(out) as lock, stopped_by_signals():
        settle_conditions(out, held, variants, plan.policies)
        write_page(to_toml(plan.config), out / SETTINGS)
        stopped = make_runs(plan, held, folder, lock, args)
        results = write_results(plan, held, out, folder)
    show_results(results, out, args.json)
    if stopped:
        left = results["planned_runs"] - len(results["runs"]) - len(results["failed"])
        say(f"stopped with {left} of {results['planned_runs']} runs to go; {again(args.argv, out)}", sys.stderr)
        return 128 + stopped
    return 1 if results["failed"] else 0


def resolve_comparison(args: argparse.Namespace, own: Sequence[str] = ()) -> Config:
    """Return the configuration of all runs, or of those of a variant with settings of its `own`. Raises ConfigError."""
    taken = next((each for each in args.set if each.partition("=")[0].strip() == "knobs.policy"), None)
    if taken:
        raise UsageError(f"--set must leave knobs.policy to --policies, got {taken}")
    texts = {"data.source": args.data, "knobs.hot_budget_bytes": args.budget, "run.device": args.device}
    settings = [*args.set, *text_settings(texts), *number_settings({"run.steps": args.steps}), *own]
    config = configuration(args.config, args.data, settings)
    source = config.data.source
    if config.run.disk:
        rule = "run.disk must be empty where runs are compared, each of which has its rows in its own directory"
        raise UsageError(f"{rule}, got {config.run.disk}")
    config.data.check_ranges_are_used()
    if config.data.follow:
        raise UsageError("data.follow must be false where runs are compared, got true")
    if source != "synthetic" and not Path(source).exists():  # one error here instead of one in every run
        raise UsageError(f"data.source must be synthetic or a file or folder that exists, got {source!r}")
    return config


def make_comparison_folder(out: Path) -> Path:
    """Create and return the folder of the runs. Raises UsageError where `out` is not the directory of a comparison."""
    from adaptive_rec.offline.compare.plan import NAME

    if out.exists() and not (out / NAME).is_file() and any(out.iterdir() if out.is_dir() else [out]):
        raise UsageError(f"--out must be a new directory or that of a comparison, {out} is neither")
    create_folder(out)
    check_own(out, (RUNS,))  # runs that are made again are removed first
    (out / RUNS).mkdir(exist_ok=True)
    return out / RUNS


def make_runs(plan: Plan, held: dict[str, Any], folder: Path, lock: Any, args: argparse.Namespace) -> int:
    """Do the missing runs and write the results after each. Returns the number of a signal that arrived, or 0."""
    from adaptive_rec.cli.compare_screen import Board
    from adaptive_rec.offline.compare.plan import code_digest, digest_values
    from adaptive_rec.offline.compare.processes import RunProcesses, WarmProcess, finished

    under, turns, out = digest_values(held), plan.turns(), folder.parent
    missing = [turn for turn in turns if finished(folder / turn.name, under) is None]
    with Board(missing, len(turns) - len(missing), to_stderr=args.json) as board:
        seeds = counted(len(plan.seeds), "seed")
        done = f": {len(turns) - len(missing)} of {len(turns)} runs are done" if missing != turns else ""
        what = "policies and variants" if plan.variants else "policies"
        board.note(printable(f"{len(plan.policies)} {what} x {seeds} in {out}{done}"))
        try:
            with WarmProcess(lock) as warm:
                runs = RunProcesses(out / SETTINGS, warm, under, code_digest(), args.keep_checkpoints, board.watch)
                for turn in missing:
                    board.begin(turn)
                    outcome = runs.make(turn, folder / turn.name)
                    results = write_results(plan, held, out, folder)
                    board.end(turn, outcome, figures_of(results, turn.policy, turn.seed))
        except Stopped as signal_came:
            return signal_came.number
    return 0


def figures_of(results: Results, policy: str, seed: int) -> dict[str, Any] | None:
    return next((run for run in results["runs"] if (run["policy"], run["seed"]) == (policy, seed)), None)


def write_results(plan: Plan, held: dict[str, Any], out: Path, folder: Path) -> Results:
    """Write figures, table and page of the runs finished so far."""
    from adaptive_rec.live.telemetry import to_json
    from adaptive_rec.offline.compare.compare_page import compare_page
    from adaptive_rec.offline.compare.results import collect_results
    from adaptive_rec.offline.compare.tables import markdown
    from adaptive_rec.offline.pages.page import write_page

    results = collect_results(plan, held, folder)
    write_page(to_json(results, indent=1) + "\n", out / FIGURES)
    write_page(markdown(results), out / TABLE)
    write_page(compare_page(results), out / PAGE)
    return results


def show_results(results: Results, out: Path, as_json: bool) -> None:
    """Print tables and statements, or all results as JSON."""
    if as_json:
        from adaptive_rec.live.telemetry import to_json

        print(to_json(results), flush=True)
        return
    from adaptive_rec.cli.compare_screen import show_comparison

    show_comparison(results, [out / name for name in (PAGE, TABLE, FIGURES)])


# Signals ---------------------------------------------------------------------------------------------------------------


class Stopped(BaseException):
    """A signal arrived during a run."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Let SIGINT and SIGTERM end the present run and the comparison; finished runs are kept."""

    def stop(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except Stopped as signal_came:
        raise SystemExit(128 + signal_came.number) from None  # between two runs
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def again(words: list[str], out: Path) -> str:
    """Return the command that continues the comparison."""
    import shlex

    given = any(word == "--out" or word.startswith("--out=") for word in words)
    return f"adaptive-rec {shlex.join([*words, *([] if given else [f'--out={out}'])])} continues"

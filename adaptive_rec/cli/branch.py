"""``branch``: a sibling of a run, from one of its checkpoints, with other settings."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_rec.cli import processes, train
from adaptive_rec.cli.launcher import Wanted
from adaptive_rec.cli.output import pairs, print_json, printable_path, say, waiting
from adaptive_rec.cli.parser import Parser, add_command, add_settings, number_settings
from adaptive_rec.cli.signals import ended_by_sigterm
from adaptive_rec.cli.start_options import add_start_options, check_start_options, start_words
from adaptive_rec.errors import AdaptiveRecError, UsageError
from adaptive_rec.units import counted, printable, size

if TYPE_CHECKING:
    from adaptive_rec.run.branching import Branch

EXAMPLES = """\
examples:
  adaptive-rec branch runs/long --set knobs.lr_factor=0.5 --out runs/half          from the newest checkpoint
  adaptive-rec branch runs/long --at 8000 --set knobs.policy=slipstream --out runs/skip --detach
  adaptive-rec branch runs/long --at 8000 --no-train --out runs/later              start it later by train --resume
"""


def add_commands(subparsers: Any) -> None:
    purpose = "start a new run from a checkpoint of another run, with other settings"
    parser = add_command(subparsers, "branch", branch, purpose, epilog=EXAMPLES)
    add = parser.add_argument
    add("directory", metavar="RUN", type=Path, help="run directory; the run may be training")
    add("--at", metavar="STEP", help="step or name of the checkpoint (default: the newest; checkpoint list shows them)")
    add("--steps", metavar="N", help="step at which the branch ends; 0: at the end of the data")
    add_settings(parser, "a key that may change when a run is resumed, every knob among them")
    add("--out", metavar="DIR", type=Path, required=True, help="run directory to create")
    add("--no-train", action="store_true", help="only make the directory, and print the command that starts it")
    add("--json", action="store_true", help="print only the summary, or with --no-train the branch, as JSON")
    add_start_options(parser)
    parser.set_defaults(processes=None)


def branch(args: argparse.Namespace) -> int:
    """Make the branch, then train it as `train --resume` does."""
    if processes.are_under_way():
        rule = "branch must be called once, not by each process of a launcher; make the branch with --no-train"
        raise UsageError(f"{rule}, then start train --resume --out DIR there")
    words = ["train", "--resume", f"--out={args.out}", *start_words(args)]
    started = train_arguments(words)
    check_start_options(started)  # an error here comes before there is a directory
    Wanted.of(started)
    waiting(f"branching from {args.directory}")
    from adaptive_rec.config.tree import load_config
    from adaptive_rec.policy.find import load_policy
    from adaptive_rec.run.branching import make_branch
    from adaptive_rec.run.inputs import check_trained
    from adaptive_rec.run.parent_history import METRICS

    check_trained(args.directory)
    settings = [*args.set, *number_settings({"run.steps": args.steps})]
    load_policy(load_config(str(args.directory / "config.toml"), os.environ, settings).knobs.policy)
    with ended_by_sigterm():
        command = shlex.join(["adaptive-rec", *args.argv])
        of_one = args.processes is None and not args.no_train
        made = make_branch(args.directory, args.at, args.out, os.environ, settings, command, of_one)
    if made.left_out.count:
        say(f"warning: {args.directory / METRICS}: {made.left_out} of the branch", sys.stderr)
    if args.no_train:
        print_branch(made, words, args.json)
        return 0
    say(in_a_line(made), sys.stderr if args.json else sys.stdout)
    return start_branch(made, started)


def start_branch(made: Branch, args: argparse.Namespace) -> int:
    """Train by `train --resume`. A branch that cannot start is removed, so that it can be made again."""
    try:
        code = train.train(args)
    except AdaptiveRecError:
        made.remove()
        raise
    if code:
        made.remove()
    return code


def train_arguments(words: list[str]) -> argparse.Namespace:
    """Return the arguments of a command line of `train`."""
    parser = Parser(prog="adaptive-rec")
    train.add_commands(parser.add_subparsers())
    args = parser.parse_args(words)
    args.argv = words
    return args


def in_a_line(made: Branch) -> str:
    return (
        f"{printable_path(made.out)} is a branch of {printable_path(made.parent.run)} at step {made.parent.step}, "
        f"{files_in_words(made)}"
    )


def files_in_words(made: Branch) -> str:
    """Return how many files were shared, and why others were copied."""
    shared = made.shared
    text = f"{counted(shared.linked, 'file')} shared ({size(shared.linked_bytes)})"
    if shared.copied:
        text += f", {counted(shared.copied, 'file')} copied ({size(shared.copied_bytes)}): {shared.refusal}"
    return text


def print_branch(made: Branch, words: list[str], as_json: bool) -> None:
    """Print a branch and the command that starts it."""
    from adaptive_rec.cli.output import show

    command = shlex.join(["adaptive-rec", *(word for word in words if word != "--json")])
    shared = made.shared
    if as_json:
        files = {"linked": shared.linked, "linked_bytes": shared.linked_bytes, "copied": shared.copied}
        files |= {"copied_bytes": shared.copied_bytes}
        print_json({"run": str(made.out), "parent": made.parent.place, "files": files, "start": command})
        return
    rows = [
        ("branch", printable_path(made.out)),
        ("of", f"{printable_path(made.parent.run)} at step {made.parent.step} ({made.parent.checkpoint})"),
        ("files", files_in_words(made)),
        ("start", printable(command)),
    ]
    show(pairs(rows))

"""``checkpoint import``: a run directory from tables that were trained elsewhere, for ``train --resume`` to go on from."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_rec.cli.output import columns, pairs, print_json, show, text
from adaptive_rec.cli.parser import Parser
from adaptive_rec.cli.signals import ended_by_sigterm
from adaptive_rec.system.durable import new_folder
from adaptive_rec.units import printable, whole

if TYPE_CHECKING:
    from adaptive_rec.checkpoint.importing import Imported
    from adaptive_rec.config.tree import Config

DESCRIPTION = """\
FILE is one of
  a folder of NAME.safetensors (an array `weight` each) or of NAME.npy
  a .safetensors file with keys embedding_bags.NAME.weight, under any prefix, as of TorchRec and of `export --as torchrec`
  a state_dict of torch.save with such keys, or NAME.weight; it is read with weights_only and no other way
Numbers may be of float16, bfloat16, float32 or float64; they become what the run keeps its rows in (run.row_precision).
The dense part is taken over where the file has tensors of the names and shapes of the run's own.
"""

EXAMPLES = """\
examples:
  adaptive-rec checkpoint import tables --config my.toml --out runs/NAME
  adaptive-rec checkpoint import model.pt --config tiny --set run.steps=1000 --out runs/NAME
  adaptive-rec train --resume --out runs/NAME            trains on from there
"""


def add_import(parts: Any) -> Parser:
    parser: Parser = parts.add_parser(
        "import", help="begin a run with tables trained elsewhere", description=DESCRIPTION, epilog=EXAMPLES
    )
    parser.set_defaults(command=import_tables)
    add = parser.add_argument
    add("path", metavar="FILE", type=Path, help="file or folder with the tables")
    add("--config", metavar="CONFIG", required=True, help="preset (tiny, criteo_kaggle, ...) or TOML file of the run")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="one key changed, as for train (repeatable)")
    add("--out", metavar="DIR", type=Path, required=True, help="run directory to make")
    add(
        "--partial",
        action="store_true",
        help="tables that FILE has not start fresh, those that only it has are left out",
    )
    return parser


def import_tables(args: argparse.Namespace) -> int:
    """Make the run directory, whole or not at all, and say what is in it."""
    from adaptive_rec.config.tree import load_config
    from adaptive_rec.policy.find import load_policy

    config = load_config(args.config, os.environ, args.set)
    load_policy(config.knobs.policy)  # a bad name is told before the seconds that torch takes
    try:
        with ended_by_sigterm(), new_folder(args.out) as draft:
            done, saved, notices = fill(draft, config, args)
    finally:
        progress("")
    tell(done, args.out, args.out / "checkpoints" / saved, args.json)
    for notice in notices:
        print(f"note: {printable(notice)}", file=sys.stderr)
    return 0


def fill(draft: Path, config: Config, args: argparse.Namespace) -> tuple[Imported, str, list[str]]:
    """Make a run directory with a checkpoint of the imported tables. Returns what was set, the checkpoint's name, and what else
    the user is to know."""
    from adaptive_rec import checkpoint
    from adaptive_rec.checkpoint.foreign import read_foreign
    from adaptive_rec.checkpoint.importing import import_tensors
    from adaptive_rec.run.training_run import TrainingRun

    foreign = read_foreign(args.path)
    training = TrainingRun(config, draft, command=args.argv)
    done = import_tensors(training.runtime.store, training.runtime.dense.model, foreign, args.partial, progress)
    progress("writing the checkpoint")
    name = checkpoint.save(training.runtime.parts, draft / "checkpoints").name
    said = f"checkpoint {name} written, with tables of {args.path}"
    training.note("checkpoint", said, checkpoint=name, imported=str(args.path))
    return done, name, list(training.runtime.notices)


def progress(doing: str) -> None:
    """What is done at the moment, for a person who waits."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{printable(doing)}", end="\r", file=sys.stderr, flush=True)


def tell(done: Imported, out: Path, saved: Path, as_json: bool) -> None:
    from dataclasses import asdict

    from adaptive_rec.checkpoint.foreign import shown

    if as_json:
        print_json({"run": str(out), "checkpoint": str(saved), **asdict(done)})
        return
    rows = [(each.name, whole(each.rows), str(each.dim), each.given, each.kept) for each in done.tables]
    counted = f"{done.dense_tensors} tensors {done.dense_note}".strip()
    rest = [
        ("fresh", shown(done.fresh)),
        ("left out", shown(done.left_out)),
        ("dense part", counted if done.dense_tensors else f"fresh: {done.dense_note}"),
        ("checkpoint", str(saved)),
        ("go on", f"adaptive-rec train --resume --out {shlex.quote(str(out))}"),
    ]
    show(columns(("table", "rows>", "dim>", "given in", "kept in"), rows), text(""), pairs(rest))

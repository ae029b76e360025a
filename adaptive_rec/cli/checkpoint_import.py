"""``checkpoint import``: creates a run directory from tables trained elsewhere, for ``train --resume``."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_rec.cli.output import columns, pairs, print_json, show, text
from adaptive_rec.cli.parser import Parser, add_command, add_settings
from adaptive_rec.cli.signals import ended_by_sigterm
from adaptive_rec.errors import ConfigError, UsageError
from adaptive_rec.system.durable import new_folder
from adaptive_rec.units import printable, whole

if TYPE_CHECKING:
    from adaptive_rec.checkpoint.importing import Imported
    from adaptive_rec.config.tree import Config

DESCRIPTION = """\
FILE is one of
  a folder of NAME.safetensors (an array `weight` each) or of NAME.npy
  a .safetensors file with keys embedding_bags.NAME.weight under any prefix, as TorchRec and `export --as torchrec` write it
  a folder that `export --as store` wrote of raw ids, in full, for a run with data.ids=raw
  a state_dict of torch.save with such keys, or NAME.weight; it is only read with weights_only
Numbers may be float16, bfloat16, float32 or float64; they are converted to run.row_precision.
The dense part is imported where the file has tensors with the names and shapes of the run.
"""

EXAMPLES = """\
examples:
  adaptive-rec checkpoint import tables --config my.toml --out runs/NAME
  adaptive-rec checkpoint import model.pt --config tiny --set run.steps=1000 --out runs/NAME
  adaptive-rec train --resume --out runs/NAME            continue training from there
"""


def add_import(parts: Any) -> Parser:
    purpose = "start a run with tables trained elsewhere"
    parser = add_command(parts, "import", import_tables, purpose, description=DESCRIPTION, epilog=EXAMPLES)
    add = parser.add_argument
    add("path", metavar="FILE", type=Path, help="file or folder with the tables")
    add("--config", metavar="CONFIG", required=True, help="preset (tiny, criteo_kaggle, ...) or TOML file of the run")
    add_settings(parser, "any other key, as for train")
    add("--out", metavar="DIR", type=Path, required=True, help="run directory to create")
    add("--partial", action="store_true", help="start tables that FILE lacks fresh, and ignore those only FILE has")
    return parser


def import_tables(args: argparse.Namespace) -> int:
    """Create the run directory, as a whole or not at all, and print its contents."""
    show_activity(f"reading {args.path} ...")
    from adaptive_rec.checkpoint.store_export import STORE
    from adaptive_rec.config.tree import load_config
    from adaptive_rec.policy.find import load_policy

    config = load_config(args.config, os.environ, args.set)
    if not args.path.exists():
        raise UsageError(f"FILE must be a file or a folder that exists, got {args.path}")
    has_keys = (args.path / STORE).is_file()
    if has_keys and config.data.ids != "raw":
        rule = "data.ids must be raw for rows by their raw ids (export --as store)"
        raise ConfigError(f"{rule}, as {args.path} has them, got {config.data.ids}")
    if config.data.ids == "raw" and not has_keys:
        raise UsageError(
            "FILE must say which id each row has where data.ids=raw: a folder that `checkpoint export RUN --as store` wrote in "
            f"full of a run with raw ids (with {STORE}), got {args.path}"
        )
    load_policy(config.knobs.policy)  # an error here comes before the seconds that torch takes
    try:
        with ended_by_sigterm(), new_folder(args.out) as draft:
            done, saved, notices = fill(draft, config, args)
    finally:
        show_activity("")
    print_imported(done, args.out, args.out / "checkpoints" / saved, args.json)
    for notice in notices:
        print(f"note: {printable(notice)}", file=sys.stderr)
    return 0


def fill(draft: Path, config: Config, args: argparse.Namespace) -> tuple[Imported, str, list[str]]:
    """Create a run directory with a checkpoint of the tables. Returns what was imported, the checkpoint's name, and notices."""
    from adaptive_rec import checkpoint
    from adaptive_rec.checkpoint.foreign import read_foreign
    from adaptive_rec.checkpoint.importing import import_tensors
    from adaptive_rec.checkpoint.store_import import import_store
    from adaptive_rec.run.training_run import TrainingRun

    foreign = None if config.data.ids == "raw" else read_foreign(args.path)
    training = TrainingRun(config, draft, command=args.argv)
    runtime = training.runtime
    store, model = runtime.store, runtime.dense.model
    if foreign is not None:
        done = import_tensors(store, model, foreign, args.partial, show_activity)
    else:
        keys = runtime.state.input.raw_ids
        assert keys is not None, "the configuration has raw ids"
        done = import_store(store, keys, model, args.path, config.run.seed, args.partial, show_activity)
    show_activity("writing the checkpoint")
    name = checkpoint.save(runtime.parts, draft / "checkpoints").name
    text = f"checkpoint {name} written, with tables of {args.path}"
    training.log.note("checkpoint", text, checkpoint=name, imported=str(args.path))
    return done, name, list(runtime.notices)


def show_activity(doing: str) -> None:
    """Show the present activity on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{printable(doing)}", end="\r", file=sys.stderr, flush=True)


def print_imported(done: Imported, out: Path, saved: Path, as_json: bool) -> None:
    from dataclasses import asdict

    from adaptive_rec.checkpoint.foreign import names_in_sentence

    if as_json:
        print_json({"run": str(out), "checkpoint": str(saved), **asdict(done)})
        return
    rows = [(each.name, whole(each.rows), str(each.dim), each.given, each.kept) for each in done.tables]
    counted = f"{done.dense_tensors} tensors {done.dense_note}".strip()
    rest = [
        ("fresh", names_in_sentence(done.fresh)),
        ("left out", names_in_sentence(done.left_out)),
        ("dense part", counted if done.dense_tensors else f"fresh: {done.dense_note}"),
        ("checkpoint", str(saved)),
        ("continue", f"adaptive-rec train --resume --out {shlex.quote(str(out))}"),
    ]
    show(columns(("table", "rows>", "dim>", "given in", "kept in"), rows), text(""), pairs(rest))

"""``data prepare`` and ``data verify``: turn click logs into a folder of arrays that training reads."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from adaptive_rec.cli.output import pairs, print_json, printable_path, say, show, waiting
from adaptive_rec.cli.own_data import files_with_rows, found_files
from adaptive_rec.cli.own_schema import schema_to_use
from adaptive_rec.cli.parser import Parser, add_command, add_schema_options, describes_files
from adaptive_rec.data.prepare.recipe import formats, recipes
from adaptive_rec.data.tabular.files import DataFiles
from adaptive_rec.errors import UsageError
from adaptive_rec.units import clock, count, counted, size, whole

if TYPE_CHECKING:
    from adaptive_rec.data.prepare.meta import Meta
    from adaptive_rec.data.tabular.schema import Schema

EXAMPLES = """\
examples:
  adaptive-rec data prepare day_0.gz day_1.gz --out criteo   Criteo TSV files (plain, .gz, .zst)
  adaptive-rec data prepare train.csv.zst --out avazu --min-count 2
  adaptive-rec data prepare clicks.csv --label clicked --out clicks           CSV, TSV or Parquet
  adaptive-rec data prepare clicks.parquet --schema clicks.toml --out clicks
  adaptive-rec data prepare UserBehavior.csv --out taobao    rows with a history, then: train taobao_tbsm --data taobao
  adaptive-rec train --data criteo                           train from the folder
  adaptive-rec data verify criteo                            check every checksum; train --verify does it before a run
"""

DESCRIPTION = """\
Turn click logs into memory-mapped arrays with contiguous ids, in bounded memory. An interrupted command continues when it
is started again. The rows keep the order of the sources."""

EXAMPLE = """\
  adaptive-rec data prepare day_0.gz --out criteo        click logs of any size, then train --data criteo
"""


def add_commands(subparsers: Any) -> None:
    purpose = "prepare click logs for training, or verify a prepared folder"
    parser: Parser = subparsers.add_parser("data", help=purpose, description=f"{purpose.capitalize()}.")
    parts = parser.add_subparsers(metavar="COMMAND", title="commands", required=True)
    purpose = "turn click logs into a folder of arrays"
    parser = add_command(parts, "prepare", prepare, purpose, description=DESCRIPTION, epilog=EXAMPLES)
    add = parser.add_argument
    add("sources", nargs="+", metavar="SRC", type=Path, help="files, in the order of their rows")
    add("--out", metavar="DIR", type=Path, required=True, help="folder to create; DIR.part until it is complete")
    add("--format", choices=("auto", *formats()), default="auto", help="default: auto, which looks at the first line")
    add(
        "--min-count",
        metavar="N",
        type=int,
        help="values that occur less often share one id (default: 1, or that of the schema)",
    )
    longest = "longest history of a row, for globo_sequence and taobao (default: 20)"
    add("--history", metavar="N", type=int, help=longest)
    add_schema_options(parser, "the folder keeps them, and train --data DIR --time COLUMN reads rows in their order")
    add(
        "--on-bad-row",
        choices=("error", "skip"),
        default="error",
        help="stop at a malformed row (the default) or skip it",
    )
    add(
        "--seed", metavar="N", type=int, default=1, help="seed of random choices, such as negative samples (default: 1)"
    )
    add("--json", action="store_true", help="print the result as JSON; progress goes to stderr")
    parser = add_command(parts, "verify", verify, "check a prepared folder as training does, and every checksum")
    parser.add_argument("directory", metavar="DIR", type=Path, help="prepared folder")


def prepare(args: argparse.Namespace) -> int:
    """Prepare a folder and print a summary."""
    if args.out.exists():
        raise UsageError(f"--out must be a new directory, {args.out} exists")
    waiting(f"preparing {args.out}")
    from adaptive_rec.cli.progress import StageBar, compiling_shown
    from adaptive_rec.data.prepare.job import Request
    from adaptive_rec.data.prepare.prepare import prepare_folder as run

    started = time.monotonic()
    schema, sources = schema_of_sources(args)
    request = Request(
        tuple(sources), args.out, args.format, schema, args.on_bad_row, args.min_count, args.seed, args.history
    )
    note_order(args.sources)
    try:
        with StageBar(sys.stderr if args.json else sys.stdout) as bar, compiling_shown(bar):
            meta = run(request, bar.show)
    except KeyboardInterrupt:
        print("stopped; the same command continues from here", file=sys.stderr)
        raise
    if args.json:
        print_json({"directory": str(args.out), **meta.model_dump(mode="json", exclude={"job"})})
        return 0
    show(pairs(prepared_facts(meta, args, time.monotonic() - started)))
    return 0


def schema_of_sources(args: argparse.Namespace) -> tuple[Schema | None, list[Path]]:
    """Return the schema of CSV, TSV or Parquet sources, that of --schema, or one inferred for --label and written to
    DIR.schema.toml; and the sources that have rows, the files of folders among them."""
    if not describes_files(args):
        return None, args.sources
    from adaptive_rec.data.tabular.first_rows import Reading

    stream = sys.stderr if args.json else sys.stdout
    kept = args.out.with_name(args.out.name + ".schema.toml")
    parts = [found_files(source, stream) for source in args.sources]
    named = dict.fromkeys(name for part in parts for name in part.partitions)
    found = DataFiles([file for part in parts for file in part.files], partitions=tuple(named))
    schema = schema_to_use(args, found, kept, Reading(args.on_bad_row == "skip"), stream)
    return schema, files_with_rows(found, schema, stream)


def verify(args: argparse.Namespace) -> int:
    """Check a folder and compare every file with its checksum. The first difference is an error."""
    verify_folder(args.directory, sys.stdout)
    return 0


def verify_folder(folder: Path, stream: TextIO) -> None:
    """Check a folder, with progress on a stream, and write there that it is whole. Raises DataError for the first fault."""
    waiting(f"verifying {folder}")
    from adaptive_rec.cli.progress import StageBar
    from adaptive_rec.data.prepare.checksums import verify_checksums as run
    from adaptive_rec.data.prepare.meta import load_meta

    meta = load_meta(folder)
    with StageBar(stream) as bar:
        run(folder, meta, bar.show)
    files = [file.size_bytes for file in meta.array_files()]
    found = f"{counted(len(files), 'file')}, {size(sum(files))}, {counted(meta.rows, 'row')}"
    say(f"{printable_path(folder)} is whole: {found}", stream)


def verify_source(source: str, stream: TextIO) -> None:
    """Check the prepared folder that a run reads. Raises UsageError where it reads something else."""
    from adaptive_rec.data.open import check_file
    from adaptive_rec.data.prepare.place import is_prepared

    folder = Path(source)
    if source == "synthetic" or os.path.isfile(folder):
        raise UsageError(f"--verify needs a prepared folder as --data, which has checksums; got {source}")
    if not is_prepared(folder):
        check_file(folder)
    verify_folder(folder, stream)


def note_order(sources: list[Path]) -> None:
    """Warn where a shell has sorted day_10 before day_2: training and test ranges go by position."""
    import re

    def natural(path: Path) -> list[int | str]:
        return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]

    if sources == sorted(sources) and sources != sorted(sources, key=natural):
        names = ", ".join(path.name for path in sources[:4])
        say(f"note: rows keep the order {names}, ...; list the files in numerical order if you want that", sys.stderr)


def prepared_facts(meta: Meta, args: argparse.Namespace, seconds: float) -> list[tuple[str, str]]:
    """Return the facts of a prepared folder as pairs of label and value."""
    files = f" of {counted(len(meta.sources), 'file')}" if len(meta.sources) > 1 else ""
    largest = max(meta.tables, key=lambda table: table.rows)
    ids = sum(table.rows for table in meta.tables)
    tables = f"{len(meta.tables)} with {count(ids)} rows in all, the largest {largest.name} of {count(largest.rows)}"
    bags = sum(column.bag for column in meta.columns)
    beside = [array.removesuffix("_B") for array in meta.beside if array != "times_B"]
    with_bags = f", {bags} of them with bags" if bags else ""
    return [
        ("rows", f"{whole(meta.rows)}{files}{meta.left_out}"),
        ("columns", ", ".join([f"{len(meta.dense_names)} dense, {len(meta.columns)} sparse{with_bags}", *beside])),
        ("tables", tables),
        ("size", size(sum(file.size_bytes for file in meta.array_files()))),
        ("time", f"{clock(seconds)}, {count(meta.rows / max(seconds, 1e-9))} rows/s"),
        ("directory", str(args.out)),
        ("train", " ".join(["adaptive-rec train", *map(shlex.quote, words_to_train(meta, args))])),
    ]


def words_to_train(meta: Meta, args: argparse.Namespace) -> list[str]:
    """Return the words with which a folder is trained as it was prepared: what the options asked for is asked for again."""
    recipe = recipes().get(meta.job.format)
    words = [recipe.preset] if recipe and recipe.preset else []
    words += ["--data", str(args.out)]
    if args.time is not None:
        words += ["--time", args.time]
    if meta.columns_schema is not None and meta.columns_schema.implicit is not None:
        words += ["--negatives", "4"]
    return words

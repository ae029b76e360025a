"""``checkpoint list``, ``verify``, ``diff`` and ``export``: work on the checkpoints of a run."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_rec.cli.checkpoint_import import add_import, show_activity
from adaptive_rec.cli.checkpoint_paths import checkpoints_at, with_found
from adaptive_rec.cli.checkpoint_verify import verify
from adaptive_rec.cli.output import columns, print_json, say, show
from adaptive_rec.cli.parser import Parser, add_command
from adaptive_rec.cli.signals import ended_by_sigterm
from adaptive_rec.errors import UsageError
from adaptive_rec.units import size, whole

if TYPE_CHECKING:
    from adaptive_rec.checkpoint.difference import ArrayDifference

EXAMPLES = """\
examples:
  adaptive-rec checkpoint                                the run under way writes a checkpoint now
  adaptive-rec checkpoint list runs/NAME
  adaptive-rec checkpoint verify runs/NAME               every byte of every checkpoint of a run
  adaptive-rec checkpoint verify runs/NAME/checkpoints/step-000000800    one, and those that it builds on
  adaptive-rec checkpoint diff runs/ONE runs/OTHER       the newest of both; exit code 1 where they differ
  adaptive-rec checkpoint export runs/NAME --out tables --as torchrec
  adaptive-rec checkpoint export runs/NAME --since runs/NAME/checkpoints/step-000000800 --out changes    by ids
  adaptive-rec checkpoint import tables --config tiny --out runs/NEW
"""


def add_checkpoint_commands(parser: Parser) -> None:
    """Add the subcommands of `checkpoint`, which by itself has a run under way write a checkpoint."""
    parser.epilog = EXAMPLES
    parts = parser.add_subparsers(metavar="COMMAND", title="commands for existing checkpoints")
    run_or_one = "run directory, or one checkpoint of it"
    newest = f"{run_or_one}; of a run, the newest whole one"
    listing = add_command(parts, "list", list_them, "list the checkpoints of a run, oldest first")
    listing.add_argument("path", metavar="RUN", type=Path, help="run directory")
    check = add_command(parts, "verify", verify, "read every byte again and compare checksums")
    check.add_argument("path", metavar="RUN|CHECKPOINT", type=Path, help=run_or_one)
    compared = add_command(parts, "diff", diff, "show which arrays and values differ, and by how much")
    for name in ("A", "B"):
        compared.add_argument(name.lower(), metavar=name, type=Path, help=newest)
    exported = add_command(parts, "export", export, "write the tables for other programs")
    add = exported.add_argument
    add("path", metavar="RUN|CHECKPOINT", type=Path, help=newest)
    add("--out", metavar="DIR", type=Path, required=True, help="folder to create")
    forms = "a file for each table (safetensors, the default, or npy), one with TorchRec's names for load_state_dict (torchrec), "
    forms += "or ids with their rows for a serving store (store)"
    add("--as", dest="form", choices=("safetensors", "npy", "torchrec", "store"), help=forms)
    sizes = 'safetensors: write larger tables in several files, each of at most so many bytes of rows ("2GiB"); tables.json '
    sizes += "says which rows are where"
    add("--part-size", metavar="SIZE", help=sizes)
    since = "write for a serving store what changed since this earlier checkpoint"
    add("--since", metavar="RUN|CHECKPOINT", type=Path, help=since)
    for each in (listing, check, compared, exported, add_import(parts)):
        each.add_argument("--json", action="store_true", help="print the result as JSON")


def list_them(args: argparse.Namespace) -> int:
    """Print the checkpoints by their manifests, the only files read, and the sizes of the others, the newest looked at first."""
    from adaptive_rec.checkpoint.listing import entries

    paths = checkpoints_at(args.path)
    looked = entries(paths[0].parent, [path.name for path in reversed(paths)])
    found = [entry for entry in looked if entry["error"] is None or (paths[0].parent / entry["name"]).exists()][::-1]
    if args.json:
        print_json(found)
        return 0
    heading = ("checkpoint", "step>", "written", "kind", "builds on", "files>", "rows>", "size>", "")
    show(columns(heading, [checkpoint_cells(entry) for entry in found]))
    return 0


def checkpoint_cells(entry: dict[str, Any]) -> tuple[str, ...]:
    why = entry["not_looked_at"]
    note = entry["error"] or (f"not looked at: {why}" if why else "")
    if "written" not in entry:
        return entry["name"], "", "", "", "", "", "", "", note
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["written"]))
    sizes = whole(entry["files"]), size(entry["rows_bytes"]), size(entry["size_bytes"])
    return entry["name"], whole(entry["step"]), when, entry["kind"], entry["builds_on"] or "", *sizes, note


def diff(args: argparse.Namespace) -> int:
    """Print the differences. Returns 1 where there are any, as diff(1) does."""
    show_activity(f"comparing {args.a} and {args.b} ...")
    from dataclasses import asdict

    from adaptive_rec.checkpoint.difference import find_differences
    from adaptive_rec.checkpoint.files import DISK

    try:
        (a, b), found = with_found(lambda a, b: list(find_differences(DISK, a, b)), args.a, args.b)
    finally:
        show_activity("")
    if args.json:
        print_json({"a": str(a), "b": str(b), "differences": [asdict(each) for each in found]})
    elif found:
        arrays = [each for each in found if not each.file.endswith(".json")]
        heads = ("table or file", "array", "rows that differ>", "by at most>", "on average>", "")
        if arrays:
            show(columns(heads, map(differing, arrays)))
        values = [(each.name, each.a, each.b) for each in found if each not in arrays]
        if values:
            if arrays:
                print()
            show(columns(("value", "A", "B"), values))
    else:
        say(f"{a} and {b} are the same, bit by bit (measured times are not compared)")
    return 1 if found else 0


def differing(found: ArrayDifference) -> tuple[str, ...]:
    file = found.file.removesuffix(".safetensors")
    if found.keys is not None:
        return file, found.name, "", "", "", ", ".join(f"{whole(count)} {what}" for what, count in found.keys.items())
    if found.kind != "values":
        note = f"{found.kind} {found.a}, {found.b}" if found.a else found.kind
        return file, found.name, "", "", "", note
    apart = ["not a number" if value is None else f"{value:.3g}" for value in (found.largest, found.mean)]
    return file, found.name, f"{whole(found.rows)} of {whole(found.of_rows)}", *apart, ""


def export(args: argparse.Namespace) -> int:
    """Write the weights of all tables, or what changed of them, and print the files."""
    form = args.form or ("safetensors" if args.since is None else "store")
    if args.since is not None and form != "store":
        raise UsageError(f"--since goes with --as store, which has ids to compare by, got --as {form}")
    if args.part_size is not None and form != "safetensors":
        raise UsageError(f"--part-size goes with --as safetensors, whose tables may have several files, got --as {form}")
    show_activity(f"reading {args.path} ...")
    from adaptive_rec.checkpoint.export import export_weights as tables
    from adaptive_rec.checkpoint.store_export import export_for_store

    def run(found: Path, since: Path | None = None) -> list[Path]:
        return export_for_store(found, since, args.out) if form == "store" else tables(found, args.out, form, args.part_size)

    named = [path for path in (args.path, args.since) if path is not None]
    try:
        with ended_by_sigterm():
            found, paths = with_found(run, *named)
    finally:
        show_activity("")
    if args.json:
        since = {"since": str(found[1])} if args.since is not None else {}
        print_json({"checkpoint": str(found[0]), **since, "files": [str(path) for path in paths]})
    else:
        show(columns(("file", "size>"), [(str(path), size(path.stat().st_size)) for path in paths]))
    return 0

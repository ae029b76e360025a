"""``export`` and ``nearest``: a trained model for other programs, and what it has learned of an item."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from adaptive_rec.cli.output import columns, pairs, print_json, say, show, text, waiting
from adaptive_rec.cli.parser import add_checkpoint_option, add_command, whole_number
from adaptive_rec.data.tabular.files import files_of
from adaptive_rec.errors import UsageError
from adaptive_rec.units import size, whole

EXAMPLES = """\
examples:
  adaptive-rec export runs/NAME --to model               dense part, tables, values of ids, transforms, and model.py that loads
  them
  python model/model.py rows.csv                         scores, with torch and numpy alone
  adaptive-rec checkpoint export runs/NAME --as store --out rows    rows by id for a serving store; --since: what changed
  adaptive-rec nearest runs/NAME item_id "item 17"       the items that are most like this one
"""
MOST_NEAREST = 1000


def add_commands(subparsers: Any) -> None:
    purpose = "write a trained model to a folder that plain PyTorch reads"
    parser = add_command(subparsers, "export", export, purpose, epilog=EXAMPLES)
    add = parser.add_argument
    add("directory", metavar="RUN", type=Path, help="run directory")
    add("--to", metavar="DIR", type=Path, required=True, help="folder to create")
    add_checkpoint_option(parser)
    add("--onnx", action="store_true", help="also model.onnx (needs onnx and onnxscript)")
    add("--json", action="store_true", help="print the result as JSON")
    parser = add_command(
        subparsers, "nearest", nearest, "list the values of a column whose rows are most like that of one value"
    )
    add = parser.add_argument
    add("directory", metavar="RUN", type=Path, help="run directory")
    add("column", metavar="COLUMN", help="a sparse column of the training data")
    add("value", metavar="VALUE", help="one of its values")
    add("--limit", metavar="N", default="10", help=f"values to list, at most {MOST_NEAREST} (default: 10)")
    add_checkpoint_option(parser)
    named = "raw ids that are texts: CSV, TSV or Parquet data with that column, to find the texts in"
    add("--data", metavar="PATH", type=Path, help=named)
    add("--json", action="store_true", help="print them as JSON")


def export(args: argparse.Namespace) -> int:
    """Write the model and print its files."""
    from adaptive_rec.run.inputs import check_own_data, check_trained
    from adaptive_rec.system.durable import check_new_folder

    check_new_folder(args.to, "--to")
    check_trained(args.directory)
    check_own_data(args.directory)
    waiting(f"loading {args.directory}")
    from adaptive_rec.offline.export.write import export_model

    made = export_model(args.directory, args.to, args.onnx, warn, args.checkpoint)
    if args.json:
        figures = {"checked_rows": made.checked_rows, "largest_difference": made.largest_difference, "step": made.step}
        print_json({**figures, **made.chosen.figures(), "files": [str(path) for path in made.files]})
        return 0
    show(columns(("file", "size>"), [(str(path), size(path.stat().st_size)) for path in made.files]))
    difference = f"the largest difference is {made.largest_difference:.1e}"
    kind = "made-up" if made.made_up else "held-out"
    checked = f"{whole(made.checked_rows)} {kind} rows, scored by {args.to / 'model.py'} too: {difference}"
    show(pairs([("model", str(made.chosen)), ("checked", checked)]))
    return 0


def warn(words: str) -> None:
    say(f"warning: {words}", sys.stderr)


def nearest(args: argparse.Namespace) -> int:
    """List the nearest values with their cosine similarity."""
    limit = whole_number("--limit", args.limit, 1, MOST_NEAREST)
    try:
        args.value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"VALUE must be text in UTF-8, got {args.value!r}") from None
    from adaptive_rec.run.inputs import check_has_ids, check_trained

    check_trained(args.directory)
    check_has_ids(args.directory)
    if args.data is not None:
        files_of(args.data)
    waiting(f"loading {args.directory}")
    from adaptive_rec.offline.export.nearest import nearest_values

    found, chosen = nearest_values(args.directory, args.column, args.value, limit, warn, args.data, args.checkpoint)
    if args.json:
        print_json([{"value": each.value, "id": each.id, "similarity": round(each.similarity, 6)} for each in found])
        return 0
    rows = [("" if each.value is None else str(each.value), str(each.id), f"{each.similarity:.4f}") for each in found]
    say(f"model  {chosen}", sys.stderr)
    show(text(f"{args.column}: most like {args.value}"), columns(("value", "id>", "similarity>"), rows))
    return 0

"""``predict``: scores of new rows, in their order, as a Parquet or CSV file."""

from __future__ import annotations

import argparse
import csv
import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptive_rec.cli.output import pairs, print_json, say, show, waiting
from adaptive_rec.cli.parser import add_checkpoint_option, add_command
from adaptive_rec.data.tabular.files import find_files
from adaptive_rec.errors import DataError, UsageError
from adaptive_rec.system.drafts import draft_file
from adaptive_rec.units import count, percent, readable, whole

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from adaptive_rec.data.tabular.kept import KeptColumns
    from adaptive_rec.data.unknown import Unknown
    from adaptive_rec.run.scoring import Scorer

ENDINGS = (".parquet", ".csv", ".tsv")
MANY = {"unknown": 0.5, "shared": 0.95}
"""Shares of unknown values, and of ids without a row of their own, from which on a column looks like another one. Many ids of new
rows may be rare ones."""
EXAMPLES = """\
examples:
  adaptive-rec predict runs/NAME --data new.csv --out scores.parquet
  adaptive-rec eval runs/NAME --data labelled.csv                       the quality on other rows with labels
"""


def add_commands(subparsers: Any) -> None:
    purpose = "score new rows with a trained model"
    parser = add_command(subparsers, "predict", predict, purpose, epilog=EXAMPLES)
    add = parser.add_argument
    add("directory", metavar="RUN", type=Path, help="run directory")
    add(
        "--data",
        metavar="PATH",
        type=Path,
        required=True,
        help="CSV, TSV or Parquet file with the columns of the training data, or a folder",
    )
    add(
        "--out",
        metavar="FILE",
        type=Path,
        required=True,
        help="file to create: .parquet, .csv or .tsv, one score a row in their order",
    )
    add_checkpoint_option(parser)
    kept = "columns to write before the scores (default: those that look like keys of the rows, such as id; '': none)"
    add("--keep", metavar="COLUMN,...", help=kept)
    add("--json", action="store_true", help="print the figures as JSON")


def predict(args: argparse.Namespace) -> int:
    """Score rows and print how many values were unknown to the model."""
    out = args.out
    if out.suffix not in ENDINGS:
        raise UsageError(f"--out must end in {', '.join(ENDINGS)}, got {out}")
    if out.exists():
        raise UsageError(f"--out must be a new file, {out} exists")
    if not out.absolute().parent.is_dir():
        raise UsageError(f"--out must be a file in a folder that exists, got {out}")
    files = inputs_of(args.directory, args.data)
    started = time.monotonic()
    waiting(f"loading {args.directory}")
    from adaptive_rec.run.scoring import Scorer

    scorer = Scorer(args.directory, files, False, lambda text: say(f"warning: {text}", sys.stderr), args.checkpoint)
    loaded = time.monotonic()
    kept = kept_columns(args.keep, files, scorer)
    with scores_written(out, kept) as append:
        for part in scorer.scored():
            append(part.scores_B)
        if not scorer.rows:
            raise DataError(f"--data must hold at least one row, {args.data} has none")
    seconds = time.monotonic() - loaded
    found = strangers(scorer)
    if args.json:
        figures: dict[str, Any] = {"rows": scorer.rows, "step": scorer.step, "seconds": round(time.monotonic() - started, 3)}
        figures |= {**scorer.chosen.figures(), **ratios(found)}
        print_json({**figures, "kept": list(kept.names if kept else ()), "out": str(out)})
    else:
        rate = f"{whole(scorer.rows)}, {count(scorer.rows / max(seconds, 1e-9))} a second once the model was loaded"
        unknown = [(name, unknown_in_words(name, of)) for name, of in found.items()]
        beside = ", ".join(map(readable, kept.names)) if kept else ""
        show(pairs([("model", str(scorer.chosen)), ("rows", rate), *unknown, ("kept", beside), ("scores", str(out))]))
    for words in strangers_in_words(found):
        say(f"warning: {words}", sys.stderr)
    return 0


def inputs_of(run: Path, data: Path) -> list[Path]:
    """Return the files of --data, after all checks that need no torch. Raises UsageError or DataError."""
    from adaptive_rec.data.prepare.formats import check_source
    from adaptive_rec.run.inputs import check_own_data, check_trained

    check_trained(run)
    check_own_data(run)
    found = find_files(data)
    if found.left_out:
        say(f"note: not read of {data}: {found.left_out}", sys.stderr)
    for file in found.files:
        check_source(file)
    return found.files


def kept_columns(named: str | None, files: list[Path], scorer: Scorer) -> KeptColumns | None:
    """Return the columns to write beside the scores; None where there are none. Raises UsageError or DataError."""
    from adaptive_rec.data.tabular.kept import KeptColumns

    names = None if named is None else [name for name in next(csv.reader([named]), []) if name]
    if scorer.schema is None:
        if names:
            raise UsageError(f"--keep must name columns of CSV, TSV or Parquet files, got {named} for a public log; leave it out")
        return None
    kept = KeptColumns(files, scorer.schema, names)
    return kept if kept.names else None


def strangers(scorer: Scorer) -> dict[str, dict[str, Unknown]]:
    """Return what the model does not know, by column: values without a number (`unknown`), raw ids without a row of their own
    (`shared`)."""
    return {name: found for name, found in (("unknown", scorer.unknown), ("shared", scorer.shared)) if found}


def ratios(found: dict[str, dict[str, Unknown]]) -> dict[str, dict[str, float]]:
    """Return the share of each column's lookups whose value the model does not know."""
    return {name: {column: each.ratio for column, each in of.items()} for name, of in found.items()}


def unknown_in_words(name: str, found: dict[str, Unknown]) -> str:
    """Say which share of the lookups are of values that the model does not know, and of which columns."""
    columns = ", ".join(f"{column} {percent(each.ratio)}" for column, each in found.items() if each.unknown)
    if name == "unknown":
        return columns or "no value was unknown to the model"
    shared, lookups = sum(each.unknown for each in found.values()), sum(each.lookups for each in found.values())
    if not shared:
        return "no lookup: each id has a row of its own"
    return f"{percent(shared / lookups)} of the lookups are of ids without a row of their own: {columns}"


def strangers_in_words(found: dict[str, dict[str, Unknown]]) -> Iterator[str]:
    """Say which columns have mostly unknown values: their type or their meaning may be another one."""
    for name, of in found.items():
        what = "values of {} are unknown to the model" if name == "unknown" else "ids of {} have no row of their own"
        for column, each in of.items():
            if each.ratio > MANY[name]:
                yield f"{percent(each.ratio)} of the {what.format(readable(column))}; is it the same column?"


@contextmanager
def scores_written(out: Path, kept: KeptColumns | None = None) -> Iterator[Any]:
    """Write scores to a file, part by part, behind the columns that are kept; it appears when all of them are in it. Raises
    UsageError where it cannot be written."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    beside = pa.schema([]) if kept is None else kept.schema
    typed = out.suffix == ".parquet"
    if not typed:
        beside = pa.schema([_as_text(field, out) for field in beside])
    schema = beside.append(pa.field("score", pa.float32()))

    def append(scores_B: NDArray[np.float32]) -> None:
        columns = [] if kept is None else kept.take(len(scores_B)).columns
        if not typed:
            columns = [pa.chunked_array(map(_readable, each.chunks), _readable(pa.nulls(0, each.type)).type) for each in columns]
        columns = [each.cast(field.type) for each, field in zip(columns, beside, strict=True)]
        with errors_of(out):
            writer.write_table(pa.table([*columns, pa.array(scores_B)], schema=schema))

    with ExitStack() as stack:
        with errors_of(out):
            draft, _ = stack.enter_context(draft_file(out))
            if typed:
                writer: Any = parquet.ParquetWriter(draft, schema)
            else:
                delimiter = "\t" if out.suffix == ".tsv" else ","
                writer = arrow_csv.CSVWriter(draft, schema, write_options=arrow_csv.WriteOptions(delimiter=delimiter))
        try:
            yield append
        finally:
            with errors_of(out):
                writer.close()
        with errors_of(out):
            os.replace(draft, out)


def _as_text(field: pa.Field, out: Path) -> pa.Field:
    """Return a column as a CSV file can have it. Raises UsageError where it cannot."""
    import pyarrow as pa

    kind: Any = _readable(pa.nulls(0, field.type)).type
    plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind) or pa.types.is_binary(kind)
    try:
        if not plain:
            pa.array([], kind).cast(pa.string())
    except pa.ArrowException:
        rule = f"--keep must name columns that {out.suffix[1:].upper()} can hold, {field.name} has type {field.type}"
        raise UsageError(f"{rule}; give --out a name that ends in .parquet") from None
    return field.with_type(kind if plain else pa.string())


def _readable(values: pa.Array) -> pa.Array:
    """Return values without dictionaries, and those of an extension or of bytes of a fixed length as the readers see them: a
    UUID as its text."""
    import pyarrow as pa

    from adaptive_rec.data.tabular.canonical import canonical

    kind: Any = values.type
    if pa.types.is_dictionary(kind):
        return values.dictionary_decode()
    return canonical(values) if isinstance(kind, pa.BaseExtensionType) or pa.types.is_fixed_size_binary(kind) else values


@contextmanager
def errors_of(out: Path) -> Iterator[None]:
    """Turn an error of writing into one that names --out; those of reading the rows are others."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"--out {shlex.quote(str(out))} cannot be written: {error.strerror or error}") from None

"""The schema of a user's own files: that of --schema, the one that an earlier run has written, or one that is inferred."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from adaptive_rec.cli import own_columns
from adaptive_rec.cli.output import printable_path, say
from adaptive_rec.errors import UsageError
from adaptive_rec.run.new_directory import replace_text
from adaptive_rec.units import printable, readable

if TYPE_CHECKING:
    from adaptive_rec.data.tabular.files import DataFiles
    from adaptive_rec.data.tabular.first_rows import Reading
    from adaptive_rec.data.tabular.infer import Inferred
    from adaptive_rec.data.tabular.schema import Schema
    from adaptive_rec.data.tabular.schema_columns import ImplicitPart
    from adaptive_rec.data.tabular.schema_file import FileSchema

EARLIER = ", as an earlier run wrote it or you edited it"


@dataclass(frozen=True)
class InferredFrom:
    """What the first line of an inferred schema says of it: for other data it is inferred anew, unless somebody has edited it."""

    path: str
    """The file whose rows it was inferred from, absolute."""
    unedited: bool

    @classmethod
    def of(cls, text: str) -> InferredFrom | None:
        """Return what the text of a schema says of itself; None where it says nothing."""
        first, _, rest = text.partition("\n")
        found = re.fullmatch(r"# Inferred from (.*) \(([0-9a-f]{8})\)\. Edit it and run the same command again\.", first)
        return cls(found[1], found[2] == digest(rest)) if found else None

    @staticmethod
    def begin(source: Path, text: str) -> str:
        """Return an inferred schema with its first line."""
        path = printable(os.path.abspath(source))
        return f"# Inferred from {path} ({digest(text)}). Edit it and run the same command again.\n{text}"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def schema_to_use(
    args: argparse.Namespace,
    found: DataFiles,
    kept: Path,
    reading: Reading,
    stream: TextIO,
    numbered: bool = True,
) -> Schema:
    """Return the schema of --schema, the one that an earlier run has written to `kept`, or one that is inferred and written
    there, with the columns of --time, --weight and --group. `numbered`: values will be numbered, for which `min_count` counts.
    Of files that are followed the first one is read."""
    schema = found_schema(args, found, kept, reading, stream, numbered)
    where = found.files[0], args.schema or kept, reading
    return own_columns.with_beside(own_columns.timed(schema, args.time, *where), args, *where)


def found_schema(
    args: argparse.Namespace, found: DataFiles, kept: Path, reading: Reading, stream: TextIO, numbered: bool
) -> Schema:
    """Return as `schema_of` does; only a schema that is inferred here has the columns of the options."""
    from adaptive_rec.data.tabular.infer import infer
    from adaptive_rec.data.tabular.schema import load_schema, schema_of_toml
    from adaptive_rec.data.tabular.schema_file import FileSchema
    from adaptive_rec.data.tabular.schema_text import schema_toml

    sources = found.files
    written = file_part(args)
    if args.schema is not None and written is None:
        schema = checked(load_schema(args.schema), args, args.schema, "", stream)
        say_lacking(found, schema, reading, stream)
        return schema
    data = kept.read_bytes() if kept.exists() else None  # once: another start may replace it, for other data
    text = (data or b"").decode(errors="replace")
    before = InferredFrom.of(text)
    of_other = before is not None and before.path != printable(os.path.abspath(sources[0]))
    known = None if data is None or written is not None else schema_of_toml(data, f"--schema {kept}")
    if known is not None and not (before and before.unedited):
        edited = f", which was inferred from {printable_path(before.path)} and edited" if before and of_other else EARLIER
        say_lacking(found, known, reading, stream)
        return checked(known, args, kept, edited, stream)
    from adaptive_rec.data.prepare.formats import check_source

    for source in sources:
        check_source(source)
    file = (written or FileSchema()).model_copy(update={"partitions": found.partitions} if found.partitions else {})
    others = [] if reading.grows else sources[1:]
    implicit = choice_of(args) or (known.implicit if known and not args.label else None)
    inferred = infer(sources[0], args.label or (known.label if known else ""), reading, others, file, implicit)
    inferred = own_columns.inferred_in_time(inferred, args.time, sources[0], kept, reading)
    inferred = own_columns.inferred_with_beside(inferred, args, sources[0], kept, reading)
    resumes = getattr(args, "resume", False)
    same = known is not None and not contradiction(args, known) and args.time in (None, known.time.column)
    if known is not None:
        same = same and own_columns.is_beside(known, args) and (resumes or own_columns.has_columns_of(known, inferred.schema))
    is_fit = known is not None and (resumes or reading.skip_bad_rows or inferred.fits(known))
    if known is not None and same and is_fit and not of_other and not new_columns(inferred, text):
        say(f"schema      {printable_path(kept)}{EARLIER}", stream)  # a file that has grown would be read otherwise
        say_lacking(found, known, reading, stream)
        return known
    text = schema_toml(inferred.schema, inferred.remarks, inferred.unused, inferred.proposed)
    keep_schema(kept, InferredFrom.begin(sources[0], text))
    show_inferred(inferred, kept, stream, numbered)
    return inferred.schema


def say_lacking(found: DataFiles, schema: Schema, reading: Reading, stream: TextIO) -> None:
    """Say which columns of the schema some of the files lack."""
    from adaptive_rec.data.tabular.open_rows import Parts

    for note in [] if reading.grows else Parts(found.files, schema.file).lacking(schema.columns):
        say(f"note: {note}", stream)


def file_part(args: argparse.Namespace) -> FileSchema | None:
    """Return how files are written, where --schema says nothing else and --label or --item has the rest inferred."""
    import tomllib

    from adaptive_rec.data.tabular.schema_file import parse_file_part

    if args.schema is None or (args.label is None and args.item is None):
        return None
    try:
        values = tomllib.loads(args.schema.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return None  # reading the whole schema says what is wrong
    return parse_file_part(values["file"], f"--schema {args.schema}") if set(values) == {"file"} else None


def checked(schema: Schema, args: argparse.Namespace, file: Path, origin: str, stream: TextIO) -> Schema:
    """Return the schema of a file, which is said. Raises UsageError where --label is another one."""
    if fault := contradiction(args, schema):
        option, known, given = fault
        way_out = "" if args.schema else "; remove that file to have a schema inferred anew"
        raise UsageError(f"{option} must be the {option.removeprefix('--')} of {file}, {known!r}, got {given!r}{way_out}")
    say(f"schema      {printable_path(file)}{origin}", stream)
    return schema


def choice_of(args: argparse.Namespace) -> ImplicitPart | None:
    """Return the columns of items and users of a log of positives alone; None where the command line names none."""
    from adaptive_rec.data.tabular.schema_columns import ImplicitPart

    return None if args.item is None else ImplicitPart(item=args.item, user=args.user or "")


def contradiction(args: argparse.Namespace, schema: Schema) -> tuple[str, str, str] | None:
    """Return the first option that names another column than a schema does, with both columns; None where none does."""
    known = {"--label": schema.label}
    known |= {"--item": "", "--user": ""} if schema.implicit is None else {
        "--item": schema.implicit.item, "--user": schema.implicit.user
    }  # fmt: skip
    given = {"--label": args.label, "--item": args.item, "--user": args.user if args.item is None else args.user or ""}
    return next(((name, known[name], got) for name, got in given.items() if got not in (None, known[name])), None)


def new_columns(inferred: Inferred, text: str) -> list[str]:
    """Return the columns of a file that the text of its schema does not mention, neither as used nor as unused."""
    from adaptive_rec.data.tabular.schema_text import schema_comment, toml

    dense, sparse = ([column.column for column in part] for part in (inferred.schema.dense, inferred.schema.sparse))
    columns = (*dense, *sparse, *inferred.unused)
    return [each for each in columns if toml(each) not in text and f"#   {schema_comment(each)}: " not in text]


def keep_schema(path: Path, text: str) -> None:
    """Write a schema; a file that has this text stays as it is. Raises UsageError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, text)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def show_inferred(inferred: Inferred, kept: Path, stream: TextIO, numbered: bool) -> None:
    """Print a schema that was inferred, and where it can be edited."""
    say(f"schema      {kept} (inferred from the first rows; edit it and run the same command again)", stream)
    schema = inferred.schema
    rows = [("label", schema.label, "")] if schema.implicit is None else [
        ("item", schema.implicit.item, "every row is a positive: rows of other items are drawn as negatives"),
        *([("user", schema.implicit.user, "")] if schema.implicit.user else []),
    ]  # fmt: skip
    unit = schema.time.unit
    rows += [("time", schema.time.column, f"in {unit}" * (unit not in ("", "s")))] if schema.time.column else []
    rows += [("weight", schema.weight, "")] if schema.weight else []
    rows += [("group", schema.group.column, "")] if schema.group.column else []
    rows += [("sparse", column.column, inferred.remarks[column.column]) for column in schema.sparse]
    rows += [
        ("dense", column.column, f"{inferred.remarks[column.column]}, {column.transform}") for column in schema.dense
    ]
    rows += [("unused", column, why) for column, why in inferred.unused.items()]
    rows = [(kind, readable(column, word=60, line=60), why) for kind, column, why in rows]
    width = min(24, max(len(column) for _, column, _ in rows))
    for kind, column, why in rows:
        say(f"  {kind:<8}  {column:<{width}}  {why}".rstrip(), stream)
    if inferred.proposed and not schema.time.column and numbered:
        found = ", ".join(readable(name, word=60) for name in list(dict.fromkeys(each.column for each in inferred.proposed))[:3])
        say(f"  --time COLUMN trains in order of time and holds out the newest rows; columns of times: {found}", stream)
    if schema.min_count > 1 and numbered:
        say(
            f"  values that occur less than {schema.min_count} times in a table share one row, as unknown ones do when scoring",
            stream,
        )
    for note in inferred.notes:
        say(f"note: {note}", stream)

"""Data of a user's own on the command line: CSV, TSV and Parquet files, their schema, and the folder that is prepared from
them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from adaptive_rec.cli.output import printable_path, say
from adaptive_rec.cli.own_columns import in_time
from adaptive_rec.cli.own_schema import digest, keep_schema, schema_to_use
from adaptive_rec.cli.parser import describes_files, text_settings
from adaptive_rec.errors import UsageError
from adaptive_rec.units import counted, whole

if TYPE_CHECKING:
    from adaptive_rec.config.tree import Config
    from adaptive_rec.data.prepare.job import Request
    from adaptive_rec.data.prepare.meta import Meta
    from adaptive_rec.data.tabular.files import DataFiles
    from adaptive_rec.data.tabular.schema import Schema


def with_prepared_data(
    args: argparse.Namespace, resolve: Callable[[argparse.Namespace], Config], runs: Path, stream: TextIO
) -> tuple[argparse.Namespace, Config]:
    """Return the command line and its configuration, with the folder that is prepared from CSV, TSV or Parquet files in their
    place, or with their schema where ids are raw."""
    from adaptive_rec.policy.find import load_policy

    args = in_time(args)
    config = resolve(args)
    check_negatives(args, config)
    if not describes_files(args):
        return args, config
    load_policy(config.knobs.policy)  # an error here comes before the time that preparing takes
    if config.data.ids == "raw":
        data, schema = describe_own_data(args, runs, config, stream)
        settings = [*args.set, *text_settings({"data.schema_file": schema})]
        args = argparse.Namespace(**{**vars(args), "data": data, "set": settings})
        return args, resolve(args)
    folder = prepared(args, runs, config, stream)
    args = argparse.Namespace(**{**vars(args), "data": folder})
    return args, resolve(args)


def describe_own_data(
    args: argparse.Namespace, runs: Path, config: Config, stream: TextIO, copies: Path | None = None
) -> tuple[str, str]:
    """Return `--data`, which is trained on as it is, and a copy of its schema that later edits leave as it is, in `copies`, by
    default a folder in `runs`."""
    from adaptive_rec.data.prepare.formats import array_name
    from adaptive_rec.data.tabular.files import DataFiles, followed
    from adaptive_rec.data.tabular.first_rows import Reading
    from adaptive_rec.data.tabular.schema_text import schema_toml

    data, reading = check_given(args), Reading(config.data.on_bad_row == "skip", config.data.follow)
    name = array_name(Path(os.path.abspath(data)))
    kept = runs / f"{name}.schema.toml"
    found = DataFiles(followed(data)) if config.data.follow else found_files(data, stream)
    schema = schema_to_use(args, found, kept, reading, stream, numbered=False)
    if config.data.order == "time":
        check_time(schema, args.schema or kept)
    check_is_grouped(schema, args.schema or kept, config)
    if schema.min_count > 1:
        say(f"  min_count {schema.min_count} of the schema is not used: ids are raw, see knobs.admit_after", stream)
    text = schema_toml(schema)
    fingerprint = digest(text)
    copy = (copies or runs / "data") / f"{name}-{fingerprint}.schema.toml"
    keep_schema(copy, text)
    return os.path.abspath(data), os.path.abspath(copy)


def check_given(args: argparse.Namespace) -> Path:
    """Return `--data`. Raises UsageError where it is not given."""
    if args.data is None:
        raise UsageError("--label, --item and --schema describe a CSV, TSV or Parquet file: give it as --data FILE")
    if args.label is not None and not args.label.strip():
        raise UsageError(f"--label must be a column, or a comparison such as 'rating >= 4', got {args.label!r}")
    return Path(args.data)


def check_time(schema: Schema, file: Path) -> None:
    """Raise UsageError where rows are wanted in order of time and their schema names no column of times."""
    if not schema.time.column:
        raise UsageError(
            f'data.order="time" needs the column of the rows\' times: add --time COLUMN, or time = "COLUMN" to {file}, above '
            "[file] if it has that part, and run the same command again"
        )


def check_is_grouped(schema: Schema, file: Path, config: Config) -> None:
    """Raise UsageError where rows are to be ranked within groups and their schema names no column of groups."""
    if config.eval.metrics and not schema.group.column and schema.implicit is None:
        raise UsageError(
            f"eval.metrics ({', '.join(config.eval.metrics)}) needs the column of the rows' groups, such as users: add "
            f'--group COLUMN, or group = "COLUMN" to {file}, above [file] if it has that part, and run the same command again'
        )


def prepared(args: argparse.Namespace, runs: Path, config: Config, stream: TextIO) -> str:
    """Return `--data`, or the folder that is prepared from it where it is a CSV, TSV or Parquet file or a folder of them, as
    `config` wants its rows.

    Schema and folder are written beside the run, into `runs`. The same data and schema are prepared once.
    """
    if not describes_files(args):
        return str(args.data)
    request = request_of(args, runs, config, stream)
    run_once(request, stream)
    return os.path.abspath(request.out)


def request_of(args: argparse.Namespace, runs: Path, config: Config, stream: TextIO) -> Request:
    """Return what is prepared from `--data`, as `config` wants its rows, and where; only the schema is written."""
    from adaptive_rec.data.prepare.formats import array_name
    from adaptive_rec.data.prepare.job import Request, make_job
    from adaptive_rec.data.tabular.first_rows import Reading
    from adaptive_rec.system.host_memory import give_back_freed_memory

    found = found_files(check_given(args), stream)
    name = array_name(Path(os.path.abspath(args.data)))
    kept = runs / f"{name}.schema.toml"
    skip_bad_rows = config.data.on_bad_row == "skip"
    schema = schema_to_use(args, found, kept, Reading(skip_bad_rows), stream)
    give_back_freed_memory()  # of the first rows
    if config.data.order == "time":
        check_time(schema, args.schema or kept)
    check_is_grouped(schema, args.schema or kept, config)
    sources = files_with_rows(found, schema, stream)
    request = Request(tuple(sources), runs, schema=schema, on_bad_row="skip" if skip_bad_rows else "error")
    fingerprint = digest(make_job(request).model_dump_json())
    return replace(request, out=runs / "data" / f"{name}-{fingerprint}")


def found_files(data: Path, stream: TextIO) -> DataFiles:
    """Return the files of --data; what of a folder is left out is said."""
    from adaptive_rec.data.tabular.files import find_files

    found = find_files(data)
    if found.left_out:
        say(f"note: not read of {printable_path(data)}: {found.left_out}", stream)
    return found


def files_with_rows(found: DataFiles, schema: Schema, stream: TextIO) -> list[Path]:
    """Return the files that have rows; how many have none is said."""
    from adaptive_rec.data.tabular.open_rows import with_rows

    files = with_rows(found.files, schema.file)
    if (empty := len(found.files) - len(files)) > 0:
        say(f"note: {counted(empty, 'file')} of {whole(len(found.files))} without a row", stream)
    return files


def check_negatives(args: argparse.Namespace, config: Config) -> None:
    """Raise UsageError where negatives are to be drawn for rows that have labels, or none for rows that are all positives."""
    negatives = config.data.implicit.negatives
    if args.item is not None and not negatives:
        key = "--set data.implicit.negatives=4"
        words = f"--negatives 4 (or {key})" if hasattr(args, "negatives") else key  # train alone takes the option
        raise UsageError(f"--item says that every row is a positive, beside which negatives are needed: add {words}")
    if negatives and args.label is not None:
        raise UsageError("negatives are drawn where every row is a positive: give --item COLUMN in place of --label")


def run_once(request: Request, stream: TextIO) -> Meta:
    """Prepare a folder unless the same job has made it before, or another process makes it now; return its description."""
    from adaptive_rec.cli.progress import StageBar, compiling_shown
    from adaptive_rec.data.prepare.meta import load_meta
    from adaptive_rec.data.prepare.prepare import prepare_folder
    from adaptive_rec.system.host_memory import give_back_freed_memory

    if request.out.exists():
        meta = load_meta(request.out)
        say(f"data        {printable_path(request.out)}, prepared before", stream)
        return meta
    with StageBar(stream) as bar, compiling_shown(bar):
        meta = prepare_folder(request, bar.show, waits=True)
    give_back_freed_memory()
    files = f" of {counted(len(meta.sources), 'file')}" if len(meta.sources) > 1 else ""
    say(f"data        {printable_path(request.out)}: {counted(meta.rows, 'row')}{files}{meta.left_out}", stream)
    return meta

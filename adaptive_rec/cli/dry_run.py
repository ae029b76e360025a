"""``train --dry-run``: what a run would do, on one screen, before anything is prepared."""

from __future__ import annotations

import argparse
import io
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from adaptive_rec.cli import processes
from adaptive_rec.cli.dry_run_screen import Described, DryRunScreen
from adaptive_rec.cli.launcher import Wanted
from adaptive_rec.cli.output import pairs, print_json, printable_path, show, waiting
from adaptive_rec.cli.own_columns import in_time
from adaptive_rec.cli.own_data import check_negatives, describe_own_data, request_of
from adaptive_rec.cli.parser import SMALL_FILE_BYTES, describes_files, text_settings
from adaptive_rec.cli.plan import DRY_RUN_NOTE, FOLLOWED_NOTE, ONE_LOOK_SECONDS, fit_verdict, plan_rank
from adaptive_rec.cli.train_settings import check_begins, check_past, names_columns, replays
from adaptive_rec.errors import AdaptiveRecError, first_line
from adaptive_rec.run.new_directory import RUNS, check_run_is_new

if TYPE_CHECKING:
    from adaptive_rec.config.tree import Config
    from adaptive_rec.data.source import Source

ESTIMATED_NOTE = "rows of tables are estimated from some blocks of the files; preparing counts them"


def dry_run(args: argparse.Namespace, wanted: Wanted) -> int:
    """Print what the run of a command line would do. Returns 1 where it does not fit into memory. Only a schema that is inferred
    is written, which is said."""
    ranks, ranks_here = processes.layout(wanted.processes)
    with tempfile.TemporaryDirectory(prefix="adaptive-rec-") as scratch:
        described = describe(args, Path(scratch))
        config = described.config
        check_past(args, config)
        if processes.are_silent():
            return 0
        return print_screen(described, args.json, ranks, ranks_here, acts=not replays(args))


# What would be read --------------------------------------------------------------------------------------------------


def describe(args: argparse.Namespace, scratch: Path) -> Described:
    """Return what a run would read; checks are those of its start, in the same order. Raises UsageError or DataError."""
    config = check_begins(args)
    if not names_columns(args):
        return Described(config)
    if args.out is not None and not args.resume:
        check_run_is_new(args.out)
    if not processes.are_silent():
        waiting(f"reading {args.data}")
    args = in_time(args)
    config = check_begins(args)
    check_negatives(args, config)
    if not describes_files(args):
        return Described(config)
    runs, said = args.out.parent if args.out else RUNS, io.StringIO()
    if config.data.ids == "raw":
        data, copy = describe_own_data(args, runs, config, said, scratch)
        settings = [*args.set, *text_settings({"data.schema_file": copy})]
        config = check_begins(argparse.Namespace(**{**vars(args), "data": data, "set": settings}))
        return with_columns(Described(config), args, Path(copy), said.getvalue())
    request = request_of(args, runs, config, said)
    assert request.schema is not None, "a request of files of the user's own has one"
    schema_file = scratch / "schema.toml"
    from adaptive_rec.data.tabular.schema_text import schema_toml

    schema_file.write_text(schema_toml(request.schema), encoding="utf-8")
    if request.out.exists():
        args = argparse.Namespace(**{**vars(args), "data": os.path.abspath(request.out)})
        found = Described(check_begins(args))
        prepared = f"{printable_path(request.out)}, prepared before"
    else:
        found = unprepared(args, schema_file)
        prepared = f"would be prepared in {printable_path(request.out)}"
    return with_columns(replace(found, said=[("data", prepared)]), args, schema_file, said.getvalue(), request.sources)


def unprepared(args: argparse.Namespace, schema_file: Path) -> Described:
    """Return files that are read as they are, in place of the folder that would be prepared, under the preset that it would
    have."""
    from adaptive_rec.data.implicit.negatives import with_negatives
    from adaptive_rec.data.looked_at import estimated_rows
    from adaptive_rec.data.tabular.stream import TabularSource
    from adaptive_rec.offline.forecast.sources import Folded

    positives_alone = bool(check_begins(args).data.implicit.negatives)
    small = None if positives_alone else "clicks_small"
    args = argparse.Namespace(**{**vars(args), "preset": small})
    config = check_begins(args)
    as_it_is = config.data.model_copy(update={"schema_file": str(schema_file), "order": "file"})
    source = TabularSource(config.model_copy(update={"data": as_it_is}))
    rows_T = estimated_rows(source, source.trained_columns().schema.min_count)
    if not positives_alone:
        large = source.rows * 4 * (source.dense_features + len(source.features) + 1) > SMALL_FILE_BYTES
        sized = {"preset": "clicks"} if large else {"unprepared_rows": (source.rows, sum(rows_T))}
        config = check_begins(argparse.Namespace(**{**vars(args), **sized}))
        source = source.with_epochs(config.data.epochs)  # which follow from the number of rows
    keyed = config.model_copy(update={"data": config.data.model_copy(update={"ids": "raw"})})
    return Described(config, Folded(with_negatives(source, keyed, source.schema), rows_T))


def with_columns(
    found: Described, args: argparse.Namespace, schema_file: Path, said: str, files: Sequence[Path] = ()
) -> Described:
    """Add the columns that are used and those that are not, with the reasons that the schema has, and what was said of them."""
    from adaptive_rec.data.tabular.files import files_of
    from adaptive_rec.data.tabular.open_rows import open_rows
    from adaptive_rec.data.tabular.schema import load_schema
    from adaptive_rec.data.tabular.schema_text import schema_comment

    schema = load_schema(schema_file)
    said_of, unused = list(found.said), dict[str, str]()
    for line in said.splitlines():
        if line.startswith(("schema ", "note: ")):
            kind, _, words = line.partition(" ")
            said_of.append((kind.rstrip(":"), words.strip()))
    written = [Path(text.partition(" (")[0].partition(", as")[0]) for kind, text in said_of if kind == "schema"]
    remarks = written[0].read_text(encoding="utf-8", errors="replace").splitlines() if written and written[0].is_file() else []
    for name in open_rows((files or files_of(Path(args.data)))[0], schema.file).names:
        if name and name not in schema.columns:
            begin = f"#   {schema_comment(name)}: "
            reasons = (line.removeprefix(begin) for line in remarks if line.startswith(begin))
            unused[name] = next(reasons, "not in the schema")
    return replace(found, schema=schema, unused=unused, said=said_of)


# What is shown -------------------------------------------------------------------------------------------------------


def print_screen(described: Described, as_json: bool, ranks: int, ranks_here: int, acts: bool) -> int:
    """Print the plan of a run on this machine, or of one of its ranks, of which the machine has `ranks_here`; estimated only.
    `acts`: False for a replay, in which rules of the watchdog do nothing. Returns 1 where it does not fit."""
    waiting("planning")
    from adaptive_rec.data.looked_at import looked_at
    from adaptive_rec.data.open import open_source
    from adaptive_rec.runtime.assemble import plan_run
    from adaptive_rec.runtime.start_checks import check_scored

    config, notes, opened = described.config, [DRY_RUN_NOTE], described.config
    if config.data.follow:
        here = config.data.model_copy(update={"follow_idle_seconds": ONE_LOOK_SECONDS})
        notes, opened = [*notes, FOLLOWED_NOTE], config.model_copy(update={"data": here})
    source = described.source or open_source(opened, trains=config.data.follow)
    notes += [ESTIMATED_NOTE] * (described.source is not None)
    check_scored(config, source)
    plan = plan_run(config, source, acts=acts) if ranks == 1 else plan_rank(config, source, ranks, ranks_here, acts)
    boundary, in_order = split_time(described)
    looked = looked_at(source, config) if in_order else None
    steps = steps_of(config, source)
    took, why = seconds_of(config, source, ranks, steps)
    facts = DryRunScreen(described, source, plan, looked, boundary, steps, took, why)
    if as_json:
        print_json({**plan.as_dict(), "data": facts.as_dict()})
    else:
        verdict = [*fit_verdict(plan), *(("note", note) for note in notes)]
        show(pairs([*facts.lines(), *verdict]))
    return 1 if plan.problems else 0


def steps_of(config: Config, source: Source) -> int | None:
    """Return how many steps the run makes at the most; None where it follows data."""
    from adaptive_rec.batch import Position
    from adaptive_rec.data.left_out import steps_to_come

    if config.data.follow:
        return None
    in_stream = steps_to_come(source, Position(), config.run.batch_size)
    return min(in_stream, config.run.steps or in_stream)


def seconds_of(config: Config, source: Source, ranks: int, steps: int | None) -> tuple[float | None, str]:
    """Return about how long a step takes, or why that is not known."""
    from adaptive_rec.runtime.assemble import choose_device

    if ranks > 1 or choose_device(config).type != "cpu" or steps is None:
        what = "several processes" if ranks > 1 else "data that is followed" if steps is None else "a GPU"
        return None, f"not estimated for {what}"
    from adaptive_rec.offline.forecast.rehearsal import step_seconds

    try:
        return step_seconds(config, source), ""
    except AdaptiveRecError as error:
        return None, f"not estimated: {first_line(error)}"


def split_time(described: Described) -> tuple[int | None, bool]:
    """Return the time, in microseconds since 1970, from which on rows are held out, where they are read in order of time; and
    whether the files, or the folder, have them in the order in which they would be read."""
    config, schema = described.config, described.schema
    if config.data.order != "time":
        return None, True
    from adaptive_rec.data.left_out import with_all_parts
    from adaptive_rec.data.prepared import PreparedSource
    from adaptive_rec.data.tabular.file_rows import FileRows
    from adaptive_rec.data.tabular.files import files_of

    if described.source is None:
        if config.data.schema_file:
            return None, True
        source = PreparedSource(config)
        names = [f"{each.name}_times.npy" for each in source.meta.sources]
        parts = [np.load(source.folder / name, mmap_mode="r", allow_pickle=False) for name in names]
        ranges, is_sorted = source.ranges, True  # the folder's reader puts them in order
    else:
        assert schema is not None, "files that are not prepared have a schema"
        bare = schema.model_copy(update={"sparse": (), "dense": ()})
        rows = FileRows(files_of(Path(config.data.source)), bare, config.data.on_bad_row == "skip")
        parts = [piece.times_B for piece in rows.read(0) if piece.times_B is not None]
        origin = with_all_parts(described.source.origin)  # type: ignore[attr-defined]
        ranges, is_sorted = origin.ranges, False  # type: ignore[attr-defined]
    times_R = np.concatenate(parts)
    is_sorted = is_sorted or bool((times_R[1:] >= times_R[:-1]).all())
    first = min(ranges[1].start, len(times_R) - 1)
    return int(np.partition(times_R, first)[first]), is_sorted

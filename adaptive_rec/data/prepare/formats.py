"""The formats that can be prepared, by name, and the recognition of a file's format by its first line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from adaptive_rec.data.file_kind import ARROW, ARROW_STREAM, JSON_LINES, PARQUET, kind_of
from adaptive_rec.data.lines import line_blocks
from adaptive_rec.data.packed import ENDINGS as PACKED
from adaptive_rec.data.prepare.raw import RawReader
from adaptive_rec.data.prepare.recipe import TABULAR, formats, recipes, recognise
from adaptive_rec.data.tabular.schema import Schema
from adaptive_rec.errors import DataError, UsageError

HISTORY_STEPS = 20
"""The default of the TBSM reference."""
SUFFIXES = (*PACKED, ".tsv", ".csv", ".txt", ".dat", ".parquet", ".pq", ".jsonl", ".ndjson", ".feather", ".arrow", ".ipc")
"""Endings that the names of a source's arrays do not have."""


@dataclass(frozen=True)
class ReadOptions:
    """The options with which sources are read."""

    format: str
    schema: Schema | None
    skip_bad_rows: bool
    seed: int
    history_steps: int = HISTORY_STEPS


def open_readers(paths: Sequence[Path], options: ReadOptions) -> list[RawReader]:
    """Open the sources; raises DataError where one cannot be read, UsageError where something must be installed or given."""
    for path in paths:
        check_source(path)
    if options.format not in TABULAR:
        if options.schema is not None:
            raise UsageError(f"--label and --schema are for --format csv or parquet, got --format {options.format}")
        recipe = recipes()[options.format]
        return [recipe.open(path, options.skip_bad_rows, options.seed, options.history_steps) for path in paths]
    if options.schema is None:
        raise UsageError(
            f"--format {options.format} needs --label COLUMN, or --schema FILE, which names the label and the columns"
        )
    from adaptive_rec.data.tabular.open_rows import Parts
    from adaptive_rec.data.tabular.reader import TabularReader

    parts = Parts(paths, options.schema.file)
    return [TabularReader(path, options.schema, options.skip_bad_rows, parts=parts) for path in paths]


def history_steps(format_: str, wanted: int | None) -> int:
    """Return the longest history of a row: the requested one, the default, or 0 for a format without histories."""
    able = [name for name, recipe in recipes().items() if recipe.has_history]
    if format_ not in able:
        if wanted is not None:
            raise UsageError(f"--history is for --format {' or '.join(able)}, got --format {format_}")
        return 0
    if wanted is not None and wanted < 1:
        raise UsageError(f"--history must be at least 1 step, got {wanted}")
    return HISTORY_STEPS if wanted is None else wanted


def find_format(path: Path, described: bool = False) -> str:
    """Return the format of a source, recognised by its first lines. `described`: it has a schema."""
    check_source(path)
    if kind_of(path) in (PARQUET, ARROW, ARROW_STREAM, JSON_LINES):
        return "parquet"
    if described:
        return "csv"
    line = next(line_blocks(path), b"").partition(b"\n")[0]
    if found := recognise(path, line):
        return found
    raise UsageError(
        f"the format of {path} cannot be recognised by its first line, {ascii(line[:40].decode('latin-1'))}; if that names the "
        f"columns of a CSV file, give --label COLUMN, else --format {'|'.join(formats())}",
        faq="no-label",
    )


def check_source(path: Path) -> None:
    """Raise DataError unless a source is a readable file that is not empty, of a format that is read."""
    if not path.is_file():
        raise DataError(f"a source must be a file that exists, got {str(path)!r}")
    try:
        path.open("rb").close()
        empty = path.stat().st_size == 0
    except OSError as error:
        raise DataError(f"a source must be a readable file, got {str(path)!r}: {error.strerror}") from None
    if empty:
        raise DataError(f"a source must hold at least one row, got {str(path)!r}, which is empty", faq="empty-file")
    kind_of(path)


def array_name(path: Path) -> str:
    """Return the name of a source's arrays: ``day_0`` for ``day_0.gz``."""
    name = path.name
    while (suffix := next((s for s in SUFFIXES if name.endswith(s) and name != s), None)) is not None:
        name = name.removesuffix(suffix)
    return name

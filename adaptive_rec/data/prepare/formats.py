"""The formats that can be prepared, by name, and the recognition of a file's format by its first line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from adaptive_rec.data.file_kind import ARROW, ARROW_STREAM, JSON_LINES, PARQUET, kind_of
from adaptive_rec.data.lines import line_blocks
from adaptive_rec.data.packed import ENDINGS as PACKED
from adaptive_rec.data.prepare.raw import RawReader
from adaptive_rec.data.tabular.schema import Schema
from adaptive_rec.errors import DataError, UsageError

READERS = {
    "criteo": ("criteo", "CriteoReader"),
    "avazu": ("avazu", "AvazuReader"),
    "globo": ("globo", "GloboReader"),
    "globo_sequence": ("globo_sequence", "GloboSequenceReader"),
    "taobao": ("taobao", "TaobaoReader"),
    "movietweetings": ("movietweetings", "MovieTweetingsReader"),
}
"""The reader of each format: its module in `data/logs` and its class. A module is imported when its format is read."""
TABULAR = ("csv", "parquet")
"""Files of a user's own, which a schema describes."""
FORMATS = (*TABULAR, *READERS)
WITH_TIMES = tuple(name for name in READERS if name != "criteo")
"""Logs whose rows have a time."""
WITH_HISTORY = ("globo_sequence", "taobao")
RATING = re.compile(rb"[0-9]+(\.[0-9]+)?")
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
        return [_open_log(path, options) for path in paths]
    if options.schema is None:
        raise UsageError(
            f"--format {options.format} needs --label COLUMN, or --schema FILE, which names the label and the columns"
        )
    from adaptive_rec.data.tabular.open_rows import Parts
    from adaptive_rec.data.tabular.reader import TabularReader

    parts = Parts(paths, options.schema.file)
    return [TabularReader(path, options.schema, options.skip_bad_rows, parts=parts) for path in paths]


def _open_log(path: Path, options: ReadOptions) -> RawReader:
    if options.schema is not None:
        raise UsageError(f"--label and --schema are for --format csv or parquet, got --format {options.format}")
    module, name = READERS[options.format]
    reader_class = getattr(import_module(f"adaptive_rec.data.logs.{module}"), name)
    history = (options.history_steps,) if options.format in WITH_HISTORY else ()
    reader: RawReader = reader_class(path, options.skip_bad_rows, options.seed, *history)
    return reader


def history_steps(format_: str, wanted: int | None) -> int:
    """Return the longest history of a row: the requested one, the default, or 0 for a format without histories."""
    if format_ not in WITH_HISTORY:
        if wanted is not None:
            raise UsageError(f"--history is for --format {' or '.join(WITH_HISTORY)}, got --format {format_}")
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
    names = line.decode("utf-8", "replace").strip().split(",")
    if names[:3] == ["id", "click", "hour"]:
        return "avazu"
    if "click_article_id" in names:
        return "globo"
    if len(names) == 5 and names[3] in ("pv", "buy", "cart", "fav"):
        return "taobao"
    if line.count(b"::") == 3:
        check_ratings(path)
        return "movietweetings"
    if b"\t" in line:
        return "criteo"
    raise UsageError(
        f"the format of {path} cannot be recognised by its first line, {ascii(line[:40].decode('latin-1'))}; if that names the "
        f"columns of a CSV file, give --label COLUMN, else --format {'|'.join(FORMATS)}"
    )


def check_ratings(path: Path) -> None:
    """Raise UsageError where a log of ratings is MovieLens, or may be: MovieTweetings has ratings up to 10, and films by their
    numbers of IMDb, of 7 digits or more."""
    lines = next(line_blocks(path), b"").splitlines()
    rows = [row for row in (line.split(b"::") for line in lines) if len(row) == 4]
    ratings = [float(rating) for _, _, rating, _ in rows if RATING.fullmatch(rating)]
    digits = [len(movie) >= 7 and movie.isdigit() for _, movie, _, _ in rows]
    if max(ratings, default=0.0) > 5 or (digits and sum(digits) > len(digits) / 2):
        return
    raise UsageError(
        f"the format of {path} must be MovieTweetings, with ratings up to 10 and numbers of IMDb, it has ratings up to "
        f"{max(ratings, default=0.0):g}, as MovieLens has; train on it as a CSV: (echo user,item,rating,timestamp; "
        f"sed 's/::/,/g' {path}) > ratings.csv, with --label 'rating >= 4'"
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
        raise DataError(f"a source must hold at least one row, got {str(path)!r}, which is empty")
    kind_of(path)


def array_name(path: Path) -> str:
    """Return the name of a source's arrays: ``day_0`` for ``day_0.gz``."""
    name = path.name
    while (suffix := next((s for s in SUFFIXES if name.endswith(s) and name != s), None)) is not None:
        name = name.removesuffix(suffix)
    return name

"""The formats that can be prepared, by name, and how one is told from a file's first line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from adaptive_rec.data.lines import line_blocks
from adaptive_rec.data.prepare.raw import RawReader
from adaptive_rec.errors import DataError, UsageError

FORMATS = ("criteo", "avazu", "parquet", "globo", "globo_sequence", "taobao", "movietweetings")
WITH_HISTORY = ("globo_sequence", "taobao")
HISTORY_STEPS = 20
"""As the TBSM reference."""
SUFFIXES = (".gz", ".zst", ".tsv", ".csv", ".txt", ".dat", ".parquet")
"""What the name of a source loses on its way to the names of its arrays."""


@dataclass(frozen=True)
class ReadOptions:
    """How sources are read."""

    format: str
    schema: Path | None
    skip_bad_rows: bool
    seed: int
    history_steps: int = HISTORY_STEPS


def open_reader(path: Path, options: ReadOptions) -> RawReader:
    """Open a source; raises DataError where it cannot be read, UsageError where something must be installed or given."""
    check_source(path)
    if options.format == "parquet":
        from adaptive_rec.data.logs.parquet import ParquetReader

        if options.schema is None:
            raise UsageError("--format parquet needs --schema FILE, which names the label and the columns")
        return ParquetReader(path, options.schema, options.skip_bad_rows)
    if options.schema is not None:
        raise UsageError(f"--schema is for --format parquet, got --format {options.format}")
    if options.format == "avazu":
        from adaptive_rec.data.logs.avazu import AvazuReader

        return AvazuReader(path, options.skip_bad_rows, options.seed)
    if options.format == "globo":
        from adaptive_rec.data.logs.globo import GloboReader

        return GloboReader(path, options.skip_bad_rows, options.seed)
    if options.format == "globo_sequence":
        from adaptive_rec.data.logs.globo_sequence import GloboSequenceReader

        return GloboSequenceReader(path, options.skip_bad_rows, options.seed, options.history_steps)
    if options.format == "taobao":
        from adaptive_rec.data.logs.taobao import TaobaoReader

        return TaobaoReader(path, options.skip_bad_rows, options.seed, options.history_steps)
    if options.format == "movietweetings":
        from adaptive_rec.data.logs.movietweetings import MovieTweetingsReader

        return MovieTweetingsReader(path, options.skip_bad_rows, options.seed)
    from adaptive_rec.data.logs.criteo import CriteoReader

    return CriteoReader(path, options.skip_bad_rows, options.seed)


def history_steps(format_: str, wanted: int | None) -> int:
    """The longest history of a row: what was asked for, the default, or 0 for a format without histories."""
    if format_ not in WITH_HISTORY:
        if wanted is not None:
            raise UsageError(f"--history is for --format {' or '.join(WITH_HISTORY)}, got --format {format_}")
        return 0
    if wanted is not None and wanted < 1:
        raise UsageError(f"--history must be at least 1 step, got {wanted}")
    return HISTORY_STEPS if wanted is None else wanted


def find_format(path: Path) -> str:
    """The format of a source, by its name or its first line."""
    check_source(path)
    if path.suffix == ".parquet":
        return "parquet"
    line = next(line_blocks(path), b"").partition(b"\n")[0]
    names = line.decode("utf-8", "replace").strip().split(",")
    if names[:3] == ["id", "click", "hour"]:
        return "avazu"
    if "click_article_id" in names:
        return "globo"
    if len(names) == 5 and names[3] in ("pv", "buy", "cart", "fav"):
        return "taobao"
    if line.count(b"::") == 3:
        return "movietweetings"
    if b"\t" in line:
        return "criteo"
    raise UsageError(
        f"the format of {path} cannot be told from its first line, {ascii(line[:40].decode('latin-1'))}; "
        f"give --format {'|'.join(FORMATS)}"
    )


def check_source(path: Path) -> None:
    """Raise DataError where a source is no readable file with something in it."""
    if not path.is_file():
        raise DataError(f"a source must be a file that exists, got {str(path)!r}")
    try:
        path.open("rb").close()
        empty = path.stat().st_size == 0
    except OSError as error:
        raise DataError(f"a source must be a readable file, got {str(path)!r}: {error.strerror}") from None
    if empty:
        raise DataError(f"a source must hold at least one row, got {str(path)!r}, which is empty")


def array_name(path: Path) -> str:
    """The name of a source's arrays: ``day_0`` for ``day_0.gz``."""
    name = path.name
    while (suffix := next((s for s in SUFFIXES if name.endswith(s) and name != s), None)) is not None:
        name = name.removesuffix(suffix)
    return name

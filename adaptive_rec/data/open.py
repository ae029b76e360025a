"""Opens the source of batches that the configuration names."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from adaptive_rec.batch import Position
from adaptive_rec.config.tree import Config
from adaptive_rec.data.file_kind import NAMES, kind_of
from adaptive_rec.data.left_out import WithoutParts
from adaptive_rec.data.lines import line_blocks
from adaptive_rec.data.prepare.place import META, is_prepared
from adaptive_rec.data.source import Source
from adaptive_rec.errors import ConfigError, DataError
from adaptive_rec.system.group import ALONE, Group

if TYPE_CHECKING:
    from adaptive_rec.data.tabular.schema import Schema

NAME = re.compile(r'"?[A-Za-z_][A-Za-z0-9_ .:-]*"?')
"""A column's name in the first line of a file."""
SHOWN_NAMES = 8


def open_source(
    config: Config, trains: bool = False, left_out: Mapping[Position, Position] | None = None, group: Group = ALONE
) -> Source:
    """Open the source `data.source`; where its ids are raw keys, with rows in their place. `trains`: for training, which alone
    may follow data. `left_out`: parts of the stream that are not read, as `WithoutParts` takes them. `group`: the processes that
    train together."""
    if config.data.follow and not trains:
        raise ConfigError(
            "data.follow must be false but for a run that trains, got true; without it, the data is taken as it is now"
        )
    if config.data.follow and not config.data.schema_file:
        raise ConfigError(
            f"data.follow needs CSV, TSV or Parquet files with named columns, got {config.data.source} data; give --data PATH "
            "with --label COLUMN or --schema FILE"
        )
    return as_run_takes(_open(config, group), config, left_out)


def as_run_takes(source: Source, config: Config, left_out: Mapping[Position, Position] | None = None) -> Source:
    """Return a source of the data's own rows as a run takes it: with negatives where rows are positives alone, without the parts
    that are `left_out`, and with rows in the place of raw keys."""
    schema = schema_of(source)
    is_implicit = schema is not None and schema.implicit is not None
    if (is_implicit or config.data.implicit.given) and not config.data.follow:  # that pair is refused
        from adaptive_rec.data.implicit.negatives import with_negatives

        source = with_negatives(source, config, schema)
    source = WithoutParts(source, left_out) if left_out else source
    if config.data.ids != "raw":
        return source
    from adaptive_rec.data.raw.raw_ids import RawIds

    return RawIds(source, config)


def schema_of(source: Source) -> Schema | None:
    """Return the schema of the files of a source of the user's own; None for other data, and for data that is followed."""
    schema: Schema | None = getattr(source, "schema", None)
    return schema


def _open(config: Config, group: Group) -> Source:
    if config.data.schema_file:
        from adaptive_rec.data.tabular.follow import FollowedSource
        from adaptive_rec.data.tabular.handed_on import HandedOn
        from adaptive_rec.data.tabular.stream import TabularSource

        if not config.data.follow:
            return TabularSource(config)
        followed = FollowedSource(config)
        return followed if group.is_alone else HandedOn(followed, group)
    if config.data.source == "synthetic":
        check_no_clock(config, "the synthetic stream")
        from adaptive_rec.data.synthetic import SyntheticSource

        return SyntheticSource(config)
    path = Path(config.data.source)
    if is_prepared(path):
        from adaptive_rec.data.prepared import PreparedSource

        return PreparedSource(config)
    check_file(path)
    check_no_clock(config, "a Criteo TSV file")
    from adaptive_rec.data.criteo import open_criteo

    return open_criteo(config)


def check_no_clock(config: Config, what: str) -> None:
    """Raise where rows are to be read by time and have none."""
    if config.data.order == "time":
        raise ConfigError(
            f'data.order must be "file" where rows have no time, got "time": {what} has none; data.shuffle=false keeps its order'
        )


def check_file(path: Path) -> None:
    """Raise where `path` is not a file with at least one byte."""
    if not str(path) or not os.path.exists(path):
        raise ConfigError(
            f"data.source must be synthetic, or a file or folder that exists, got {str(path)!r}",
            faq="no-such-data",
        )
    if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
        raise DataError(f"data.source must be a folder that can be read, got {str(path)!r}: {os.strerror(errno.EACCES)}")
    if not path.is_file():
        hint = (
            f"a folder without {META} (data prepare makes one; a folder of CSV, TSV or Parquet files needs --label COLUMN)"
            if path.is_dir()
            else "neither file nor folder"
        )
        raise ConfigError(f"data.source must be a file, got {str(path)!r}, which is {hint}", faq="no-such-data")
    try:
        size_bytes = path.stat().st_size
        path.open("rb").close()
    except OSError as error:
        raise DataError(f"data.source must be a readable file, got {str(path)!r}: {error.strerror}") from None
    if size_bytes == 0:
        raise DataError(f"data.source must hold at least one row, got {str(path)!r}, which is empty", faq="empty-file")
    kind_of(path)
    if names := named_columns(path):
        raise ConfigError(
            f"data.source must be a Criteo TSV file or a prepared folder, got {str(path)!r}, {names}: give --label COLUMN "
            f"(or --schema FILE), --item COLUMN where every row is a positive, or make a folder with adaptive-rec data prepare "
            f"{path} --label COLUMN --out DIR",
            faq="no-label",
        )


def named_columns(path: Path) -> str:
    """Return what shows that a file is a Parquet file or the like, or a CSV or TSV file whose first line names its columns; else
    nothing."""
    if (kind := kind_of(path)) in NAMES:
        return NAMES[kind]
    line = next(line_blocks(path), b"").partition(b"\n")[0].decode("latin-1").removeprefix("\xef\xbb\xbf").strip()
    names = re.split(r"[,;|\t]", line)
    if len(names) < 2 or not all(NAME.fullmatch(name) for name in names):
        return ""
    shown = ", ".join(names[:SHOWN_NAMES]) + (", ..." if len(names) > SHOWN_NAMES else "")
    return f"whose first line names the columns {shown}"

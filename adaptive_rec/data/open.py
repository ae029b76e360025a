"""Opens the source of batches that the configuration names."""

from __future__ import annotations

import os
from pathlib import Path

from adaptive_rec.config.tree import Config
from adaptive_rec.data.criteo import open_criteo
from adaptive_rec.data.prepare.meta import META
from adaptive_rec.data.prepared import PreparedSource
from adaptive_rec.data.source import Source
from adaptive_rec.data.synthetic import SyntheticSource
from adaptive_rec.errors import ConfigError, DataError


def open_source(config: Config) -> Source:
    """Open the source `data.source`."""
    if config.data.source == "synthetic":
        return SyntheticSource(config)
    path = Path(config.data.source)
    if os.path.isfile(path / META):  # Path.is_file raises for a name that is too long
        return PreparedSource(config)
    check_file(path)
    return open_criteo(config)


def check_file(path: Path) -> None:
    """Raise where `path` is not a file with at least one byte."""
    if not str(path) or not os.path.exists(path):
        raise ConfigError(f"data.source must be synthetic or a Criteo TSV file that exists, got {str(path)!r}")
    if not path.is_file():
        hint = f"a folder without {META} (data prepare makes one)" if path.is_dir() else "neither file nor folder"
        raise ConfigError(f"data.source must be a file, got {str(path)!r}, which is {hint}")
    try:
        size_bytes = path.stat().st_size
        path.open("rb").close()
    except OSError as error:
        raise DataError(f"data.source must be a readable file, got {str(path)!r}: {error.strerror}") from None
    if size_bytes == 0:
        raise DataError(f"data.source must hold at least one row, got {str(path)!r}, which is empty")

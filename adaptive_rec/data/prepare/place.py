"""Where a prepared folder is: a folder with the file that describes it."""

from __future__ import annotations

import os
from pathlib import Path

META = "meta.json"


def is_prepared(path: str | Path) -> bool:
    """Return whether a path, which may name anything, is that of a prepared folder."""
    return os.path.isfile(os.path.join(path, META))  # Path.is_file raises for a name that is too long

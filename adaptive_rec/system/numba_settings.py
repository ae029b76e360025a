"""Numba's settings come from the environment, never from a file in the folder that a user happens to stand in."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from typing import Any, cast

FILE = ".numba_config.yaml"


def ignore_file() -> str:
    """Have Numba ignore a `.numba_config.yaml` of the working directory, which could name a library to load. Returns a warning;
    empty where there is no such file. Call it before Numba is loaded, which reads the file then and again before it compiles."""
    if not os.path.lexists(FILE):
        return ""
    modules = cast("dict[str, Any]", sys.modules)
    before = modules.get("yaml")
    modules["yaml"] = None  # Numba reads the file only where it can import this
    try:
        with warnings.catch_warnings(action="ignore"):
            importlib.import_module("numba.core.config")
    finally:
        del modules["yaml"]
        if before is not None:
            modules["yaml"] = before
    return f"{FILE} of the working directory is not read; Numba's settings are its variables NUMBA_..."

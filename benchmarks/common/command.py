"""Parts that the command lines of the benchmarks share. Loads nothing heavy."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def parser(about: str | None, module: str = "") -> argparse.ArgumentParser:
    """Return a parser whose help is a module's docstring."""
    return argparse.ArgumentParser(
        prog=f"python -m {module}" if module else None,
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def data_folder() -> Path:
    """Return the folder of test data: the one that ADAPTIVE_REC_TEST_DATA names, or the one next to the repository."""
    return Path(os.environ.get("ADAPTIVE_REC_TEST_DATA") or ROOT.parent / "shared" / "data")


def facts_of_call(module: str, began: float) -> dict[str, Any]:
    """Return the command, the date and the seconds since `began`, by time.perf_counter."""
    command = " ".join([f"python -m {module}", *sys.argv[1:]])
    return {"command": command, "date": time.strftime("%Y-%m-%d"), "seconds": time.perf_counter() - began}

"""Recipes of public logs, which stand in a folder of their own, `recipes/`, and are found there by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adaptive_rec.data.prepare.raw import RawReader

FOLDER = "adaptive_rec.recipes"
TABULAR = ("csv", "parquet")
"""Formats of a user's own files, which a schema describes."""


@dataclass(frozen=True)
class Recipe:
    """What is known of a format before a log is read."""

    reader: str
    """``module:Class`` in the folder, a `RawReader`, which is imported when a log is read."""
    has_times: bool = True
    """Whether its rows have a time."""
    has_history: bool = False
    """Whether its rows have a history, whose longest length the reader takes too."""
    rows_version: int = 1
    """The current version of its rows; a folder of an older version is refused."""
    rows_are_lines: bool = False
    """Whether each line is a row by itself: so files of new lines can be scored, and a prepared folder keeps the keys of its ids.
    Its reader takes `labelled`, which is False for lines that may lack their label."""
    preset: str = ""
    """The preset for data that does not suit the default preset of `train`."""

    def open(
        self, path: Path, skip_bad_rows: bool, seed: int, history_steps: int = 0, labelled: bool = True
    ) -> RawReader:
        """Open a log. Raises DataError where that fails. `labelled`: False for new lines, where lines are rows."""
        module, name = self.reader.split(":")
        history = (history_steps,) if self.has_history else ()
        given = {} if labelled else {"labelled": False}
        reader: RawReader = getattr(_module(module), name)(path, skip_bad_rows, seed, *history, **given)
        return reader


def recipes() -> Mapping[str, Recipe]:
    """Return the recipes by the name of their format."""
    found: Mapping[str, Recipe] = import_module(FOLDER).RECIPES
    return found


def has_times(format_: str) -> bool:
    """Whether the rows of a public log have a time; those of a user's own file may have one."""
    return format_ in recipes() and recipes()[format_].has_times


def rows_are_lines(format_: str) -> bool:
    """Whether each line of a public log is a row by itself."""
    return format_ in recipes() and recipes()[format_].rows_are_lines


def rows_version(format_: str) -> int:
    """Return the current version of a format's rows."""
    return recipes()[format_].rows_version if format_ in recipes() else 1


def recognise(path: Path, line: bytes) -> str:
    """Return the format of a public log, of which `line` is the first line; empty where it is none. Raises UsageError."""
    return str(_module("recognise").recognise(path, line))


def formats() -> tuple[str, ...]:
    """Return all formats that can be prepared."""
    return (*TABULAR, *recipes())


def _module(name: str) -> Any:
    return import_module(f"{FOLDER}.{name}")

"""Printing of answers: tables that fit a terminal, whole lines in pipes, JSON on request."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from adaptive_rec.units import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

PIPE_WIDTH = 400
"""Columns where output is no terminal: a row stays one line, so that grep and awk find it whole."""


def print_json(values: Any) -> None:
    print(json.dumps(values, indent=2, allow_nan=False), flush=True)


def say(line: Any, to: TextIO | None = None) -> None:
    """Print words, a path or an error for people, by default to standard output. What cannot be seen is written out."""
    print(printable(str(line), keep="\n"), file=to, flush=True)


def waiting(what: str) -> None:
    """Say on standard error what a command does before its first result: torch and Numba alone take seconds to load."""
    say(f"{printable(what)} ...", sys.stderr)


def printable_path(path: Any) -> str:
    """Return a path as it can stand within a line: a line break in a name is written out, too."""
    return printable(str(path))


def console() -> Console:
    """Return standard output: coloured and as wide as a terminal, plain and wide in a pipe."""
    from rich.console import Console

    return Console(highlight=False, emoji=False, markup=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def pairs(rows: Iterable[tuple[str, str]]) -> Table:
    """Return labels and values as a table, without rows whose value is empty."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 3))
    table.add_column(style="dim", no_wrap=True, min_width=9)
    table.add_column(overflow="fold")
    for label, value in rows:
        if value:
            table.add_row(label, Text(printable(value)))
    return table


def columns(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table with heads and a line for each row; columns whose head ends in ``>`` are aligned to the right."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for head in heads:
        table.add_column(head.rstrip(">"), justify="right" if head.endswith(">") else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def text(line: str) -> Text:
    from rich.text import Text

    return Text(printable(line))


def show(*parts: Any) -> None:
    """Print tables, in a pipe without the blanks that fill their last column."""
    target = console()
    if sys.stdout.isatty():
        target.print(*parts, sep="\n")
    else:
        with target.capture() as captured:
            target.print(*parts, sep="\n")
        print("\n".join(line.rstrip() for line in captured.get().splitlines()))
    sys.stdout.flush()

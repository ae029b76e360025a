"""How answers are printed: tables that fit a terminal, whole lines in pipes, JSON where it is asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from adaptive_rec.units import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

PIPE_WIDTH = 400
"""Columns elsewhere than on a terminal: a row stays a line, so that grep and awk find it whole."""


def print_json(values: Any) -> None:
    print(json.dumps(values, indent=2, allow_nan=False), flush=True)


def console() -> Console:
    """Standard output: coloured and as wide as a terminal is, plain and wide in a pipe."""
    from rich.console import Console

    return Console(highlight=False, emoji=False, markup=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def pairs(rows: Iterable[tuple[str, str]]) -> Table:
    """Labels and values; what is empty is left out."""
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
    """A table with heads, a line for each row; those heads that end in ``>`` stand to the right."""
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
    """Print tables without the blanks that would fill their last column up."""
    target = console()
    if sys.stdout.isatty():
        for part in parts:
            target.print(part)
    else:
        with target.capture() as captured:
            for part in parts:
                target.print(part)
        print("\n".join(line.rstrip() for line in captured.get().splitlines()))
    sys.stdout.flush()

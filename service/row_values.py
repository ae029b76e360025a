"""The values that ids stand for, as they were in the data of a run. They are read by number when rows are listed."""

from __future__ import annotations

from typing import Any

from adaptive_rec.service.hello import Table

FIRST_ID = 2
"""Id of the first value in a file; 0 is a missing value, and 1 stands for all rare ones."""
LONGEST = 200
"""Characters of a value that are shown."""


class RowValues:
    """The files of values of a run's tables. They are mapped into memory, not read: of a file of any size only the pages of the
    listed rows are loaded. Without pyarrow, or without the file, a table has no values."""

    def __init__(self) -> None:
        self._mapped: dict[str, Any] = {}

    def add(self, table: Table, rows: list[dict[str, Any]]) -> None:
        """Set `value` of each row of a table that has values: a text; null stays for the ids of missing and of rare values."""
        if table.values not in self._mapped:
            self._mapped[table.values] = _mapped(table.values)
        column = self._mapped[table.values]
        if column is None:
            return
        for row in rows:
            place = row["id"] - FIRST_ID
            if 0 <= place < len(column):
                row["value"] = str(column[place].as_py())[:LONGEST]


def _mapped(path: str) -> Any:
    """Return the column of a file of values; None where it cannot be had: rows are then shown by their ids alone."""
    try:
        import pyarrow as pa

        with pa.memory_map(path) as file:
            return pa.ipc.open_file(file).read_all().column(0)
    except (ImportError, OSError, ValueError):  # Arrow's errors are ValueErrors
        return None

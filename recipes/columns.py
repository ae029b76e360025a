"""The reader of CSV-like logs: a log is described by its columns, and its lines become rows of whole numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.lines import line_blocks, plain_bytes, quote_field
from adaptive_rec.data.prepare.raw import SequenceColumns
from adaptive_rec.errors import DataError
from adaptive_rec.recipes.kernels import parse_csv
from adaptive_rec.recipes.kernels.parse_csv import HEX_KEY, HOUR, INTEGER_KEY, NUMBER, WORD

RULES = {
    HOUR: "must be a date and hour as YYMMDDHH",
    HEX_KEY: "must be a hexadecimal number of at most 8 digits or empty",
    INTEGER_KEY: "must be an integer of at most 18 digits or empty",
}


@dataclass(frozen=True)
class LogColumn:
    """A column of a log: its name in the header, and what a field of it may be. For what a field becomes see `parse_csv`."""

    name: str
    limit: int = 2**53
    """The largest number of a column of the kind NUMBER."""
    kind: int = NUMBER
    words: tuple[str, ...] = ()
    """All values of a column of the kind WORD."""

    @property
    def rule(self) -> str:
        if self.kind == WORD:
            return f"must be one of {', '.join(self.words)}"
        return RULES.get(self.kind, f"must be a whole number between 0 and {self.limit}")


def word(name: str, *words: str) -> LogColumn:
    """A column of one of these words; a field becomes the place of its word."""
    return LogColumn(name, kind=WORD, words=words)


@dataclass
class LogFile:
    """A log file. Opening one that must have a header checks it; the columns then stand in the file's order."""

    path: Path
    columns: tuple[LogColumn, ...]
    skip_bad_rows: bool
    separator: str = ","
    has_header: bool = False
    any_order: bool = False
    """Whether the header may name the columns in any order."""
    optional: tuple[str, ...] = ()
    """Columns that the header may lack."""
    bad_rows: int = 0
    read_ratio: float = 0.0
    """Share of the file that `blocks` has read."""

    def __post_init__(self) -> None:
        if self.has_header:
            self._check_header()
        words = [[name.encode() for name in column.words] for column in self.columns]
        count, length = max(map(len, words)), max((len(name) for names in words for name in names), default=0)
        self._words_KWL = np.zeros((len(words), count, length), dtype=np.uint8)
        for k, names in enumerate(words):
            for w, name in enumerate(names):
                self._words_KWL[k, w, : len(name)] = list(name)

    def _check_header(self) -> None:
        line = next(line_blocks(self.path), b"").partition(b"\n")[0].strip()
        names = line.decode("latin-1").split(self.separator)
        known = {each.name: each for each in self.columns if each.name in names or each.name not in self.optional}
        if sorted(names) != sorted(known) or not (self.any_order or names == list(known)):
            order = " in any order" if self.any_order else ""
            wanted = self.separator.join(known)
            raise DataError(
                f"{self.path}, line 1: header must be {wanted}{order}, got {ascii(line[:200].decode('latin-1'))}"
            )
        self.columns = tuple(known[name] for name in names)

    def blocks(self) -> Iterator[NDArray[np.int64]]:
        """Yield the rows (B, columns) in order; a malformed one raises DataError, or is skipped and counted."""
        size_bytes, read_bytes, lines = plain_bytes(self.path), 0, 0
        for text in line_blocks(self.path):
            start = text.index(b"\n") + 1 if self.has_header and not lines else 0
            yield self._parse(text, start, lines + (start > 0))
            lines, read_bytes = lines + text.count(b"\n"), read_bytes + len(text)
            self.read_ratio = min(1.0, read_bytes / size_bytes)
        self.read_ratio = 1.0

    def rows(self) -> NDArray[np.int64]:
        """All rows at once (B, columns), in the file's order; a compressed file may hold none."""
        return np.concatenate([np.empty((0, len(self.columns)), dtype=np.int64), *self.blocks()])

    def _parse(self, text: bytes, position: int, lines_before: int) -> NDArray[np.int64]:
        data, separator = np.frombuffer(text, dtype=np.uint8), np.frombuffer(self.separator.encode(), dtype=np.uint8)
        kinds_K, limits_K = (np.array(of) for of in zip(*((c.kind, c.limit) for c in self.columns), strict=True))
        rows_BK = np.empty((text.count(b"\n"), len(self.columns)), dtype=np.int64)
        filled = bad = 0
        while position < len(text):
            count, position, fault, column = parse_csv.parse_rows(
                data, position, separator, kinds_K, limits_K, self._words_KWL, rows_BK[filled:]
            )
            filled += count
            if fault != parse_csv.FINE:
                bad += 1
                line = text[position : text.index(b"\n", position)]
                if not self.skip_bad_rows:
                    raise self._malformed(lines_before + filled + bad, fault, column, line)
                position += len(line) + 1
        self.bad_rows += bad
        return rows_BK[:filled]

    def _malformed(self, line_number: int, fault: int, column: int, line: bytes) -> DataError:
        where, fields = f"{self.path}, line {line_number}", line.removesuffix(b"\r").split(self.separator.encode())
        if fault == parse_csv.COLUMNS:
            between = "commas" if self.separator == "," else f"{self.separator!r}"
            return DataError(f"{where}: row must have {len(self.columns)} columns between {between}, got {len(fields)}")
        broken = self.columns[column]
        return DataError(f"{where}, column {broken.name}: {broken.rule}, got {quote_field(fields[column])}")


class LogReader:
    """The base of the readers of logs: what each of them reports about its file."""

    sequence: SequenceColumns | None = None
    schema = None
    has_times = True
    bad_of: Mapping[str, int] = {}
    _made_ratio: float | None = None
    """Share of the rows made so far, in a reader that holds the whole log before it makes the first one."""

    def __init__(self, log: LogFile) -> None:
        self._log = log

    @property
    def bad_rows(self) -> int:
        return self._log.bad_rows

    @property
    def read_ratio(self) -> float:
        read = self._log.read_ratio
        return read if self._made_ratio is None else (read + self._made_ratio) / 2

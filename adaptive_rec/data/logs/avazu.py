"""Avazu click logs (CSV) as raw rows. The log has no dense features: they are made of the hour."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_rec.data.criteo_file import line_blocks
from adaptive_rec.data.prepare.criteo import plain_bytes
from adaptive_rec.data.prepare.raw import RawBlock, SequenceColumns, SparseColumn
from adaptive_rec.errors import DataError
from adaptive_rec.kernels import parse_csv

HEX_COLUMNS = (
    "site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category", "device_id", "device_ip",
    "device_model",
)  # fmt: skip
INTEGER_COLUMNS = ("C1", "banner_pos", "device_type", "device_conn_type", *(f"C{i}" for i in range(14, 22)))
KINDS = {
    "id": parse_csv.SKIP,
    "click": parse_csv.LABEL,
    "hour": parse_csv.HOUR,
    **dict.fromkeys(HEX_COLUMNS, parse_csv.HEX),
    **dict.fromkeys(INTEGER_COLUMNS, parse_csv.INTEGER),
}
RULES = {
    parse_csv.BAD_LABEL: "must be 0 or 1",
    parse_csv.BAD_HOUR: "must be a date and hour as YYMMDDHH",
    parse_csv.BAD_HEX: "must be a hexadecimal number of at most 8 digits or empty",
    parse_csv.BAD_INTEGER: "must be an integer of at most 18 digits or empty",
}
SHOWN_BYTES = 40


class AvazuReader:
    """An Avazu file: 22 sparse columns, of which the hour is that of the day; dense features are where hour of day and
    day of week stand on their circles, from -1 to 1. The id of a row is left out."""

    dense_names: tuple[str, ...] = ("hour_sin", "hour_cos", "weekday_sin", "weekday_cos")
    sequence: SequenceColumns | None = None
    dense_transform = "sine and cosine of the hour of the day (of 24) and of the day of the week (of 7)"

    def __init__(self, path: Path, skip_bad_rows: bool, seed: int) -> None:
        self._path, self._skip_bad_rows = path, skip_bad_rows
        self.bad_rows = 0
        self.read_ratio = 0.0
        header = next(line_blocks(path), b"").partition(b"\n")[0].decode("utf-8", "replace").rstrip("\r")
        self._names = header.split(",")
        if sorted(self._names) != sorted(KINDS):
            raise DataError(f"{path}, line 1: columns must be {','.join(KINDS)} in any order, got {header[:200]!r}")
        self._kinds_K = np.array([KINDS[name] for name in self._names])
        keyed = [name for name in self._names if KINDS[name] in (parse_csv.HEX, parse_csv.INTEGER)]
        self.columns = tuple(SparseColumn(name, name) for name in ("hour", *keyed))

    def blocks(self) -> Iterator[RawBlock]:
        """Yield the rows in order; a malformed one raises DataError with its line and column, or is skipped."""
        lines, read_bytes, total_bytes = 0, 0, plain_bytes(self._path)
        for text in line_blocks(self._path):
            start = 0 if lines else text.index(b"\n") + 1
            yield self._parse(text, start, lines + (start > 0))
            lines, read_bytes = lines + text.count(b"\n"), read_bytes + len(text)
            self.read_ratio = min(1.0, read_bytes / total_bytes)
        self.read_ratio = 1.0

    def _parse(self, text: bytes, position: int, lines_before: int) -> RawBlock:
        data = np.frombuffer(text, dtype=np.uint8)
        count = text.count(b"\n")
        labels_B, hours_B = np.empty(count, dtype=np.float32), np.empty(count, dtype=np.int64)
        keys_BF = np.empty((count, len(self.columns) - 1), dtype=np.uint64)
        filled = bad = 0
        while position < len(text):
            read, position, fault, column = parse_csv.parse_rows(
                data, position, self._kinds_K, labels_B[filled:], hours_B[filled:], keys_BF[filled:]
            )
            filled += read
            if fault != parse_csv.FINE:
                bad += 1
                line = text[position : text.index(b"\n", position)]
                if not self._skip_bad_rows:
                    raise self._malformed(lines_before + filled + bad, fault, column, line)
                position += len(line) + 1
        self.bad_rows += bad
        hours_B, keys_FB = hours_B[:filled], np.ascontiguousarray(keys_BF[:filled].T)
        values_F = [(hours_B % 100 + 1).astype(np.uint64), *keys_FB]
        return RawBlock(clock_features(hours_B), labels_B[:filled], values_F, [None] * len(values_F))

    def _malformed(self, line_number: int, fault: int, column: int, line: bytes) -> DataError:
        where, fields = f"{self._path}, line {line_number}", line.removesuffix(b"\r").split(b",")
        if fault == parse_csv.COLUMNS:
            return DataError(f"{where}: row must have {len(self._names)} comma-separated columns, got {len(fields)}")
        value = ascii(fields[column][:SHOWN_BYTES].decode("latin-1")) + "..." * (len(fields[column]) > SHOWN_BYTES)
        return DataError(f"{where}, column {self._names[column]}: {RULES[fault]}, got {value}")


def clock_features(hours_B: NDArray[np.int64]) -> NDArray[np.float32]:
    """Sine and cosine of hour of day and day of week, of hours as YYMMDDHH; rows of a log share few hours."""
    hours_U, inverse_B = np.unique(hours_B, return_inverse=True)
    features_UX = np.empty((len(hours_U), 4), dtype=np.float32)
    for u, number in enumerate(hours_U.tolist()):
        year, month, day, hour = 2000 + number // 1000000, number // 10000 % 100, number // 100 % 100, number % 100
        weekday = datetime.date(year, month, day).weekday()
        angles = (2 * math.pi * hour / 24, 2 * math.pi * weekday / 7)
        features_UX[u] = [f(angle) for angle in angles for f in (math.sin, math.cos)]
    return features_UX[inverse_B]
